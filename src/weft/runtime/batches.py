"""Batch handlers: the `RecordBatch` they are given, and the two executors that call them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.core.endings import Ended, GivenBack, Returned
from weft.core.partition import Partition
from weft.core.spec import AT_MOST_ONCE, UNORDERED
from weft.core.work import LaneKey, Work
from weft.errors import OutOfOrder
from weft.runtime.aio import AttemptTimeout
from weft.runtime.door import Door
from weft.runtime.invoke import BadReturn, Undecodable, decoded, failed, outputs_of
from weft.runtime.plan import HandlerPlan, call_of, may_call
from weft.runtime.record_batch import Nacked, RecordBatch
from weft.runtime.shared import SharedOutputs
from weft.runtime.threads import WorkerThreads

if TYPE_CHECKING:
    from weft.kafka.ports import OutMessage

FLUSH_S = 0.02  # acknowledgements of a running batch reach the engine at least this often


class BatchCall:
    """One call of a batch handler and what is acknowledged of it so far."""

    def __init__(self, plan: HandlerPlan, door: Door, works: Sequence[Work]) -> None:
        self.plan = plan
        self.works = list(works)
        self.explicit = plan.spec.batch is not None and plan.spec.batch.ack == "explicit"
        self.batch: RecordBatch
        self.began = time.perf_counter()
        self.expired = False
        self.dropped = False
        self._door = door
        self._acked = [False] * len(works)
        self._nacks: dict[int, BaseException | None] = {}
        self._before = _earlier_in_lane(works, ordered=plan.spec.ordering != UNORDERED)
        self._fresh: deque[tuple[Work, list[OutMessage]]] = deque()
        self._flushed_at = self.began
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._over = False

    # -- before the call ---------------------------------------------------------------------------

    def prepare(self) -> RecordBatch | None:
        """The batch to call with; records that cannot be decoded have failed already."""
        at_most_once = self.plan.spec.delivery == AT_MOST_ONCE
        if not all(may_call(work, at_most_once=at_most_once) for work in self.works):
            self._give_back()
            return None
        records = []
        for work in self.works:
            if self.plan.decode is None:
                records.append(work.record)
                continue
            try:
                records.append(decoded(work.record, self.plan.decode))
            except Undecodable as error:
                self._undecodable(work, error)
                return None
        self.batch = RecordBatch(self, records)
        return self.batch

    def _give_back(self) -> None:
        self._report([], [GivenBack(work) for work in self.works], whole=False)

    def _undecodable(self, bad: Work, error: Undecodable) -> None:
        """One bad value: only that record failed, the others are gathered again."""
        retry = self.plan.retry
        ends: list[Ended] = [
            failed(work, error, retry) if work is bad else GivenBack(work) for work in self.works
        ]
        self._report([], ends, whole=False)

    # -- during the call ---------------------------------------------------------------------------

    def ack(self, index: int, outputs: Any) -> None:
        """See RecordBatch.ack."""
        before = self._before[index]
        if before is not None and not self._acked[before]:
            raise OutOfOrder(
                f"{self.works[before].record!r} comes before {self.works[index].record!r} in its "
                "lane and is not acknowledged"
            )
        work = self.works[index]
        messages = [] if outputs is None else outputs_of(work, outputs, self.plan.output)
        with self._lock:
            if self._over or self._acked[index]:
                return  # after the call has ended the record is somebody else's
            self._acked[index] = True
            self._nacks.pop(index, None)
            self._fresh.append((work, messages))
        now = time.perf_counter()
        if now - self._flushed_at > FLUSH_S or self.batch.cancelled:
            self._flushed_at = now
            self.flush()

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """See RecordBatch.nack."""
        if self._acked[index]:
            raise ValueError(f"{self.works[index].record!r} is acknowledged already")
        self._nacks[index] = Nacked(error) if isinstance(error, str) else error

    def flush(self) -> None:
        """Tell the engine what was acknowledged since the last time."""
        # The handler's thread and the polling thread may both flush: what is taken by one must
        # not reach the engine behind what the other took later.
        with self._flushing:
            done, ended = self._take_fresh()
            if done or ended:
                self._door.post(lambda engine, now: engine.batch_progressed(now, done, ended))

    def _take_fresh(self) -> tuple[list[Work], list[Ended]]:
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        done = [work for work, messages in fresh if not messages]
        ended: list[Ended] = [Returned(work, messages) for work, messages in fresh if messages]
        return done, ended

    def touches(self, partitions: Sequence[Partition]) -> bool:
        """Whether it holds a record of one of these."""
        return any(work.partition in partitions for work in self.works)

    # -- the end of the call -----------------------------------------------------------------------

    def returned(self, value: Any) -> None:
        """The handler returned."""
        self._remember(value)
        if self.expired:
            self.raised(AttemptTimeout(f"ran longer than timeout_s={self.plan.spec.timeout_s}"))
        elif self.explicit and value is not None:
            self.raised(
                BadReturn("an explicit batch handler returns None: give outputs to batch.ack(...)")
            )
        elif self.explicit:
            self._end(Nacked("not acknowledged when the handler returned"))
        else:
            self._done_together(value)

    def _done_together(self, value: Any) -> None:
        try:
            messages = [] if value is None else outputs_of(self.works[0], value, self.plan.output)
        except Exception as error:
            self.raised(error)
            return
        if not messages:
            self._report(self.works, [], whole=False)
            return
        # One set of outputs for all: none of the records is done before all of it is stored.
        shared = SharedOutputs(messages, len(self.works))
        self._report([], [Returned(work, shared) for work in self.works], whole=False)

    def raised(self, error: BaseException) -> None:
        """The handler raised, or did as badly."""
        if self.dropped and self.plan.spec.delivery != AT_MOST_ONCE:
            self._end(None)
        elif self.explicit:
            self._end(error)
        else:
            retry = self.plan.retry
            self._report([], [failed(work, error, retry) for work in self.works], whole=True)

    def _end(self, error: BaseException | None) -> None:
        """Explicit: what is not acknowledged is nacked, each with its own attempt count."""
        with self._lock:
            self._over = True
            left = [i for i, acked in enumerate(self._acked) if not acked]
        ends: list[Ended] = []
        for index in left:
            work = self.works[index]
            reason = self._nacks.get(index) or error
            if reason is None:
                ends.append(GivenBack(work))
            else:
                ends.append(failed(work, reason, self.plan.retry))
        with self._flushing:
            done, acked = self._take_fresh()
            self._report(done, [*acked, *ends], whole=False)

    def _report(self, done: Sequence[Work], ended: Sequence[Ended], *, whole: bool) -> None:
        with self._lock:
            self._over = True
        handler = self.works[0].partition.handler.index
        self._door.post(
            lambda engine, now: engine.batch_ended(now, handler, done, ended, whole=whole)
        )

    def _remember(self, value: Any) -> None:
        ended = time.perf_counter()
        self.plan.latency.add(ended - self.began)
        if self.plan.calls is not None:
            call = call_of(self.began, ended, value)
            self.plan.calls.update(dict.fromkeys(self.works, call))


def _earlier_in_lane(works: Sequence[Work], *, ordered: bool) -> list[int | None]:
    """For each record, the one before it in its lane within this batch."""
    last: dict[tuple[Partition, LaneKey], int] = {}
    before: list[int | None] = []
    for index, work in enumerate(works):
        lane = (work.partition, work.partition.lane_key(work.record))
        before.append(last.get(lane) if ordered else None)
        last[lane] = index
    return before


class _Calls:
    """The calls of a batch executor that are running."""

    def __init__(self) -> None:
        self.running: dict[Work, BatchCall] = {}
        self._lock = threading.Lock()

    def add(self, call: BatchCall) -> None:
        with self._lock:
            self.running[call.works[0]] = call

    def remove(self, call: BatchCall) -> None:
        with self._lock:
            self.running.pop(call.works[0], None)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Tell batches of these partitions, or all, and take what they have acknowledged."""
        with self._lock:
            calls = list(self.running.values())
        for call in calls:
            if partitions is None or call.touches(partitions):
                call.batch.cancel_event.set()
                call.flush()

    def of(self, work: Work) -> BatchCall | None:
        with self._lock:
            calls = list(self.running.values())
        return next((call for call in calls if work in call.works), None)


class BatchThreads(WorkerThreads["list[Work]"]):
    """Calls a plain batch handler on worker threads."""

    def __init__(self, plan: HandlerPlan, door: Door) -> None:
        super().__init__(plan, door)
        self._calls = _Calls()

    def start_batch(self, works: list[Work]) -> None:
        """Call the handler once with these."""
        self.put([works])

    def start(self, works: Sequence[Work]) -> None:
        """Batch handlers are only given batches."""
        raise AssertionError(f"{len(works)} single records for a batch handler")

    def cancel(self, work: Work, *, expired: bool) -> None:
        """A running call cannot be ended: it counts as failed when it returns."""
        call = self._calls.of(work)
        if call is not None and expired:
            call.expired = True

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Tell running batches that these partitions go away."""
        self._calls.warn(partitions)

    def _call(self, item: list[Work]) -> None:
        call = BatchCall(self._plan, self._door, item)
        batch = call.prepare()
        if batch is None:
            return
        self._calls.add(call)
        try:
            value = self._plan.function(batch)
        except BaseException as error:
            call.raised(error)
        else:
            call.returned(value)
        finally:
            self._calls.remove(call)


class BatchTasks:
    """Calls an async batch handler, a task for each call: a batch pays for it."""

    def __init__(self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._plan = plan
        self._door = door
        self._loop = loop
        self._calls = _Calls()
        self._tasks: dict[BatchCall, asyncio.Task[None]] = {}
        self._closed = False

    def start(self, works: Sequence[Work]) -> None:
        """Batch handlers are only given batches."""
        raise AssertionError(f"{len(works)} single records for a batch handler")

    def start_batch(self, works: list[Work]) -> None:
        """Call the handler once with these; any thread."""
        self._loop.call_soon_threadsafe(self._begin, works)

    def _begin(self, works: list[Work]) -> None:
        call = BatchCall(self._plan, self._door, works)
        batch = call.prepare()
        if batch is None or self._closed:
            return
        self._calls.add(call)
        self._tasks[call] = self._loop.create_task(self._run(call, batch))

    async def _run(self, call: BatchCall, batch: RecordBatch) -> None:
        try:
            value = await self._plan.function(batch)
        except BaseException as error:
            timed_out = AttemptTimeout(f"no answer within timeout_s={self._plan.spec.timeout_s}")
            call.raised(timed_out if call.expired else error)
        else:
            call.returned(value)
        finally:
            self._calls.remove(call)
            del self._tasks[call]

    def cancel(self, work: Work, *, expired: bool) -> None:
        """End the call that holds this record; any thread."""
        try:
            self._loop.call_soon_threadsafe(partial(self._cancel, work, expired=expired))
        except RuntimeError:
            return  # the loop is closed: nothing runs any more

    def _cancel(self, work: Work, *, expired: bool) -> None:
        call = self._calls.of(work)
        task = None if call is None else self._tasks.get(call)
        if call is not None and task is not None:
            call.expired, call.dropped = expired, not expired
            task.cancel()

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Tell running batches that these partitions go away."""
        self._calls.warn(partitions)

    def close(self) -> None:
        """Start nothing more."""
        self._closed = True
