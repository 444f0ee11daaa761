"""`until="drained"` with several members: whose word counts, and nobody waits for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from perkey.core import states
from perkey.core.effects import CommitOffsets, Start
from perkey.core.engine import Engine
from perkey.core.events import AT_MOST_ONCE, Answer, Assignment, Failed, HandlerSpec
from perkey.kafka.ports import AdminPort
from perkey.policies import DeadLetter, Retry
from perkey.runtime.run import drain as module
from perkey.runtime.run.drain import Drain, passed
from perkey.types import ErrorInfo, Record, TopicPartition

OURS, THEIRS = ("t", 0), ("t", 1)


class Group:
    """An admin client that knows one group."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int | None] = {}
        self.logs = {OURS: 10, THEIRS: 10}

    def group_offsets(self, *_: Any) -> dict[TopicPartition, int | None]:
        """What the group has committed."""
        return self.offsets

    def ends(self, *_: Any, **__: Any) -> dict[TopicPartition, int]:
        """Ends of the log."""
        return self.logs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, as the drain sees it."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def member(*, parked: int) -> tuple[Engine, dict[TopicPartition, Any]]:
    """An engine whose one partition is finished with, but for what is parked."""
    engine = Engine([HandlerSpec("h")])
    (partition,) = engine.assigned(0.0, [Assignment("t", 0, 0, 10)])
    partition.lanes.waiting[states.PARKED] = parked
    return engine, {OURS: partition}


def look(drain: Drain, clock: list[float], seconds: float) -> None:
    """Time passes, and the others are asked about."""
    clock[0] += seconds
    drain.look([OURS])


def make(group: Group) -> Drain:
    """A drain over one partition of ours and one of another member."""
    return Drain(cast("AdminPort", group), "g", {OURS: 0, THEIRS: 0}, {OURS: 10, THEIRS: 10})


def test_another_members_commit_counts(clock: list[float]) -> None:
    """A partition of another member is finished with when the group's frontier is at its end."""
    group = Group()
    drain, (engine, ours) = make(group), member(parked=0)
    look(drain, clock, 2)
    assert not drain.finished(engine, 0.0, ours)
    group.offsets = {THEIRS: 10}
    look(drain, clock, 2)
    assert drain.finished(engine, 0.0, ours)


def test_what_comes_to_us_while_we_ask_is_ours(clock: list[float]) -> None:
    """At most once its commit says done when its calls begin: the answer says nothing of them."""
    ours: dict[TopicPartition, Any] = {}

    class Assigned(Group):
        """A group that gives us the other partition before it has answered."""

        def group_offsets(self, *_: Any) -> dict[TopicPartition, int | None]:
            ours[OURS] = ours[THEIRS] = "assigned"
            return {OURS: 10, THEIRS: 10}

    drain = make(Assigned())
    clock[0] += 2
    drain.look(ours)
    assert not drain.finished(Engine([HandlerSpec("h")]), 0.0, {})


def test_two_members_with_parked_records_do_not_wait_for_each_other(clock: list[float]) -> None:
    """With parked records of our own, another member that stands still is not waited for."""
    group = Group()
    group.offsets = {THEIRS: 7}
    drain, (engine, ours) = make(group), member(parked=1)
    look(drain, clock, 2)
    look(drain, clock, module.STANDSTILL_S - 1)
    assert not drain.finished(engine, 0.0, ours)
    look(drain, clock, 2)
    assert drain.finished(engine, 0.0, ours)


def test_a_member_that_moves_is_waited_for(clock: list[float]) -> None:
    """Every step of the other's frontier starts its time anew."""
    group = Group()
    drain, (engine, ours) = make(group), member(parked=1)
    for offset in (5, 6, 7):
        group.offsets = {THEIRS: offset}
        look(drain, clock, module.STANDSTILL_S - 1)
    assert not drain.finished(engine, 0.0, ours)


def test_without_parked_records_we_wait_however_long(clock: list[float]) -> None:
    """A slow record of another member is not mistaken for a parked one."""
    group = Group()
    group.offsets = {THEIRS: 7}
    drain, (engine, ours) = make(group), member(parked=0)
    look(drain, clock, 2)
    look(drain, clock, 10 * module.STANDSTILL_S)
    assert not drain.finished(engine, 0.0, ours)


def test_a_record_passed_on_at_most_once_and_parked_is_no_reason_to_wait():
    """Its dead letter was refused: it counts as done, only its lane rests, and the drain ends."""
    spec = HandlerSpec("h", delivery=AT_MOST_ONCE, on_exhausted=DeadLetter("d"), retry=Retry(1))
    engine = Engine([spec])
    (partition,) = engine.assigned(0.0, [Assignment("t", 0, 0, 0)])
    engine.take_effects()
    engine.polled(0.0, [(partition, [Record("t", 0, 0, 0, b"k", b"v", ())], [1])])
    engine.reached(0.0, [(partition, 1)])
    effects: list[Any] = []
    for _ in range(3):  # the start of the partition, then the mark
        effects = engine.take_effects()
        for one in [effect for effect in effects if isinstance(effect, CommitOffsets)]:
            engine.commit_answered(0.0, [Answer(partition, one.sequence, "stored")])
        if any(isinstance(effect, Start) for effect in effects):
            break
    (start,) = [effect for effect in effects if isinstance(effect, Start)]
    assert not passed(partition, 1)
    engine.calls_ended(0.0, [], [Failed(start.works[0], ErrorInfo("E", "", ""))])
    engine.outputs_answered(0.0, [(start.works[0], (), ErrorInfo("TOPIC_AUTH", "no", ""))])
    assert (partition.parked, passed(partition, 1)) == (1, True)


def short(drain: Drain, clock: list[float], looks: int) -> None:
    """The logs are looked at so often."""
    for _ in range(looks):
        look(drain, clock, module.LOGS_EVERY_S)


def test_records_of_a_deleted_topic_are_not_waited_for(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """No frontier ever reaches their end (found on a real broker: "Nothing is stuck", for ever)."""
    group = Group()
    drain, (engine, ours) = make(group), member(parked=0)
    group.logs = {OURS: 10}
    short(drain, clock, module.SHORT_MAX - 1)
    assert not drain.finished(engine, 0.0, ours)
    assert caplog.messages == []
    short(drain, clock, 1)
    assert drain.finished(engine, 0.0, ours)
    (line,) = caplog.messages
    assert "partitions=t[1] records=10" in line


def test_of_a_shorter_log_only_what_it_has_is_waited_for(clock: list[float]) -> None:
    """A topic that was recreated, or truncated, with fewer records than at the start."""
    group = Group()
    drain, (engine, ours) = make(group), member(parked=0)
    group.logs, group.offsets = {OURS: 10, THEIRS: 4}, {THEIRS: 3}
    short(drain, clock, module.SHORT_MAX + 1)
    assert not drain.finished(engine, 0.0, ours)
    group.offsets = {THEIRS: 4}
    look(drain, clock, 2)
    assert drain.finished(engine, 0.0, ours)


def test_a_log_that_is_short_for_a_moment_is_waited_for(clock: list[float]) -> None:
    """A new leader may know less for a moment, and a broker may not know the topic yet."""
    group = Group()
    drain, (engine, ours) = make(group), member(parked=0)
    for logs in [{OURS: 10}, {OURS: 10, THEIRS: 9}, {OURS: 10, THEIRS: 10}] * 3:
        group.logs = logs
        short(drain, clock, 1)
    assert not drain.finished(engine, 0.0, ours)


def waiting(*works: Any, frontier: int = 0) -> dict[TopicPartition, Any]:
    """A partition of which these records are not done."""
    whole = SimpleNamespace(position=10, frontier=frontier, unfinished=lambda _: works)
    return {OURS: whole}


def work(state: int, *, due: float = 0.0) -> Any:
    """A record in this state."""
    by = SimpleNamespace(reason="their orders are doubled")
    failure = SimpleNamespace(due=due, held_by=by)
    record = SimpleNamespace(key=b"cust-17")
    return SimpleNamespace(
        state=state, failure=failure if state == states.HELD else None, record=record
    )


def test_a_drain_that_waits_for_held_records_is_logged(clock: list[float]) -> None:
    """Which key, why, and until when; once per minute."""
    drain = Drain(cast("AdminPort", Group()), "g", {OURS: 0}, {OURS: 10})
    clock[0] += module.HELD_AFTER_S + 1
    ours = waiting(work(states.HELD, due=60.0), work(states.QUEUED))
    line = drain.held_line(0.0, ours)
    assert line is not None
    assert line.pop("until") != ""
    assert line == {"records": 1, "key": "cust-17", "reason": "their orders are doubled"}
    assert drain.held_line(0.0, ours) is None
    clock[0] += module.HELD_EVERY_S + 1
    assert drain.held_line(0.0, ours) is not None


@pytest.mark.parametrize("state", [states.RUNNING, states.RETRYING, None])
def test_a_drain_that_waits_for_more_than_held_records_is_not_logged(state: int | None) -> None:
    """What runs, is tried again, or is fetched ends without the hold."""
    held = work(states.HELD, due=60.0)
    more = None if state is None else work(state)
    assert module.held_of({OURS: 10}, 0.0, waiting(held, more)) is None
    assert module.held_of({OURS: 10}, 0.0, waiting(work(states.PARKED))) is None
    assert module.held_of({OURS: 10}, 0.0, {}) is None
