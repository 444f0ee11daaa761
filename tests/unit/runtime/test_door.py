"""The door: what is handed in is never lost, and after a bug of ours nothing goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import perkey
from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.events import Assignment, HandlerSpec, Limits
from perkey.core.states import InternalError
from perkey.runtime.door import Door
from perkey.runtime.suspension import SUSPENDED_S
from perkey.testing import MemoryKafka, run
from perkey.types import Record


def test_every_event_is_taken_once_any_caller_is_inside() -> None:
    """Eight threads hand in events at the same time: all are taken, none twice, one at a time."""
    door = Door(Engine([HandlerSpec("h")]), lambda _: None)
    inside, seen = threading.Lock(), []

    def event(number: int) -> Any:
        def take(_engine: Engine, _now: float) -> None:
            assert inside.acquire(blocking=False)
            seen.append(number)
            inside.release()

        return take

    def hand_in(first: int) -> None:
        for number in range(first, first + 500):
            door.post(event(number))

    threads = [threading.Thread(target=hand_in, args=(n * 500,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(seen) == list(range(4000))


def test_what_a_call_hands_in_is_taken_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that says `app.stop()` and returns is its lane's last, whoever is inside then."""
    door, told = Door(Engine([HandlerSpec("h")]), lambda _: None), []
    monkeypatch.setattr(Engine, "calls_ended", lambda *_: told.append("ended"))
    work: Any = object()

    def inside(_engine: Engine, _now: float) -> None:
        door.post(lambda *_: told.append("stop"))  # by another thread, which finds the door closed
        door.done.append(work)

    door.post(inside)
    assert told == ["stop", "ended"]


@pytest.mark.parametrize("count", [2, 1])
def test_calls_that_make_a_commit_due_earlier_wake_the_polling_thread(count: int) -> None:
    """`commit_after` records within 50 ms of a commit: their commit is timed. Fewer: no look."""
    limits, clock = Limits(commit_after=2), [0.0]
    door = Door(Engine([HandlerSpec("h", ordering="unordered")], limits), lambda _: None)
    started: list[Any] = []
    door._perform = lambda effects: started.extend(
        work for effect in effects if isinstance(effect, fx.Start) for work in effect.works
    )
    door.clock = lambda: clock[0]
    (part,) = door.call(lambda engine, now: engine.assigned(now, [Assignment("t", 0, 0, 0)]))
    records = [Record("t", 0, offset, 0, None, b"v") for offset in range(4)]
    door.call(lambda engine, now: engine.polled(now, [(part, records, [1] * 4)]))
    clock[0] = 0.5
    door.done.extend(started[:2])
    door.turn()
    clock[0] = 0.51
    door.wakes_at = door.engine.next_deadline()
    woken: list[float] = []
    door.on_earlier = lambda: woken.append(door.engine.next_deadline())
    door.done.extend(started[2 : 2 + count])
    door.turn()
    assert woken == ([0.55] if count == 2 else [])


def test_after_an_internal_error_the_door_stays_closed() -> None:
    """An error inside is told once; from then on events are not taken and calls raise."""
    door = Door(Engine([HandlerSpec("h")]), lambda _: None)
    told: list[Exception] = []
    door.on_broken = told.append
    door.post(lambda engine, now: engine.assigned(now, [Assignment("t", 0, 9, 0)]))
    door.post(lambda *_: told.append(AssertionError("taken")))
    assert [type(error) for error in told] == [IndexError]
    with pytest.raises(InternalError):
        door.call(lambda *_: None)


def test_a_caller_that_is_inside_when_the_engine_fails_is_told_so() -> None:
    """Whatever fails is mostly another thread's: who only looks need not know each kind of bug."""
    door = Door(Engine([HandlerSpec("h")]), lambda _: None)
    told: list[Exception] = []
    door.on_broken = told.append
    with pytest.raises(InternalError, match="the engine has failed"):
        door.call(lambda *_: 1 / 0)
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_an_app_that_has_ended_is_not_halted() -> None:
    """No round of its polling thread is due: its membership is in no doubt, however late it is."""
    with MemoryKafka() as kafka:
        kafka.create_topic("t")
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        app.consume("t")(lambda record: None)
        run = app.start()
        run.stop()
        assert run.wait(60).exit_code == 0
        run.member.door.round_at -= 2 * SUSPENDED_S
        assert "membership" not in {one["cause"] for one in app.snapshot()["halts"]}


def test_a_bug_of_ours_ends_the_run_and_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with exit code 1, naming it; what was done since is handled again."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})

    @app.consume("t", commit=perkey.Commit(interval_s=60))
    async def handle(record: perkey.Record) -> None:
        if record.offset == 5:
            monkeypatch.setattr(Engine, "calls_ended", lambda *_: 1 / 0)

    with MemoryKafka() as kafka:
        with pytest.raises(perkey.FatalError, match="internal error: ZeroDivisionError"):
            run(app, [b"x"] * 10, broker=kafka)
        held = kafka.committed("g", "t")
    assert held is None or held.frontier == 0
