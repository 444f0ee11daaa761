"""A call of a batch handler, and the two executors of such calls in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from perkey.core.events import AT_MOST_ONCE, Ended, Returned, Unhandled
from perkey.core.partition import Partition
from perkey.core.states import RUNNING
from perkey.core.work import Work
from perkey.decoding import all_decoded
from perkey.runtime.calls import stacks
from perkey.runtime.calls.deadlines import AttemptTimeout, Deadlines, note_acknowledged
from perkey.runtime.calls.invoke import BadReturn, failed, messages_of
from perkey.runtime.calls.record_batch import Acks, Nacked, RecordBatch
from perkey.runtime.calls.threads import WorkerThreads
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan, handled, may_call
from perkey.runtime.shared import SharedOutputs
from perkey.types import Record

if TYPE_CHECKING:
    from perkey.kafka.ports import OutMessage

#: interval in which acknowledgements of a running batch reach the engine; the polling thread
#: reports the last ones
FLUSH_S = 0.02


class BatchCall:
    """One call of a batch handler and its acknowledgements so far."""

    def __init__(self, plan: HandlerPlan, door: Door, works: Sequence[Work]) -> None:
        self.plan = plan
        self.works = list(works)
        #: the core's call; a record that was acknowledged may be in another one later
        self.call = works[0].call
        self.explicit = plan.spec.batch is not None and plan.spec.batch.ack == "explicit"
        self.batch: RecordBatch
        self._warned = threading.Event()
        self.began = time.perf_counter()
        #: the call's contextvars stay private
        self.context = Context()
        #: the task of an async call, once it has started
        self.task: asyncio.Task[None] | None = None
        #: its time-out has passed
        self.expired = False
        #: all of its partitions were revoked: it ends, and unfinished records are returned
        self.dropped = False
        #: its records whose partitions are revoked, or all when the app stops
        self.leaving: set[Work] = set()
        self._door = door
        self._acks = Acks([work.record for work in works], plan.spec.ordering)
        self._fresh: deque[tuple[Work, list[OutMessage]]] = deque()
        self._flushed_at = self.began
        self._flushing = threading.Lock()

    # -- before the call ---------------------------------------------------------------------------

    def prepare(self, decode: Callable[[Record], Record] | None) -> RecordBatch | None:
        """The batch to call with; None if there is no call, which has then been reported."""
        if not self.may_begin():
            self.give_back()
            return None
        records = [work.record for work in self.works]
        return self.made(*self.context.run(all_decoded, records, decode))

    def made(self, records: list[Record], bad: dict[int, BaseException]) -> RecordBatch | None:
        """The same after decoding: `bad` are records that failed it."""
        if not bad:
            self.batch = RecordBatch(self, records, self._warned)
            return self.batch
        # Only those records failed; the others are batched again.
        ends: list[Ended] = [
            failed(work, bad[index]) if index in bad else Unhandled(work)
            for index, work in enumerate(self.works)
        ]
        self._report([], ends, whole=False)
        return None

    def may_begin(self) -> bool:
        """Whether this member still owns its records, as far as known."""
        once = self.plan.spec.delivery == AT_MOST_ONCE
        return self._door.trusted() and all(may_call(w, at_most_once=once) for w in self.works)

    def give_back(self) -> None:
        """Return its records: it has not started and will not."""
        self._report([], [Unhandled(work) for work in self.works], whole=False)

    # -- during the call ---------------------------------------------------------------------------

    def ack(self, index: int, outputs: Any) -> None:
        """See RecordBatch.ack."""
        self._acks.check(index)
        work = self.works[index]
        messages = [] if outputs is None else messages_of(work.record, outputs, self.plan.output)
        if not self._acks.ack(index, lambda: self._fresh.append((work, messages))):
            return
        now = time.perf_counter()
        if now - self._flushed_at > FLUSH_S or self.batch.cancelled:
            self._flushed_at = now
            self.flush()

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """See RecordBatch.nack."""
        self._acks.nack(index, error)

    def flush(self) -> None:
        """Report to the engine what was acknowledged since the last report."""
        # The handler's thread and the polling thread may both flush: what one takes must not
        # reach the engine after what the other took later.
        with self._flushing:
            done, ended = self._take_fresh()
            if done or ended:
                self.plan.called(handled(done, ended), self.began)
                self._door.post(lambda engine, now: engine.batch_progressed(now, done, ended))

    def flush_late(self) -> None:
        """Report acknowledgements that no later one has reported so far."""
        if self._fresh and time.perf_counter() - self._flushed_at > FLUSH_S:
            self.flush()

    def _take_fresh(self) -> tuple[list[Work], list[Ended]]:
        fresh = [self._fresh.popleft() for _ in range(len(self._fresh))]
        done = [work for work, messages in fresh if not messages]
        ended: list[Ended] = [Returned(work, messages) for work, messages in fresh if messages]
        return done, ended

    @property
    def timeout_s(self) -> float | None:
        """The current time-out."""
        return self.works[0].partition.handler.timeout_s

    def touches(self, partitions: Sequence[Partition]) -> bool:
        """Whether it holds a record of one of these."""
        return any(work.partition in partitions for work in self.works)

    def stays(self) -> bool:
        """Whether it has unfinished records that this member keeps: none may be handled twice."""
        return any(
            self.works[index].state == RUNNING and self.works[index] not in self.leaving
            for index in self._acks.left()
        )

    # -- the end of the call -----------------------------------------------------------------------

    def returned(self, value: Any) -> None:
        """The handler returned."""
        self.plan.timed(time.perf_counter() - self.began, self.works[-1])
        if self.expired:
            self.raised(AttemptTimeout(f"ran longer than timeout_s={self.timeout_s}"))
        elif self.explicit and value is not None:
            self.raised(
                BadReturn("an explicit batch handler returns None: give outputs to batch.ack(...)")
            )
        elif self.explicit:
            self._end(Nacked("not acknowledged when the handler returned"))
        else:
            messages: list[OutMessage] = []
            try:
                if value is not None:  # in the call's context: a generator runs only now
                    record, output = self.works[0].record, self.plan.output
                    messages = self.context.run(messages_of, record, value, output)
            except BaseException as error:
                self.raised(error)
                return
            if not messages:
                self._report(self.works, [], whole=False, returned=value)
                return
            # One set of outputs for all: no record is done before all of it is stored.
            shared = SharedOutputs(messages, len(self.works))
            ended = [Returned(work, shared) for work in self.works]
            self._report([], ended, whole=False, returned=value)

    def raised(self, error: BaseException) -> None:
        """The handler raised, or failed in another way."""
        if self.dropped and self.plan.spec.delivery != AT_MOST_ONCE:
            self._end(None)
        elif self.explicit:
            self._end(error)
        else:
            self._report([], [failed(work, error) for work in self.works], whole=True)

    def _end(self, error: BaseException | None) -> None:
        """Explicit: what is not acknowledged is nacked, each with its own attempt count."""
        ends: list[Ended] = []
        for index in self._acks.end():
            work, reason = self.works[index], self._acks.why(index, error)
            cancelled = Unhandled(work, cancelled=work in self.leaving)
            ends.append(cancelled if reason is None else failed(work, reason))
        with self._flushing:
            done, acked = self._take_fresh()
            self._report(done, [*acked, *ends], whole=False)

    def _report(
        self, done: Sequence[Work], ended: Sequence[Ended], *, whole: bool, returned: Any = None
    ) -> None:
        self._acks.end()
        self.plan.called(handled(done, ended), self.began, returned)
        self._door.batch_ended(self.works, done, ended, whole=whole)


class _Calls:
    """The running calls of a batch executor."""

    def __init__(self) -> None:
        self._running: dict[BatchCall, None] = {}
        self._lock = threading.Lock()

    def add(self, call: BatchCall) -> None:
        with self._lock:
            self._running[call] = None

    def remove(self, call: BatchCall) -> None:
        with self._lock:
            self._running.pop(call, None)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Notify batches of these partitions, or all, and collect their acknowledgements."""
        for call in self.all():
            if partitions is None or call.touches(partitions):
                call.batch.cancel_event.set()
                call.flush()

    def flush_late(self) -> None:
        """On the polling thread: a handler may acknowledge, and then wait for an hour."""
        for call in self.all() if self._running else ():
            call.flush_late()

    def of(self, work: Work) -> BatchCall | None:
        """The call that runs it: the latest, as an earlier one may have acknowledged it."""
        return next((call for call in reversed(self.all()) if work in call.works), None)

    def all(self) -> list[BatchCall]:
        with self._lock:
            return list(self._running)


class _BatchExecutor(Executor):
    """Its running calls acknowledge records before they end."""

    _door: Door
    _calls: _Calls

    def _note(self, call: BatchCall) -> None:
        note_acknowledged(self._door, call.works, call.call)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Notify running batches that these partitions are revoked."""
        self._calls.warn(partitions)

    def flush(self) -> None:
        """Report what running batches have acknowledged."""
        self._calls.flush_late()


class BatchThreads(_BatchExecutor, WorkerThreads["list[Work]"]):
    """Calls a plain batch handler on worker threads."""

    def __init__(
        self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        WorkerThreads.__init__(self, plan, door, loop)
        self._calls = _Calls()
        # A running call cannot be ended: it counts as failed when it returns.
        self._deadlines = Deadlines[BatchCall](plan, door, self._note)

    def start_batch(self, works: list[Work]) -> None:
        """Call the handler once with these."""
        self.put([works])

    def _call(self, item: list[Work], _context: Context) -> bool:
        call = BatchCall(self._plan, self._door, item)
        batch = call.prepare(self._decode)
        if batch is None:
            return False
        self._calls.add(call)
        if timed := self._deadlines.handler.timeout_s is not None:
            self._deadlines.began(call)
        try:
            value = call.context.run(self._plan.function, batch)
        except BaseException as error:
            if timed:
                self._deadlines.ended(call)
            call.raised(error)
        else:
            call.expired = timed and self._deadlines.ended(call)
            call.returned(value)
        finally:
            self._calls.remove(call)
        return False  # the call reports itself


class BatchTasks(_BatchExecutor):
    """Calls an async batch handler, with one task per call."""

    def __init__(self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._plan = plan
        self._door = door
        self._loop = loop
        self._calls = _Calls()
        self._deadlines = Deadlines[BatchCall](plan, door, self._expired)
        self._closed = False
        self._loop_thread = 0
        decoding = plan.decoding
        waits = decoding is not None and decoding.waits
        self._decode = decoding.here if decoding and not waits else None
        #: decodes within the call, because that may wait
        self._waiting = decoding if waits else None

    def start_batch(self, works: list[Work]) -> None:
        """Call the handler once with these; any thread."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._begin, works)

    def _begin(self, works: list[Work]) -> None:
        self._loop_thread = threading.get_ident()
        call = BatchCall(self._plan, self._door, works)
        if self._closed:
            call.give_back()
            return
        batch = call.prepare(self._decode)
        if batch is None:
            return
        self._calls.add(call)
        # The task gets a copy of the context in which it is created.
        call.context.run(self._loop.create_task, self._run(call, batch))

    async def _run(self, call: BatchCall, batch: RecordBatch) -> None:
        call.task = asyncio.current_task()
        try:
            if call.dropped or not call.may_begin():
                call.give_back()
                return
            call.began = time.perf_counter()
            if self._deadlines.handler.timeout_s is not None:
                self._deadlines.began(call)
            if self._waiting is not None:
                decoded = await self._waiting.all_awaited(batch)
                if (found := call.made(*decoded)) is None:
                    return
                batch = found
            value = await self._plan.function(batch)
        except BaseException as error:
            call.expired = self._deadlines.ended(call)
            timed_out = AttemptTimeout(f"no answer within timeout_s={call.timeout_s}")
            call.raised(timed_out if call.expired else error)
        else:
            call.expired = self._deadlines.ended(call)
            call.returned(value)
        finally:
            call.task = None
            self._deadlines.ended(call)  # it could not be decoded
            self._calls.remove(call)

    def _expired(self, call: BatchCall) -> None:
        self._note(call)
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._end, call)

    def cancel(self, work: Work) -> None:
        """End the call that holds this record, if it has no other that stays; any thread."""
        with suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._cancel, work)

    def _cancel(self, work: Work) -> None:
        call = self._calls.of(work)
        if call is None:
            return
        call.leaving.add(work)
        # exactly_once: a record that is handled again shows nowhere, but outputs for records that
        # another member owns would.
        if self._plan.spec.exact or not call.stays():
            call.dropped = True
            self._end(call)

    @staticmethod
    def _end(call: BatchCall) -> None:
        """A task that has not started never sees its cancellation: it checks by itself."""
        if call.task is not None:
            call.task.cancel()

    def close(self) -> None:
        """Start no more calls."""
        self._closed = True

    def blocking(self) -> Work | None:
        """The first record of the batch whose call runs on the loop right now, if one does."""
        for call in self._calls.all():
            coroutine: Any = None if call.task is None else call.task.get_coro()
            if coroutine is not None and coroutine.cr_running and call.works:
                return call.works[0]
        return None

    def stack(self, where: stacks.Where) -> list[str]:
        """Where the call of this record's batch is now."""
        for call in self._calls.all():
            if stacks.is_of(call.works, where) and (task := call.task) is not None:
                waits = stacks.of_coroutine(task.get_coro())
                inside = BatchTasks._run.__code__
                return waits or stacks.of_thread(self._loop_thread, inside=inside)
        return []
