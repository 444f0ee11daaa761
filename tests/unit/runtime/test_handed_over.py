"""What one thread has passed on, another may use, change or clear at once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.bench import BENCHES, Bench
from tests.support.waiting import wait_for

import perkey
from perkey import guard
from perkey.core import states
from perkey.core.effects import Finished
from perkey.core.engine import Engine
from perkey.core.events import HandlerSpec
from perkey.core.gates import Gate
from perkey.core.work import Work
from perkey.runtime.calls.batch_calls import BatchTasks
from perkey.runtime.calls.threads import ThreadExecutor
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.member.group_membership import Callbacks
from perkey.runtime.member.rebalance import FIND_AGAIN_S, Rebalance
from perkey.runtime.run.drain import Drain
from perkey.runtime.run.outside import Outside
from perkey.runtime.run.result_stream import RESULTS_MAX, Results, ResultStream
from perkey.testing import MemoryKafka
from perkey.types import Record

LIMIT_S = 60.0
#: a thread that is to wait has had its chance after so long; one that need not is joined at once
CHANCE_S = 0.3


@pytest.fixture(autouse=True)
def closed():
    """Executors end with their test."""
    yield
    while BENCHES:
        BENCHES.pop().executor.close()


def meanwhile(body: Callable[[], Any]) -> threading.Thread:
    """Another thread does this now; returns when it is done, or most likely waits."""
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(CHANCE_S)
    return thread


# -- threads ---------------------------------------------------------------------------------------


class Idle(deque[None]):
    """The threads that wait; `then` happens between a thread's entry and its last look."""

    then: Callable[[], None] | None = None

    def append(self, entry: None) -> None:
        super().append(entry)
        then, self.then = self.then, None
        if then is not None:
            then()


def test_a_record_that_comes_as_a_thread_goes_to_rest_holds_back_no_other() -> None:
    """Its wake-up is for that thread, which need not be woken: the next record needs one, too."""
    gate, begun = threading.Event(), list[bytes]()

    def handler(record: Record) -> None:
        begun.append(record.value)
        if len(begun) > 1:
            gate.wait(10 * LIMIT_S)

    bench = Bench(ThreadExecutor, concurrency=3)
    bench.function = handler
    bench.executor._idle = idle = Idle()
    first, second, third = works_of(bench, 3)
    idle.then = lambda: bench.executor.put([second])
    bench.executor.put([first])
    wait_for(lambda: len(begun) == 2)
    bench.executor.put([third])
    try:
        wait_for(lambda: len(begun) == 3, LIMIT_S, "the third waits for the second")
    finally:
        gate.set()


def works_of(bench: Bench, count: int) -> list[Any]:
    """Records as an engine would grant them, and none of an engine."""
    partition = SimpleNamespace(
        gate=Gate(), state=states.OPEN, handler=SimpleNamespace(spec=bench.spec, index=0)
    )
    bench.door.turn = lambda: None  # type: ignore[method-assign]  # how they end is not looked at
    return [
        SimpleNamespace(
            record=Record("t", 0, number, 0, None, b"%d" % number),
            state=states.RUNNING,
            partition=partition,
            since=0.0,
            failure=None,
        )
        for number in range(count)
    ]


# -- results ---------------------------------------------------------------------------------------


def as_reported(stream: ResultStream, between: Callable[[], Any]) -> list[bool]:
    """What the engine learns of a stream that gets full; `between` before it learns that."""
    levels: list[bool] = []
    threads: list[threading.Thread] = []

    def on_level(full: bool) -> None:
        if full:
            threads.append(meanwhile(between))
        levels.append(full)

    stream.on_level = on_level
    stream.put([None] * RESULTS_MAX)
    threads[0].join(LIMIT_S)
    return levels


def test_a_stream_that_was_read_before_it_was_reported_full_is_not_full() -> None:
    """The last report is of the last state, or the intake would be halted for good."""
    stream = ResultStream()

    def read() -> None:
        while stream.take(0):
            pass

    assert as_reported(stream, read) == [True, False]


def test_a_stream_that_was_closed_before_it_was_reported_full_is_not_full() -> None:
    """Its reader has gone, and reads no more."""
    stream = ResultStream()
    assert as_reported(stream, stream.close) == [True, False]
    stream.put([None] * RESULTS_MAX)
    assert stream.take(0) == []


class Member:
    """What results need of a member."""

    def __init__(self) -> None:
        self.callbacks = Callbacks()
        self.door = SimpleNamespace(post=lambda event: event(self, 0.0))
        self.reporting: list[bool] = []
        #: happens before the engine reports no more
        self.before: Callable[[], Any] = lambda: None

    def report_results(self, *, on: bool) -> None:
        if not on:
            self.before()
        self.reporting.append(on)

    def halt(self, now: float, name: str, *, on: bool) -> None:
        return


def results_of(member: Member) -> tuple[Results, HandlerPlan]:
    """Of a run with one handler."""
    plan = HandlerPlan(HandlerSpec("h"), print)
    results = Results([plan], None, None, None)
    results.begin(member)
    return results, plan


def test_a_reader_that_comes_as_the_former_one_leaves_is_served() -> None:
    """The engine stops reporting for the one, and then begins for the other."""
    member = Member()
    results, plan = results_of(member)
    former = results.open()
    threads: list[threading.Thread] = []
    member.before = lambda: threads.append(meanwhile(results.open))
    former.close()
    threads[0].join(LIMIT_S)
    assert member.reporting[-1]
    assert plan.calls is not None


def test_a_second_reader_takes_no_call_from_the_first() -> None:
    """What an executor is about to note goes where it is looked for."""
    results, plan = results_of(Member())
    results.open()
    noted = plan.calls
    results._attach("on_result", ResultStream())
    assert plan.calls is noted


def work_of(state: int = states.RUNNING, *, partition: int = states.OPEN) -> Any:
    """A record in that state, of a partition in that state."""
    place: Any = SimpleNamespace(state=partition, handler=SimpleNamespace(index=0))
    work = Work.one(Record("t", 0, 0, 0, None, b""), 0, place)
    work.state = state
    return work


def test_calls_of_what_has_gone_are_not_kept() -> None:
    """A record that another member handles is never finished here."""
    plan = HandlerPlan(HandlerSpec("h"), print, calls={})
    works = [work_of(), work_of(states.DONE), work_of(partition=states.CLOSED)]
    plan.called(works[:2], 0.0)
    assert set(plan.calls or ()) == set(works[:2])
    plan.called(works[2:], 0.0)  # it returns after its partition has gone
    assert set(plan.calls or ()) == set(works[:2])
    works[1].partition.state = states.CLOSED
    plan.forget_ended(Engine([plan.spec]), 0.0)
    assert list(plan.calls or ()) == works[:1]


def test_calls_of_a_revoked_partition_are_forgotten() -> None:
    """Its record waits for another attempt, which another member makes."""
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        kafka.produce("orders", b"1", key=b"k")
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})

        @app.consume("orders", retry=perkey.Retry(attempts=2, delay_s=600))
        def fails(record: Record) -> None:
            raise RuntimeError

        app.results()
        run: Any = app.start()
        plan = run.member.config.plans[0]
        wait_for(lambda: plan.calls)
        run.stop()
        run.wait()
    assert not plan.calls


def test_a_result_of_a_finished_record_has_its_value() -> None:
    """Noted before it is finished, and taken away with it."""
    results, plan = results_of(Member())
    stream, work = results.open(), work_of()
    plan.called([work], 0.0, "value")
    results.put([Finished(work, "done", None, None, work.record)])
    assert [one.returned for one in stream.take(0)] == ["value"]
    assert plan.calls == {}


# -- callbacks -------------------------------------------------------------------------------------


def test_callbacks_of_several_threads_run_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet's members report at once: two threads would call a user's function together."""
    callbacks, ran, made, real = Callbacks(), list[int](), list[threading.Thread](), guard.thread

    def thread(*arguments: Any) -> threading.Thread:
        one = real(*arguments)
        made.append(one)
        if len(made) == 1:
            meanwhile(lambda: callbacks.call(ran.append, 2))
        return one

    monkeypatch.setattr(guard, "thread", thread)
    callbacks.call(ran.append, 1)
    wait_for(lambda: len(ran) == 2)
    callbacks.close(LIMIT_S)
    assert len(made) == 1


# -- what is looked at again ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_what_a_batch_acknowledged_last_is_reported_while_it_waits(kind: str) -> None:
    """No later acknowledgement takes it along: the polling thread does."""
    gate, ended = threading.Event(), list[int]()

    def acknowledge(batch: perkey.RecordBatch) -> None:
        batch.ack(batch[0])

    def waits(batch: perkey.RecordBatch) -> None:
        acknowledge(batch)
        gate.wait(LIMIT_S)
        ended.append(1)

    async def awaits(batch: perkey.RecordBatch) -> None:
        acknowledge(batch)
        await asyncio.to_thread(gate.wait, LIMIT_S)
        ended.append(1)

    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for number in range(2):
            kafka.produce("orders", b"%d" % number, key=b"%d" % number)
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        explicit = perkey.Batch(max_records=2, ack="explicit")
        app.consume("orders", batch=explicit)(waits if kind == "threads" else awaits)
        run: Any = app.start()
        try:
            wait_for(lambda: sum(row["done"] for row in app.snapshot()["handlers"].values()))
            assert not ended
        finally:
            gate.set()
            run.stop("now")
            run.wait()


def test_a_batch_for_a_loop_that_is_closed_breaks_nothing() -> None:
    """The door passes it on as the run ends."""
    loop = asyncio.new_event_loop()
    loop.close()
    bench = Bench(
        lambda plan, door: BatchTasks(plan, door, loop), batch=perkey.Batch(max_records=2)
    )
    bench.executor.start_batch([work_of()])


def test_a_start_that_cannot_be_read_for_any_reason_is_looked_up_again() -> None:
    """Of what the background thread raises nothing would begin the partition."""

    def find(_partitions: Any, _timeout_s: float) -> Any:
        raise ValueError("a topic that comes and goes")

    later, found = list[Any](), list[Any]()
    membership: Any = SimpleNamespace(
        now=lambda: 0.0,
        background=later.append,
        on_poll_thread=found.append,
        consumer=SimpleNamespace(assign_may_block=False, find=find),
    )
    unused: Any = None
    committer: Any = SimpleNamespace(under_way=lambda _: False)
    listener = Rebalance(membership, unused, committer, unused, unused, unused)
    listener.on_assigned([("t", 0)])
    later.pop()()
    found.pop()()
    listener.tick(FIND_AGAIN_S)
    assert len(later) == 1
    assert listener.waiting["t", 0].reason == "a topic that comes and goes"


def test_the_ends_that_a_drain_waits_for_change_as_a_whole() -> None:
    """The watching thread strikes one off while another looks at them inside the door."""
    where = [("t", 0), ("t", 1)]
    admin: Any = SimpleNamespace(group_offsets=lambda *_: dict.fromkeys(where, 1))
    drain = Drain(admin, "g", {}, dict.fromkeys(where, 1))

    class Ours(dict[Any, Any]):
        def __contains__(self, one: object) -> bool:
            drain.look(())
            return False

    assert not drain.finished(Engine([HandlerSpec("h")]), 0.0, Ours())
    assert drain.finished(Engine([HandlerSpec("h")]), 0.0, {})


def test_a_snapshot_as_the_run_closes_is_one() -> None:
    """The control topic is followed no more between two looks at who follows it."""

    class Closing(Outside):
        looks = 0

        @property
        def _followed(self) -> Any:  # type: ignore[override]  # it changes by itself
            self.looks += 1
            return SimpleNamespace(state=dict) if self.looks == 1 else None

    assert Closing.__new__(Closing).followed() == {}
