"""The core over the records of one Spark task: lanes, slots, retries; no Kafka and no commits.

The task's own thread feeds records and takes finished ones; handlers run on a loop or on threads as
in any member. A timer thread wakes for retries and time-outs, because the task's thread blocks
while Spark takes its rows.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from perkey import guard
from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.events import (
    ALL_STARTS_PER_S,
    Assignment,
    Limits,
    OutputsAnswer,
)
from perkey.core.partition import Partition
from perkey.core.states import RUNNING
from perkey.core.work import Work
from perkey.errors import FatalError
from perkey.options import HandlerOptions
from perkey.policies import Commit
from perkey.runtime.calls.executors import Executors
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.logs import traced
from perkey.runtime.member.outputs import dead_letter
from perkey.spark.processing.ahead import Ahead
from perkey.spark.processing.intake import RowGroup
from perkey.spark.processing.leftovers import Key
from perkey.spark.processing.rows import Outputs, message_bytes
from perkey.spark.processing.typed import as_json
from perkey.types import TopicPartition

_log = logging.getLogger("perkey.spark")

#: Nothing is committed and nothing paused: the task itself bounds its intake.
NO_BOUNDS = Limits(
    buffer_records=2**60, buffer_bytes=2**60, commit=Commit(interval_s=1e15), map_chars=2**40
)
#: bytes of outputs that Spark has not taken yet; above it no further record starts
OUTPUT_BYTES_HELD_MAX = 32 * 2**20
TICK_MAX_S = 3_600.0


class TaskLanes:
    """Calls the handler for records and collects the results."""

    def __init__(
        self,
        options: HandlerOptions,
        plan: HandlerPlan,
        loop: asyncio.AbstractEventLoop | None,
        group: str = "",
    ) -> None:
        """`loop`: where async functions run; None if there are none. `group`: of the app."""
        self._name, self._group = plan.spec.name, group
        #: durations of calls
        self.latency = plan.latency
        self._slow = SlowCalls()
        #: taken by the task's thread; appending and popping are atomic
        self._finished: deque[Work] = deque()
        #: `_enough` is set when this many are finished
        self._wanted = 1
        self._enough = threading.Event()
        engine = Engine([plan.spec], NO_BOUNDS)
        engine.report_batches()
        self._door = Door(engine, self._perform)
        self._fatal: fx.Fatal | None = None
        self._door.on_died = self._died
        self._ahead = None
        if (  # calls that do not wait need nothing of the core
            loop is not None
            and options.kind == "async"
            and plan.prefetch is None
            and not (plan.decoding is not None and plan.decoding.waits)
            and plan.spec.batch is None
            and plan.spec.rate_limit_per_s >= ALL_STARTS_PER_S
        ):
            self._ahead = Ahead(plan, loop)
        executors = Executors(self._door, lambda reason: None, loop, group, lifespan=None)
        self._executor = executors.of(options, plan)
        self._partitions: dict[TopicPartition, Partition] = {}
        #: outputs of finished records, until they are taken
        self._outputs: dict[Work, Outputs] = {}
        self._held_bytes = 0
        #: records fed and not taken yet
        self.outstanding = 0
        self._closed = False
        self._alarm = threading.Event()
        self._door.on_earlier = self._alarm.set
        guard.thread("perkey-clock", self._keep_time, self._died).start()

    # -- the task's thread -------------------------------------------------------------------------

    def feed(self, groups: Sequence[RowGroup], attempts: Mapping[Key, int] | None = None) -> None:
        """Pass records to the core; `attempts`: calls that have failed before."""
        batches = [(self._partition(g), g.records, g.sizes) for g in groups if g.records]
        self.outstanding += sum(len(records) for _, records, _ in batches)

        def polled(engine: Engine, now: float) -> None:
            if attempts:
                engine.halt(now, "feed", on=True)
            engine.polled(now, batches)
            if attempts:
                engine.resumed(attempts)
                engine.halt(now, "feed", on=False)

        self._door.post(polled)

    def ahead(self) -> Ahead | None:
        """Calls without the core, if the handler allows it and the core has no records."""
        return None if self.outstanding else self._ahead

    def stop_starting(self) -> None:
        """Let running calls finish, and start no more."""
        self._door.call(lambda engine, now: engine.halt(now, "deadline", on=True))

    def running(self) -> int:
        """How many records are in calls."""
        return self._door.call(lambda *_: sum(p.in_flight for p in self._partitions.values()))

    def unfinished(self) -> dict[Key, int]:
        """Records that were fed and are not finished, with their failed attempts."""
        return self._door.call(
            lambda *_: {
                work.record[:3]: work.attempts
                for partition in self._partitions.values()
                for work in partition.works()
            }
        )

    def waiting_bytes(self) -> int:
        """Sizes of the records that are not done."""
        return sum(partition.bytes for partition in self._partitions.values())

    def wait(self, count: int, timeout_s: float) -> None:
        """Wait until this many records, or all, are finished, or for the time-out."""
        self._wanted = max(1, min(count, self.outstanding))
        if len(self._finished) < self._wanted and self._fatal is None:
            self._enough.wait(timeout_s)
        self._enough.clear()
        self.check()
        if self._slow.is_due():
            self._door.call(lambda _, now: self._slow.look(self._partitions.values(), now))
            self._slow.tell(self._name)

    def check(self) -> None:
        """Raise FatalError if the policy is Stop and a record is exhausted."""
        if self._fatal is not None:
            error = self._fatal.error
            why = "" if error is None else f": {error.line}"
            raise FatalError(f"process: {self._fatal.reason}{why}")

    @property
    def finished_count(self) -> int:
        """How many records can be taken."""
        return len(self._finished)

    def take_finished(self) -> tuple[list[Work], dict[Work, Outputs]]:
        """The finished records, and the outputs of those that have some."""
        finished, outputs = self._finished, self._outputs
        works = [finished.popleft() for _ in range(len(finished))]
        self.outstanding -= len(works)
        taken = {work: outputs.pop(work) for work in works if work in outputs} if outputs else {}
        return works, taken

    def rows_left(self, size_bytes: int) -> None:
        """Spark has taken rows with this many bytes of outputs: release them."""

        def release(engine: Engine, now: float) -> None:
            self._held_bytes -= size_bytes
            if self._held_bytes <= OUTPUT_BYTES_HELD_MAX:
                engine.halt(now, "rows", on=False)

        self._door.post(release)

    def close(self) -> None:
        """Start no more calls."""
        self._closed = True
        self._executor.close()
        self._alarm.set()

    def _partition(self, group: RowGroup) -> Partition:
        where = (group.topic, group.partition)
        partition = self._partitions.get(where)
        if partition is None:
            new = Assignment(group.topic, group.partition, 0, group.records[0].offset)
            partition = self._door.call(lambda engine, now: engine.assigned(now, [new]))[0]
            self._partitions[where] = partition
        return partition

    # -- inside the door ---------------------------------------------------------------------------

    def _perform(self, effects: list[fx.Effect]) -> None:
        answers: list[OutputsAnswer] = []
        for effect in effects:
            match effect:
                case fx.Start(_, works, together):
                    start = self._executor.start_batch if together else self._executor.start
                    start(works)
                case fx.Send(work, outputs):
                    answers.append(self._kept(work, outputs))
                case fx.BatchFinished(works):
                    self._finish(works)
                case fx.Troubled(work, "skipped"):
                    self._finish([work])
                case fx.SendDeadLetter(work, topic, error):
                    letter = dead_letter(work, topic, error, self._group)
                    value: object = letter.value
                    if isinstance(value, dict):  # fields; a topic takes bytes
                        letter = letter._replace(value=as_json(value))
                    answers.append(self._kept(work, [letter]))
                case fx.Note(level, what, fields):
                    traced(_log, level, what, fields)
                case fx.Fatal():
                    self._fatal = effect
                    self._enough.set()
        if answers:
            self._door.post(lambda engine, now: self._answered(engine, now, answers))
        if self._held_bytes > OUTPUT_BYTES_HELD_MAX:
            self._door.post(lambda engine, now: engine.halt(now, "rows", on=True))
            self._enough.set()

    def _answered(self, engine: Engine, now: float, answers: Sequence[OutputsAnswer]) -> None:
        engine.outputs_answered(now, answers)
        self._finish([work for work, _, _ in answers])

    def _finish(self, works: Sequence[Work]) -> None:
        self._finished.extend(works)
        if len(self._finished) >= self._wanted:
            self._enough.set()

    def _kept(self, work: Work, outputs: Outputs) -> OutputsAnswer:
        """Outputs wait for their row; for the core they count as delivered."""
        self._outputs[work] = outputs
        self._held_bytes += message_bytes(outputs)
        return work, (), None

    # -- the timer thread --------------------------------------------------------------------------

    def _died(self, name: str, error: BaseException) -> None:
        guard.log_death(name, error)
        self._fatal = fx.Fatal(f"thread {name} died: {type(error).__name__}: {error}", None)
        self._enough.set()

    def _keep_time(self) -> None:
        def tick(_engine: Engine, now: float) -> float:
            self._door.tick(now)
            self._door.wakes_at = self._door.next_due()
            return self._door.wakes_at - now

        while True:
            self._alarm.clear()
            if self._closed:  # checked after the clear: `close` sets the alarm last
                return
            wait_s = self._door.call(tick)
            self._alarm.wait(max(0.0, min(wait_s, TICK_MAX_S)))


# -- slow ------------------------------------------------------------------------------------------

#: A call that has run so long is logged, and again at this interval.
SLOW_S = 60.0
#: Interval of checks; a call counts as running only after two checks have seen it.
LOOK_EVERY_S = 15.0


class SlowCalls:
    """One line in the executor's log for very long calls: a waiting task logs nothing."""

    def __init__(self) -> None:
        self._next_look = time.monotonic() + LOOK_EVERY_S
        self._next_line = 0.0
        #: call (record and failed attempts so far) -> when it was first seen
        self._seen: dict[tuple[Work, int], float] = {}

    def is_due(self) -> bool:
        """Whether it is time for a check."""
        return time.monotonic() >= self._next_look

    def look(self, partitions: Iterable[Partition], now: float) -> None:
        """Note which calls run. Inside the door."""
        self._next_look = now + LOOK_EVERY_S
        running = [
            (work, work.attempts)
            for partition in partitions
            for work in partition.works()
            if work.state == RUNNING
        ]
        self._seen = {call: self._seen.get(call, now) for call in running}

    def tell(self, name: str) -> None:
        """Log one line about the oldest call, if it is slow."""
        now = time.monotonic()
        slow = sorted(since for since in self._seen.values() if now - since >= SLOW_S)
        if not slow or now < self._next_line:
            return
        self._next_line = now + SLOW_S
        (work, attempts), since = min(self._seen.items(), key=lambda item: item[1])
        fields = {
            "handler": name, "record": repr(work.record), "attempt": attempts + 1,
            "running_s": round(now - since), "slow_calls": len(slow),
            "next": "timeout_s= ends such calls",
        }  # fmt: skip
        traced(_log, "warning", "slow call", fields)
