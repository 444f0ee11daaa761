"""Call `async def` handlers on one event loop.

A fixed set of worker coroutines takes records from a queue; none is created per record. A handler
that does not wait ends within one step of its worker, which then takes the next record: no task, no
future, no iteration of the loop. Only when a handler first waits are further workers woken. Each
call runs in a separate context (contextvars), which is reused for the next call as long as nothing
was set in it.
"""

from __future__ import annotations

import asyncio
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from typing import Any, Protocol

from perkey.core.events import AT_MOST_ONCE, Unhandled
from perkey.core.partition import Partition
from perkey.core.states import RUNNING
from perkey.core.work import Work
from perkey.runtime.calls import stacks
from perkey.runtime.calls.deadlines import AttemptTimeout, Deadlines
from perkey.runtime.calls.invoke import failed, report_returned
from perkey.runtime.calls.pace import Pace
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan
from perkey.runtime.histogram import FRESH_MAX

SLICE_S = 0.005  # a worker whose handlers never wait yields to the loop this often
TOGETHER = 50  # calls that end in one pass of the loop are reported when they are this many
LOOK_EVERY = 32  # records between two looks at the clock, at most
LOOK_S = 100e-6  # and the time, as long as calls take about as long as the last ones

EXPIRED = "expired"  # cancelled by its time-out
DROPPED = "dropped"  # cancelled because its partition was revoked or the app stops


#: a burst awaits this for a context in which nothing is set
_FRESH = object()
#: and this to let the loop run whatever else is ready, between two calls
_AWAY = object()
_AWAY_ONCE = (_AWAY,)


@types.coroutine
def fresh_context() -> Generator[Any, Any, None]:
    """Within `in_contexts`: the next call gets a separate context."""
    yield _FRESH


class NextPass:
    """Awaited within `in_contexts`: continue with the next pass of the loop.

    No call waits meanwhile. One object for all: a coroutine for each costs more than the rest.
    """

    def __await__(self) -> Generator[Any, Any, None]:
        return iter(_AWAY_ONCE)  # type: ignore[return-value]  # an iterator is enough


NEXT_PASS = NextPass()


class InContext(Protocol):
    """The state of a burst."""

    #: the context of its current call
    context: Context
    #: one of its calls has waited
    waited: bool


@types.coroutine
def in_contexts(
    worker: InContext, calls: Coroutine[Any, Any, None], suspended: Callable[[], None]
) -> Generator[Any, Any, None]:
    """Run a burst within the awaiting task, each of its calls in a separate context.

    `suspended` is called whenever one of the calls waits.
    """
    worker.context = Context()
    step: Callable[[Any], Any] = calls.send
    value: Any = None
    while True:
        try:
            waits_for = worker.context.run(step, value)
        except StopIteration:
            return
        step, value = calls.send, None
        if waits_for is _FRESH:
            worker.context = Context()
            continue
        if waits_for is _AWAY:
            waits_for = None
        else:
            worker.waited = True
            suspended()
        try:
            value = yield waits_for
        except GeneratorExit:  # its loop has ended without it; the calls may be destroyed already
            worker.context.run(calls.close)
            raise
        except BaseException as error:  # a cancellation: the handler gets it first
            step, value = calls.throw, error


class _Worker:
    """One worker coroutine and its current work."""

    __slots__ = ("calls", "context", "mark", "task", "waited", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        #: the context of its current call, reused for the next one while nothing is set in it
        self.context = Context()
        #: its current burst, a coroutine that awaits that call
        self.calls: Any = None
        #: a call has waited since the worker read the clock: any time may have passed
        self.waited = False
        #: why its current call was cancelled; cleared when the call ends
        self.mark: str | None = None
        self.task: asyncio.Task[None] | None = None


class AsyncExecutor(Executor):
    """Runs one async handler on a loop that is already running in some thread."""

    def __init__(self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self._plan = plan
        self._door = door
        self._loop = loop
        self._ready: deque[Work] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: dict[_Worker, None] = {}
        self._woken = False
        self._turning = False
        self._flushing = False
        #: workers that are back with the next pass of the loop, each for one more record
        self._away = 0
        self._closed = False
        self._loop_thread = 0
        self._deadlines = Deadlines[Work](plan, door, self._expired)
        self._at_most_once = plan.spec.delivery == AT_MOST_ONCE
        #: while calls are granted ahead, a worker has its next record when its call ends, and one
        #: turn in each pass of the loop reports all that have ended in it
        self._pace = Pace(plan, door)
        #: until when, by the performance counter, no worker looks whether calls may still start
        self._trusted_until = -1.0
        decoding = plan.decoding
        waits = decoding is not None and decoding.waits
        self._function = decoding.around(plan.function) if decoding and waits else plan.function
        self._decode = decoding.here if decoding and not waits else None

    # -- from any thread ---------------------------------------------------------------------------

    def start(self, works: Sequence[Work]) -> None:
        """Call the handler for each; never blocks."""
        self._ready.extend(works)
        on_loop = threading.get_ident() == self._loop_thread
        # A worker in the middle of its turn takes from the queue itself; it wakes others only if
        # its handler waits.
        if self._woken or (on_loop and self._turning):
            return
        self._woken = True
        if on_loop:
            self._loop.call_soon(self._wake, 1)
        else:
            self._call_on_loop(lambda: self._wake(1))

    def cancel(self, work: Work) -> None:
        """End the attempt of this record, because its partition is revoked or the app stops."""
        self._call_on_loop(lambda: self._cancel(work, DROPPED))

    def _expired(self, work: Work) -> None:
        self._call_on_loop(lambda: self._cancel(work, EXPIRED))

    def close(self) -> None:
        """Start no further record and end the idle workers."""
        self._closed = True
        self._call_on_loop(self._end_workers)

    def keeps_pace(self) -> bool:
        """Measure whether calls end so fast that the next ones are granted ahead.

        False: the loop reports them itself. Never more of them run together than declared: only
        existing workers call granted records.
        """
        if self._pace.measure(len(self._workers)):
            self._call_on_loop(self._recall)
        return False

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Return calls granted ahead, so that they do not wait for running ones."""
        if self._pace.ahead:
            self._call_on_loop(self._recall)

    def stack(self, where: stacks.Where) -> list[str]:
        """Where the call of this record is now: what it awaits, or where it blocks the loop."""
        for worker in tuple(self._workers):
            task = worker.task
            if task is None or not stacks.is_of(worker.work, where):
                continue
            calls = worker.calls
            if calls is None or calls.cr_running:  # it runs right now
                return stacks.of_thread(self._loop_thread, inside=AsyncExecutor._burst.__code__)
            return stacks.of_coroutine(calls.cr_await)
        return []

    def blocking(self) -> Work | None:
        """The record whose call runs on the loop right now, if one does."""
        for worker in tuple(self._workers):
            work, calls = worker.work, worker.calls
            if worker.task is not None and work is not None and (calls is None or calls.cr_running):
                return work
        return None

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed: nothing runs any more

    # -- on the loop -------------------------------------------------------------------------------

    def _wake(self, most: int) -> None:
        """Wake a worker for each waiting record, up to `most` and as far as concurrency allows.

        One is enough unless its handler waits: it takes all records until then.
        """
        self._loop_thread = threading.get_ident()
        self._woken = False
        wanted = min(most, len(self._ready) - self._away)
        while wanted > 0 and self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                wanted -= 1
        limit = self._plan.calls_max
        while wanted > 0 and len(self._workers) < limit and not self._closed:
            worker = _Worker()
            self._workers[worker] = None
            worker.task = self._loop.create_task(self._work(worker))
            wanted -= 1

    def _on_suspend(self) -> None:
        """A handler waits: wake workers for ready records, and report ended calls."""
        if self._ready and not self._woken:
            self._woken = True
            self._loop.call_soon(self._wake, len(self._ready))
        if (self._door.done or self._door.ended) and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._door.turn()

    async def _work(self, worker: _Worker) -> None:
        try:
            while not self._closed:
                if self._ready or self._turn():
                    worker.calls = calls = self._burst(worker)
                    await in_contexts(worker, calls, self._on_suspend)
                    if self._ready or self._door.done:
                        await asyncio.sleep(0)  # other calls end, too: one turn reports them all
                else:
                    waiting = self._loop.create_future()
                    self._idle.append(waiting)
                    try:
                        await waiting
                    except asyncio.CancelledError as error:
                        self._meant_for_an_ended_call(error)
        finally:
            del self._workers[worker]

    def _turn(self) -> bool:
        """Report ended calls; whether that made more records ready."""
        self._turning = True
        self._door.turn()
        self._turning = False
        return bool(self._ready)

    def _recall(self) -> None:
        """Return records that no worker has taken; the engine grants again what may start."""
        while self._ready:  # the last one first: each goes in front of the previous one
            self._door.ended.append(Unhandled(self._ready.pop()))
        self._door.turn()

    def _end_unhandled(self) -> None:
        """Return queued records: none of them may start now."""
        while self._ready:
            self._door.ended.append(Unhandled(self._ready.popleft()))

    async def _burst(self, worker: _Worker) -> None:
        """Call the handler for ready records, until there are none or the slice is over.

        Driven by `in_contexts`: this code runs in the context of the current call.
        """
        plan, ready, done = self._plan, self._ready, self._door.done
        function, decode = self._function, self._decode
        deadlines, handler = self._deadlines, self._deadlines.handler
        clock, samples = time.perf_counter, plan.latency.fresh
        began = clock()
        slice_ends = began + SLICE_S
        since_look, look_at, waited = 0, 1, False
        if began > self._trusted_until:
            self._look(began)
        while not self._closed:
            if not ready:
                if waited and len(done) < TOGETHER:  # other calls end in this pass, too
                    waited = False
                    self._away += 1
                    try:
                        await NEXT_PASS
                    except asyncio.CancelledError as error:
                        self._meant_for_an_ended_call(error)
                    self._away -= 1
                    began = clock()
                    slice_ends = began + SLICE_S
                    if began > self._trusted_until:
                        self._look(began)
                    continue
                if not self._turn():
                    return
            worker.work = work = ready.popleft()
            if work.state != RUNNING or (work.partition.gate.reasons and not self._at_most_once):
                worker.work = None  # plan.may_call, inlined: this is the hot path
                self._door.ended.append(Unhandled(work))
                continue
            if timed := handler.timeout_s is not None:
                deadlines.began(work)
            try:
                returned = await function(work.record if decode is None else decode(work.record))
            except BaseException as error:
                if isinstance(error, GeneratorExit) and asyncio.current_task(self._loop) is None:
                    raise  # destroyed with its loop: no call ends, and the run is over
                if timed and deadlines.ended(work):
                    worker.mark = worker.mark or EXPIRED
                self._failed(worker, work, error, began)
            else:
                if timed and deadlines.ended(work):
                    worker.mark = worker.mark or EXPIRED
                if returned is None and worker.mark is None and plan.calls is None:
                    done.append(work)
                else:
                    self._returned(worker, work, returned, began)
            worker.work = None
            if worker.context:  # the call has set something, which stays private
                await fresh_context()
            since_look += 1
            if plan.calls is None and since_look < look_at and ready and not worker.waited:
                continue
            now = clock()
            each_s = (now - began) / since_look
            if len(samples) < FRESH_MAX:
                plan.timed(each_s, work)
            began, since_look = now, 0
            if waited := worker.waited:  # others have run meanwhile
                worker.waited, slice_ends, look_at = False, now + SLICE_S, 1
            elif now > slice_ends:
                return
            else:
                look_at = min(LOOK_EVERY, int(LOOK_S / (each_s or LOOK_S)))
            if now > self._trusted_until:
                self._look(now)

    def _look(self, now: float) -> None:
        """Return queued records if the process was suspended: other members may own them by now."""
        if self._door.trusted():
            self._trusted_until = now + LOOK_S
        else:
            self._end_unhandled()

    def _meant_for_an_ended_call(self, error: asyncio.CancelledError) -> None:
        """A cancellation came between two calls: its handler ended at the same moment."""
        if self._closed:
            raise error
        asyncio.current_task(self._loop).uncancel()  # type: ignore[union-attr] # within a task

    def _returned(self, worker: _Worker, work: Work, returned: Any, began: float) -> None:
        plan = self._plan
        # It may have caught its own cancellation; after its time-out it has failed anyway.
        if worker.mark is not None and self._unmarked(worker) == EXPIRED:
            plan.called([work], began)
            self._door.ended.append(failed(work, self._timeout(work)))
        else:
            report_returned(plan, self._door, work, returned, began)

    def _failed(self, worker: _Worker, work: Work, error: BaseException, began: float) -> None:
        """The attempt failed: by itself, by its time-out, or because the executor is closing."""
        mark = None if worker.mark is None else self._unmarked(worker)
        if mark == DROPPED and not self._at_most_once:
            # Not a failed attempt: the record's next owner handles it.
            self._door.ended.append(Unhandled(work, cancelled=True))
            return
        self._plan.called([work], began)
        why = self._timeout(work) if mark == EXPIRED else error
        self._door.ended.append(failed(work, why))

    @staticmethod
    def _timeout(work: Work) -> AttemptTimeout:
        return AttemptTimeout(f"no answer within timeout_s={work.partition.handler.timeout_s}")

    def _unmarked(self, worker: _Worker) -> str | None:
        """Why the call that has just ended was cancelled; clears the reason."""
        mark, worker.mark = worker.mark, None
        task = asyncio.current_task(self._loop)
        assert task is not None
        while task.cancelling():
            task.uncancel()
        return mark

    # -- the end -----------------------------------------------------------------------------------

    def _cancel(self, work: Work, mark: str) -> None:
        if mark == EXPIRED and work not in self._deadlines.overdue:
            return  # it has ended meanwhile; another attempt may run by now
        worker = next((worker for worker in self._workers if worker.work is work), None)
        if worker is not None and worker.task is not None:
            worker.mark = worker.mark or mark
            worker.task.cancel()

    def _end_workers(self) -> None:
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()
