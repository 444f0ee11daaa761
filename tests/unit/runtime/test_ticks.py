"""When the polling thread looks again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.core.events import HandlerSpec, Limits
from perkey.kafka.ports import Polled
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member.member import POLL_IDLE_S, POLL_S, QUIET_POLLS, TICK_S, Member
from perkey.runtime.member.member_config import MemberConfig


@pytest.fixture
def member() -> Member:
    """One that was not started."""

    def nothing(*_: Any) -> Any:
        raise AssertionError

    plan = HandlerPlan(HandlerSpec("h"), lambda _: None)
    return Member(
        MemberConfig(
            group="g",
            topics=["t"],
            plans=[plan],
            route=lambda _: 0,
            limits=Limits(),
            make_consumer=nothing,
            make_producer=nothing,
            make_executors=nothing,
        )
    )


@pytest.fixture
def ticks(member: Member, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the engine was ticked; nothing else is done then, and the time is 100."""
    times: list[float] = []
    monkeypatch.setattr(member, "_tick", times.append)
    monkeypatch.setattr(member, "now", lambda: 100.0)
    return times


def ticked(
    member: Member, monkeypatch: pytest.MonkeyPatch, tick: Callable[..., None]
) -> list[float]:
    """The engine does this at a tick; its next deadline is what the list holds."""
    due = [float("inf")]
    monkeypatch.setattr(member.engine, "tick", tick)
    monkeypatch.setattr(member.engine, "next_deadline", lambda: due[0])
    return due


def test_what_comes_in_while_the_engine_ticks_is_not_forgotten(member, monkeypatch):
    """A call that failed meanwhile, and is due again soon, is due when it is due."""

    def tick(now: float) -> None:
        member.door._events.append(lambda _engine, _now: due.__setitem__(0, now + 0.02))

    due = ticked(member, monkeypatch, tick)
    now = 100.0
    monkeypatch.setattr(member.door, "clock", lambda: now)
    member.tick_engine(now)
    assert member.door.wakes_at == now + 0.02


def test_what_stays_due_does_not_keep_the_thread_busy(member, monkeypatch):
    """Something that a tick cannot end is looked at again a moment later, not at once."""
    due = ticked(member, monkeypatch, lambda _now: None)
    due[0] = 0.0
    now = member.now()
    member.tick_engine(now)
    assert member.door.wakes_at == now + TICK_S
    member.door.post(lambda _engine, _now: None)
    assert member.door.wakes_at == now + TICK_S


@pytest.mark.parametrize(("late_s", "count"), [(-0.001, 0), (0.0, 1), (0.001, 1)])
def test_the_thread_ticks_when_it_is_due(member, ticks, late_s, count):
    """A moment before nothing is done; at that moment it is."""
    member.membership.consumer = SimpleNamespace(poll=lambda timeout_s, room: Polled())
    member.door.wakes_at = 100.0 - late_s
    member._step()
    assert ticks == [100.0] * count


@pytest.mark.parametrize(
    ("due_in_s", "waited_s"), [(-1.0, 0.0), (0.0, 0.0), (0.03, 0.03), (9.0, POLL_S)]
)
@pytest.mark.usefixtures("ticks")
def test_a_poll_waits_until_something_is_due(member, due_in_s, waited_s):
    """And no longer than a tenth of a second."""
    waits: list[float] = []

    def poll(timeout_s: float, room: int) -> Polled:
        waits.append(timeout_s)
        return Polled()

    member.membership.consumer = SimpleNamespace(poll=poll)
    member.door.wakes_at = 100.0 + due_in_s
    member._step()
    assert waits == [pytest.approx(waited_s)]


@pytest.mark.parametrize("who", ["membership", "committer"])
@pytest.mark.usefixtures("ticks")
def test_a_poll_does_not_wait_where_something_is_to_be_done(member, monkeypatch, who):
    """Either of them: what was handed to this thread, or a commit that is to be sent."""
    waits: list[float] = []

    def poll(timeout_s: float, room: int) -> Polled:
        waits.append(timeout_s)
        return Polled()

    member.membership.consumer = SimpleNamespace(poll=poll)
    member.door.wakes_at = 109.0
    monkeypatch.setattr(type(getattr(member, who)), "waiting", property(lambda _: True))
    monkeypatch.setattr(member.committer, "send_planned", lambda: None)
    monkeypatch.setattr(member.membership, "do_waiting", lambda: None)
    member._step()
    assert waits == [0.0]


@pytest.mark.parametrize("rejoining", [False, True])
@pytest.mark.usefixtures("ticks")
def test_each_round_renews_the_lease_before_anything_is_taken_in(member, monkeypatch, rejoining):
    """Without a consumer too: a member that stood still must hear of it."""
    did: list[str] = []

    def poll(timeout_s: float, room: int) -> Polled:
        did.append("poll")
        return Polled()

    member.membership.consumer = SimpleNamespace(poll=poll)
    monkeypatch.setattr(member, "_take", lambda polled: did.append("take"))
    monkeypatch.setattr(member.proof, "renew", lambda: did.append("renew"))
    if rejoining:
        monkeypatch.setattr(type(member._rejoining), "waiting", property(lambda _: True))
        monkeypatch.setattr(member._rejoining, "step", lambda: did.append("rejoin"))
    member._step()
    assert did == (["rejoin", "renew"] if rejoining else ["poll", "renew", "take"])


@pytest.mark.parametrize(
    ("polls", "held", "waited_s"),
    [
        (QUIET_POLLS - 1, (), POLL_S),
        (QUIET_POLLS, (), POLL_IDLE_S),
        (QUIET_POLLS + 1, (), POLL_IDLE_S),
        (2 * QUIET_POLLS, (7,), POLL_S),
    ],
)
@pytest.mark.usefixtures("ticks")
def test_an_idle_member_polls_less_often(member, monkeypatch, polls, held, waited_s):
    """Once so many polls in a row brought nothing, while no record is held; what comes wakes it."""
    waits: list[float] = []

    def poll(timeout_s: float, room: int) -> Polled:
        waits.append(timeout_s)
        return Polled()

    member.membership.consumer = SimpleNamespace(poll=poll)
    member.partitions["t", 0] = SimpleNamespace(busy=bool(held))
    monkeypatch.setattr(member, "_wait_for_room", lambda: 100)
    monkeypatch.setattr(member._watchdog, "polled", lambda polled, room: None)
    member.door.wakes_at = 109.0
    for _ in range(polls + 1):
        member._step()
    assert waits[-1] == pytest.approx(waited_s)
