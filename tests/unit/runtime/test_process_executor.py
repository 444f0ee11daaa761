"""What is given to worker processes, what comes back, and what becomes of it when one dies."""

from __future__ import annotations

import time
from itertools import count
from typing import Any, ClassVar

import pytest
from tests.support.bench import Bench

import perkey
from perkey.core import states
from perkey.core.work import Work
from perkey.kafka.ports import OutMessage
from perkey.runtime.calls.processes import call_ends
from perkey.runtime.calls.processes import executor as module
from perkey.runtime.calls.processes.executor import STARTS_MAX, ProcessExecutor
from perkey.runtime.calls.processes.link import Item
from perkey.runtime.calls.processes.protocol import (
    IDLE,
    BatchReply,
    Drop,
    Job,
    Opened,
    Reply,
    Warn,
    WorkerSpec,
)
from perkey.types import ErrorInfo

ERROR = ErrorInfo("ValueError", "bad")


class Process:
    """A child that is never there."""

    waited: ClassVar[list[float]] = []

    def join(self, timeout: float | None = None) -> None:
        """Keep for how long it may take."""
        self.waited.append(timeout or 0.0)


class Child:
    """A worker in the hands of a test: what it was sent, and what it runs."""

    made: list[Child]

    def __init__(self, *_arguments: Any, one_at_a_time: bool = False) -> None:
        self.one_at_a_time = one_at_a_time
        self.sent: list[Any] = []
        self.given: dict[int, Item] = {}
        self.opened = True
        self.feeding = False
        self.at_hand = IDLE
        self.began_at = 0.0
        self.killed_for: Item | None = None
        self.slow = False
        self.window, self.deep = 4, 0
        self.unsendable: set[Any] = set()
        self.killed = self.closed = False
        self.process = Process()
        Child.made.append(self)

    @property
    def call(self) -> tuple[Item | None, float]:
        """The call at hand and for how long it has run."""
        return self.given.get(self.at_hand), time.monotonic() - self.began_at

    def room(self, share: int) -> int:
        """How many more calls it may be given; `deep` more where its share is as large."""
        window = max(self.window, min(share, self.deep))
        return max(0, window - len(self.given)) if self.opened else 0

    @property
    def hungry(self) -> bool:
        """At least half of its window is free."""
        return self.opened and 2 * len(self.given) <= self.window

    def send(self, message: Any) -> bool:
        """Keep it, unless it holds what no pipe can carry."""
        if isinstance(message, Job) and any(r.value in self.unsendable for _, r in message.records):
            raise TypeError("cannot pickle")
        self.sent.append(message)
        return True

    def took(self, seconds: float) -> None:
        """Nothing follows."""

    def how_it_died(self) -> str:
        """As the real one says it."""
        return "was killed by SIGKILL"

    def kill(self) -> None:
        """Keep it."""
        self.killed = True

    def close(self) -> None:
        """Keep it."""
        self.closed = True

    def numbers(self) -> list[int]:
        """Of the records in the last job."""
        return [number for number, _ in self.sent[-1].records]


class Silent:
    """A thread that is never started: the test does what it would."""

    def start(self) -> None:
        """Nothing."""


class Office:
    """A process executor with workers in the hands of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        Child.made = []
        self.failed: list[str] = []
        monkeypatch.setattr(module, "Link", Child)
        monkeypatch.setattr(module.guard, "thread", lambda *_: Silent())
        self.explicit = "batch" in spec and spec["batch"].ack == "explicit"
        self.bench = Bench(self._make, **{"concurrency": 1, "ahead": 3, **spec})
        self.executor: ProcessExecutor = self.bench.executor
        self.engine = self.bench.door.engine

    def _make(self, plan: Any, door: Any) -> ProcessExecutor:
        told = WorkerSpec(
            print, None, "bytes", "bytes", None, plan.spec.retry, "key", self.explicit, "g", None
        )
        return ProcessExecutor(plan, door, told, self.failed.append)

    @property
    def child(self) -> Child:
        """The worker that was started last."""
        return Child.made[-1]

    def poll(self, count: int, partitions: int = 1) -> list[Work]:
        """So many records are granted; the dispatcher gives them out."""
        works = self.bench.poll(count, partitions)
        self.executor._dispatch_now()
        return works

    def begin(self, work: Work) -> None:
        """Its worker begins with it."""
        for child in Child.made:
            for number, item in child.given.items():
                if work in item.works:
                    child.at_hand = number

    def hear(self, child: Child, *messages: Any) -> None:
        """The worker has sent this since the last time."""
        self.executor._received(child, messages)

    def halt(self) -> None:
        """Nothing more starts, so that what comes back is seen."""
        self.bench.door.call(lambda engine, now: engine.halt(now, "test", on=True))

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self.engine.state.handlers[0].slots.free


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes offices."""
    return lambda **spec: Office(monkeypatch, **spec)


def states_of(works: list[Work]) -> list[int]:
    """Where they are."""
    return [work.state for work in works]


def given(child: Child) -> list[Work]:
    """The records that this worker has."""
    return [work for item in dict.fromkeys(child.given.values()) for work in item.works]


def test_a_worker_is_given_what_its_window_holds(office: Any) -> None:
    """The rest waits until it has answered; each record has a number of its own."""
    desk = office(ahead=5)
    works = desk.poll(6)
    assert given(desk.child) == works[:4]
    assert len(desk.child.given) == 4
    for number in list(desk.child.given):
        desk.hear(desk.child, Reply(number, "done"))
    assert given(desk.child) == works[4:]


def test_the_emptiest_worker_is_fed_first(office: Any) -> None:
    """Half a window at a time, so that all of them have something to do."""
    desk = office(concurrency=2, ahead=4)
    works = desk.poll(6)
    assert [given(child) for child in Child.made] == [
        [*works[:2], works[4]],
        [*works[2:4], works[5]],
    ]


def test_no_worker_is_given_more_than_its_equal_part(office: Any) -> None:
    """What a worker that opens now would do is not in the pipes of the others."""
    desk = office(concurrency=2, ahead=16)
    for child in Child.made:
        child.deep = 100
    Child.made[1].opened = False
    works = desk.poll(18)
    assert len(given(Child.made[0])) == 9
    Child.made[1].opened = True
    desk.executor._dispatch_now()
    assert [len(given(child)) for child in Child.made] == [9, 9]
    assert len(works) == 18


def test_a_worker_that_is_not_ready_is_given_nothing(office: Any) -> None:
    """Nothing waits in the pipe of one that is still importing; once it is open it is fed."""
    desk = office()
    desk.child.opened = False
    works = desk.poll(2)
    assert desk.child.sent == []
    desk.hear(desk.child, Opened(None))
    assert (desk.child.opened, given(desk.child)) == (True, works)


def test_at_most_once_gives_one_at_a_time(office: Any) -> None:
    """What waits in a pipe would count as begun."""
    desk = office(delivery="at_most_once", ahead=0, retry=perkey.Retry(attempts=1))
    assert desk.child.one_at_a_time


def test_what_may_not_be_called_any_more_is_given_back_immediately(office: Any) -> None:
    """Its partition is going: queued again, and its slot free, without another event."""
    desk = office()
    works = desk.bench.poll(2)
    desk.bench.door.call(lambda engine, now: engine.revoking(now, [works[0].partition]))
    desk.executor._dispatch_now()
    assert states_of(works) == [states.QUEUED, states.QUEUED]
    assert (desk.free, desk.child.sent) == (4, [])


def test_what_no_pipe_can_carry_fails_immediately(office: Any) -> None:
    """It alone: those that were to be sent with it go; and without another event."""
    desk = office(retry=perkey.Retry(attempts=1))
    desk.child.unsendable = {b"1"}
    works = desk.poll(3)
    assert states_of(works) == [states.RUNNING, states.PARKED, states.RUNNING]
    assert works[1].failure.error.type == "Unsendable"
    assert given(desk.child) == [works[0], works[2]]
    assert desk.free == 2


def test_a_batch_that_no_pipe_can_carry_is_halved(office: Any) -> None:
    """Until the record is found whose fault it is."""
    desk = office(batch=perkey.Batch(max_records=4, linger_s=0), ahead=0)
    desk.child.unsendable = {b"1"}
    works = desk.poll(4)
    assert {work.failure.batch_max for work in works} == {2}
    assert (desk.child.given, desk.free) == ({}, 1)


def test_a_standstill_gives_back_what_waits(office: Any) -> None:
    """It may be another member's by now: none of it begins."""
    desk = office()
    works = desk.bench.poll(1)
    desk.bench.door.round_at = -1e9
    desk.executor._dispatch_now()
    assert (states_of(works), desk.child.sent) == ([states.QUEUED], [])


def test_a_recall_is_about_the_partitions_that_go(office: Any) -> None:
    """What waits comes back at once; what was given is asked for; the others stay."""
    desk = office()
    desk.child.window = 2
    works = desk.poll(4, partitions=2)
    there, waiting = given(desk.child), [item.works[0] for item in desk.executor._waiting]
    going = works[0].partition
    asked = [
        number for number, item in desk.child.given.items() if item.works[0].partition is going
    ]
    desk.halt()
    desk.executor.warn([going])
    assert desk.child.sent[1:] == ([Drop(asked)] if asked else [])
    assert [work for work in works if work.state == states.QUEUED] == [
        work for work in waiting if work.partition is going
    ]
    assert given(desk.child) == there
    assert [i.works[0] for i in desk.executor._waiting] == [
        work for work in waiting if work.partition is not going
    ]


def test_a_running_batch_is_warned(office: Any) -> None:
    """It is told that a partition goes, and asked back if it has not begun; a record is not."""
    desk = office(batch=perkey.Batch(max_records=2, linger_s=0), ahead=0)
    works = desk.poll(2)
    desk.executor.warn([works[0].partition])
    assert [type(message) for message in desk.child.sent] == [Job, Drop, Warn]
    assert desk.child.sent[1] == Drop(list(desk.child.given))


def test_a_stop_recalls_from_the_dispatcher(office: Any) -> None:
    """Inside the door nobody waits for a pipe."""
    desk = office()
    works = desk.bench.poll(1)
    desk.halt()
    desk.executor.warn(None)
    assert (states_of(works), desk.executor._recalling) == ([states.RUNNING], True)
    desk.executor._recall(None)
    assert states_of(works) == [states.QUEUED]


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ({"outcome": "done"}, states.DONE),
        ({"outcome": "done", "outputs": ["out"]}, states.SENDING),
        ({"outcome": "failed", "error": ERROR}, states.RETRYING),
        ({"outcome": "failed", "error": ERROR, "final": True}, states.PARKED),
        ({"outcome": "unhandled"}, states.QUEUED),
    ],
)
def test_a_reply_ends_its_record(office: Any, reply: dict[str, Any], state: int) -> None:
    """As the worker says, once; the worker has room again."""
    desk = office(retry=perkey.Retry(attempts=3, delay_s=60))
    (work,) = desk.poll(1)
    (number,) = desk.child.given
    desk.halt()
    desk.hear(desk.child, Reply(number, **reply))
    assert (work.state, desk.child.given, desk.free) == (state, {}, 4)
    desk.hear(desk.child, Reply(number, **reply))  # nobody it could be about
    assert (work.state, desk.free) == (state, 4)


def test_asked_delay_is_kept(office: Any) -> None:
    """RetryAfter in a worker is as long as anywhere."""
    desk = office(retry=perkey.Retry(attempts=3, delay_s=60))
    (work,) = desk.poll(1)
    (number,) = desk.child.given
    desk.hear(desk.child, Reply(number, "failed", error=ERROR, delay_s=1e6))
    assert work.failure.due > 5e5


def test_replies_that_came_together_are_one_turn_at_the_door(office: Any, monkeypatch: Any) -> None:
    """The engine is left alone until the last of them is noted."""
    desk = office()
    works = desk.poll(2)
    turns, turn = [], type(desk.bench.door).turn
    monkeypatch.setattr(type(desk.bench.door), "turn", lambda door: (turns.append(1), turn(door)))
    desk.hear(desk.child, *[Reply(number, "done") for number in desk.child.given])
    assert [work.state for work in works] == [states.DONE] * 2
    assert len(turns) == 1


def test_a_batch_ends_with_its_replies(office: Any) -> None:
    """Each record by its own; the call's slot is free once."""
    batch = perkey.Batch(max_records=3, linger_s=0, ack="explicit")
    desk = office(batch=batch, ahead=0, retry=perkey.Retry(attempts=3, delay_s=60))
    works = desk.poll(3)
    first, second, third = desk.child.given
    desk.halt()
    desk.hear(desk.child, Reply(second, "acked"))
    assert (states_of(works), desk.free) == ([states.RUNNING, states.DONE, states.RUNNING], 0)
    rest = [Reply(first, "failed", error=ERROR), Reply(third, "done", outputs=["out"])]
    desk.hear(desk.child, BatchReply(first, rest, whole=False))
    assert states_of(works) == [states.RETRYING, states.DONE, states.SENDING]
    assert (desk.child.given, desk.free) == ({}, 1)


def test_acknowledged_outputs_are_sent_while_the_batch_runs(office: Any) -> None:
    """They do not wait for the others."""
    batch = perkey.Batch(max_records=2, linger_s=0, ack="explicit")
    desk = office(batch=batch, ahead=0)
    works = desk.poll(2)
    desk.hear(desk.child, Reply(list(desk.child.given)[1], "acked", outputs=["out"]))
    assert states_of(works) == [states.RUNNING, states.SENDING]


def test_a_batch_that_failed_as_one_is_halved(office: Any) -> None:
    """`whole`: nobody knows whose fault it was."""
    desk = office(batch=perkey.Batch(max_records=4, linger_s=0), ahead=0)
    works = desk.poll(4)
    numbers = list(desk.child.given)
    desk.halt()
    failed = [Reply(number, "failed", error=ERROR) for number in numbers]
    desk.hear(desk.child, BatchReply(numbers[0], failed, whole=True))
    assert {work.failure.batch_max for work in works} == {2}


def test_a_worker_that_dies_takes_the_running_record_alone(office: Any) -> None:
    """What it had not begun goes to its successor, in its order; the running one has failed."""
    desk = office(retry=perkey.Retry(attempts=5, delay_s=60))
    first, works = desk.child, desk.poll(3)
    desk.begin(works[1])
    desk.executor._died(first)
    assert states_of(works) == [states.RUNNING, states.RETRYING, states.RUNNING]
    assert works[1].failure.error.type == "WorkerDied"
    assert works[1].failure.error.message.endswith("was killed by SIGKILL, 1 of 2 times")
    desk.executor._dispatch_now()
    assert desk.child is not first
    assert given(desk.child) == [works[0], works[2]]
    desk.executor._died(first)  # said twice: it is gone already
    assert len(Child.made) == 2


def test_a_record_that_kills_its_worker_twice_is_given_up(office: Any) -> None:
    """However many attempts its policy has."""
    desk = office(retry=perkey.Retry(attempts=50, delay_s=0))
    (work,) = desk.poll(1)
    for _ in range(2):
        desk.begin(work)
        desk.executor._died(desk.child)
        desk.bench.ticked()
        desk.executor._dispatch_now()
    assert work.state == states.PARKED
    assert work.failure.attempts == 2


@pytest.mark.parametrize("how", ["done", "outputs", "batch", "acked"])
def test_a_record_that_is_handled_has_killed_no_worker(office: Any, how: str) -> None:
    """A later death over it, after a rebalance, is its first again."""
    batch = perkey.Batch(max_records=1, linger_s=0, ack="explicit" if how == "acked" else "all")
    more = {"batch": batch} if how in ("batch", "acked") else {}
    desk = office(retry=perkey.Retry(attempts=50, delay_s=0), **more)
    (work,) = desk.poll(1)
    desk.begin(work)
    desk.executor._died(desk.child)
    desk.bench.ticked()
    desk.executor._dispatch_now()
    desk.begin(work)
    number = next(iter(desk.child.given))
    outputs = [OutMessage("out", b"v", None)] if how == "outputs" else None
    reply = Reply(number, "acked" if how == "acked" else "done", outputs)
    desk.hear(desk.child, BatchReply(number, [reply], whole=True) if how == "batch" else reply)
    assert work.state == (states.SENDING if how == "outputs" else states.DONE)
    assert desk.executor._deaths._counts == {}


@pytest.mark.parametrize(("once", "state"), [(False, states.QUEUED), (True, states.DONE)])
def test_the_record_after_a_time_out_is_innocent(office: Any, once: bool, state: int) -> None:
    """Its worker was killed for the call before it; at_most_once it may have been called."""
    options = {"delivery": "at_most_once", "on_exhausted": perkey.Skip()} if once else {}
    desk = office(ahead=0, retry=perkey.Retry(attempts=1), **options)
    (work,) = desk.poll(1)
    desk.begin(work)
    desk.halt()
    desk.child.killed_for = Item([work], batch=False)  # another call
    desk.executor._died(desk.child)
    assert work.state == state


def test_what_a_batch_acknowledged_before_its_worker_died_stays_done(office: Any) -> None:
    """Only the others have failed."""
    batch = perkey.Batch(max_records=2, linger_s=0, ack="explicit")
    desk = office(batch=batch, ahead=0, retry=perkey.Retry(attempts=3, delay_s=60))
    works = desk.poll(2)
    desk.begin(works[0])
    desk.hear(desk.child, Reply(next(iter(desk.child.given)), "acked"))
    desk.executor._died(desk.child)
    assert states_of(works) == [states.DONE, states.RETRYING]
    assert desk.free == 1


def test_workers_that_never_open_end_the_run(office: Any) -> None:
    """After so many one after another; one that opened in between begins the count anew."""
    desk = office()
    for number in range(2 * STARTS_MAX - 1):
        assert desk.failed == []
        if number == STARTS_MAX - 2:
            desk.hear(desk.child, Opened(None))
            desk.child.opened = True
        else:
            desk.child.opened = False
        desk.executor._died(desk.child)
    assert len(desk.failed) == 1
    assert "3 worker processes ended before they were ready" in desk.failed[0]


def test_a_worker_that_cannot_open_ends_the_run(office: Any) -> None:
    """With its error."""
    desk = office()
    desk.child.opened = False
    desk.hear(desk.child, Opened(ERROR))
    assert (desk.child.opened, len(desk.failed)) == (False, 1)
    assert desk.failed[0].endswith("its worker process cannot open: ValueError: bad")


def test_no_process_to_be_had_ends_the_run(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do about it."""
    desk = office()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "Link", refuse)
    desk.executor._died(Child.made[0])
    assert "raise the limit of processes, or lower concurrency=" in desk.failed[0]


def test_closing_ends_every_worker_and_starts_none(office: Any) -> None:
    """What dies afterwards is nobody's loss."""
    desk = office(concurrency=2)
    works = desk.poll(1)
    desk.executor.close()
    assert [(child.closed, child.killed) for child in Child.made] == [(True, True)] * 2
    desk.executor._died(Child.made[0])
    desk.executor._dispatch_now()
    assert (len(Child.made), states_of(works)) == (2, [states.RUNNING])


def test_what_waits_behind_a_slow_call_is_taken_back(office: Any) -> None:
    """Another worker has time; the call at hand is let be."""
    desk = office(concurrency=2, ahead=2)
    works = desk.poll(4)
    slow = Child.made[0]
    slow.slow = True
    slow.at_hand = next(iter(slow.given))
    behind = list(slow.given)[1:]
    assert behind
    desk.executor._dispatch_now()
    assert slow.sent[-1] == Drop(behind)
    assert states_of(works) == [states.RUNNING] * 4


def test_an_idle_worker_wakes_the_dispatcher(office: Any) -> None:
    """One that is about to be fed, or has enough, does not."""
    desk = office()
    desk.bench.poll(1)
    assert desk.executor._tokens.qsize() == 1
    desk.executor._dispatch_now()
    desk.executor._tokens.get()
    desk.child.feeding = True
    desk.bench.poll(1)
    assert desk.executor._tokens.empty()


def test_the_span_of_a_failed_attempt_goes_with_the_next(office: Any) -> None:
    """To whichever worker has it; with a first attempt none."""
    desk = office(retry=perkey.Retry(attempts=3, delay_s=0, jitter=0))
    (work,) = desk.poll(1)
    assert desk.child.sent[-1].failed is None
    (number,) = desk.child.given
    desk.hear(desk.child, Reply(number, "failed", error=ERROR, span=(1, 2, 3)))
    desk.bench.door.call(lambda engine, now: engine.tick(now + 60.0))
    desk.executor._dispatch_now()
    assert given(desk.child) == [work]
    assert desk.child.sent[-1].failed == {desk.child.numbers()[0]: (1, 2, 3)}


def test_workers_without_spans_are_reported_once(
    office: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where this process has a tracer provider and the workers have none."""
    monkeypatch.setattr(call_ends, "tracing_of", lambda _group: object())
    desk = office()
    desk.hear(desk.child, Opened(None, traced=True))
    assert caplog.messages == []
    desk.hear(desk.child, Opened(None))
    desk.hear(desk.child, Opened(None))
    (told,) = caplog.messages
    assert told.startswith("no spans of worker processes")


def test_all_workers_have_one_time_to_end_together(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten that are suspended delay a stop as one does."""
    clock = count()  # at each look a second has passed
    work = office(concurrency=10)
    monkeypatch.setattr(module, "CLOSE_S", 3.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(Process, "waited", [])
    work.executor.close()
    assert all(child.closed and child.killed for child in Child.made)
    assert Process.waited == [2.0, 1.0, *[0.0] * 8] * 2
