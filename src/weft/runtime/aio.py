"""Calls `async def` handlers on one event loop.

A fixed set of worker coroutines takes records from a queue; none is made per record. A handler
that does not wait ends within one step of its worker, which then takes the next record: no task,
no future, no trip through the loop. Only when a handler first waits are further workers woken.
"""

from __future__ import annotations

import asyncio
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from weft.core.endings import GivenBack
from weft.core.partition import Partition
from weft.core.spec import AT_MOST_ONCE
from weft.core.states import RUNNING
from weft.core.work import Work
from weft.runtime.door import Door
from weft.runtime.invoke import decoded, ending, failed
from weft.runtime.plan import HandlerPlan, call_of

SLICE_S = 0.005  # a worker whose handlers never wait lets the loop breathe this often
_LOOK_EVERY = 32  # records between two looks at the clock


class AttemptTimeout(TimeoutError):
    """The attempt ran longer than `timeout_s`."""


@types.coroutine
def resumed(call: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has waited once, within the awaiting task."""
    try:
        yield waits_for
    except BaseException as error:  # a cancellation: the handler's to see first
        try:
            waits_for = call.throw(error)
        except StopIteration as stop:
            return stop.value
        return (yield from resumed(call, waits_for))
    return (yield from call)


@types.coroutine
def drive(
    call: Coroutine[Any, Any, Any], on_suspend: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Run a coroutine within the awaiting task; `on_suspend` is called if it waits at all."""
    try:
        waits_for = call.send(None)
    except StopIteration as stop:
        return stop.value
    on_suspend()
    while True:
        try:
            yield waits_for
        except BaseException as error:  # a cancellation: the handler's to see first
            try:
                waits_for = call.throw(error)
            except StopIteration as stop:
                return stop.value
        else:
            return (yield from call)


class _Worker:
    """One worker coroutine and what it is at."""

    __slots__ = ("dropped", "expired", "task", "work")

    def __init__(self) -> None:
        self.work: Work | None = None
        #: cancelled because its time was over
        self.expired = False
        #: cancelled because its partition went away or the app stops
        self.dropped = False
        self.task: asyncio.Task[None] | None = None


class AsyncExecutor:
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
        self._closed = False
        self._loop_thread = 0
        self._at_most_once = plan.spec.delivery == AT_MOST_ONCE

    # -- from any thread ---------------------------------------------------------------------------

    def start(self, works: Sequence[Work]) -> None:
        """Call the handler for each; never blocks."""
        self._ready.extend(works)
        on_loop = threading.get_ident() == self._loop_thread
        # A worker in the middle of its turn takes from the queue by itself; it wakes others only
        # if its handler waits.
        if self._woken or (on_loop and self._turning):
            return
        self._woken = True
        if on_loop:
            self._loop.call_soon(self._wake)
        else:
            self._call_on_loop(self._wake)

    def cancel(self, work: Work, *, expired: bool) -> None:
        """End the attempt of this record, as a time-out or because its partition goes away."""
        self._call_on_loop(lambda: self._cancel(work, expired=expired))

    def start_batch(self, works: list[Work]) -> None:
        """Single-record handlers are given no batches."""
        raise AssertionError(f"a batch of {len(works)} for a single-record handler")

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Single records are not told that their partition goes away."""

    def close(self) -> None:
        """Let no further record start and end the idle workers."""
        self._closed = True
        self._call_on_loop(self._end_workers)

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # the loop is closed: nothing runs any more

    # -- on the loop -------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Have a worker for each record that waits, as far as concurrency allows."""
        self._loop_thread = threading.get_ident()
        self._woken = False
        wanted = len(self._ready)
        while wanted > 0 and self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                wanted -= 1
        limit = self._plan.spec.concurrency
        while wanted > 0 and len(self._workers) < limit and not self._closed:
            self._hire()
            wanted -= 1

    def _hire(self) -> None:
        worker = _Worker()
        self._workers[worker] = None
        worker.task = self._loop.create_task(self._work(worker))

    def _on_suspend(self) -> None:
        """A handler waits: let others have what is ready, and report what is finished."""
        if self._ready and not self._woken:
            self._woken = True
            self._loop.call_soon(self._wake)
        if self._door.done and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._door.turn()

    async def _work(self, worker: _Worker) -> None:
        try:
            while not self._closed:
                if self._ready or self._turn():
                    await self._burst(worker)
                else:
                    await self._rest()
        finally:
            del self._workers[worker]

    def _turn(self) -> bool:
        """Report what is finished; whether that brought something to do."""
        self._turning = True
        self._door.turn()
        self._turning = False
        return bool(self._ready)

    async def _rest(self) -> None:
        waiting = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            # A cancellation that was meant for a handler which ended in the same moment.
            if self._closed:
                raise
            asyncio.current_task(self._loop).uncancel()  # type: ignore[union-attr] # within a task

    def _give_back(self) -> None:
        """Nothing of what was handed over begins now."""
        while self._ready:
            self._door.ended.append(GivenBack(self._ready.popleft()))

    async def _burst(self, worker: _Worker) -> None:
        """Call the handler for what is ready, until nothing is or the loop should breathe."""
        plan, ready, done = self._plan, self._ready, self._door.done
        function, decode, suspend = plan.function, plan.decode, self._on_suspend
        clock = time.perf_counter
        began = slice_ends = clock()
        slice_ends += SLICE_S
        since_look = 0
        if not (self._at_most_once or self._door.trusted()):
            self._give_back()
        while (ready or self._turn()) and not self._closed:
            worker.work = work = ready.popleft()
            if work.state != RUNNING or not (work.partition.startable or self._at_most_once):
                worker.work = None  # as plan.may_call, written out: this is the hot path
                self._door.ended.append(GivenBack(work))
                continue
            try:
                record = work.record if decode is None else decoded(work.record, decode)
                call = function(record)
                try:  # its first step here: most handlers that do not wait never need more
                    waits_for = call.send(None)
                except StopIteration as stop:
                    returned = stop.value
                else:
                    suspend()
                    returned = await resumed(call, waits_for)
            except BaseException as error:
                returned = None
                self._failed(worker, work, error)
            else:
                if returned is None and not worker.expired:
                    done.append(work)
                else:
                    self._returned(worker, work, returned)
            worker.work = None
            since_look += 1
            if plan.calls is None and since_look < _LOOK_EVERY and ready:
                continue
            now = clock()
            plan.latency.add((now - began) / since_look)
            if plan.calls is not None:
                plan.calls[work] = call_of(began, now, returned)
            began, since_look = now, 0
            if now > slice_ends:
                await asyncio.sleep(0)
                began = clock()
                slice_ends = began + SLICE_S

    def _returned(self, worker: _Worker, work: Work, returned: Any) -> None:
        plan = self._plan
        if worker.expired:  # it caught its own cancellation; its time was over all the same
            self._failed(worker, work, None)
            return
        ended = ending(work, returned, plan.output, plan.retry)
        if ended is None:
            self._door.done.append(work)
        else:
            self._door.ended.append(ended)

    def _failed(self, worker: _Worker, work: Work, error: BaseException | None) -> None:
        """The attempt failed: by itself, by its time-out, or because the executor is closing."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        if worker.expired:
            worker.expired = False
            task.uncancel()
            error = AttemptTimeout(f"no answer within timeout_s={self._plan.spec.timeout_s}")
        elif worker.dropped:
            worker.dropped = False
            task.uncancel()
            if self._plan.spec.delivery != AT_MOST_ONCE:
                # Not a failed attempt: the record's next owner is to handle it.
                self._door.ended.append(GivenBack(work))
                return
        assert error is not None
        self._door.ended.append(failed(work, error, self._plan.retry))

    # -- the end -----------------------------------------------------------------------------------

    def _cancel(self, work: Work, *, expired: bool) -> None:
        for worker in self._workers:
            if worker.work is work and worker.task is not None:
                worker.expired, worker.dropped = expired, not expired
                worker.task.cancel()

    def _end_workers(self) -> None:
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()
