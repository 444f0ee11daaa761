"""Call plain `def` handlers on worker threads that take their next record themselves.

At most one idle thread is being woken at any time: it takes a record and, if more are ready, wakes
the next. Handlers that block are so spread over as many threads as there are records; handlers that
return immediately are done by one thread before the second one has even got the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from queue import SimpleQueue
from typing import Generic, TypeVar

from perkey import guard
from perkey.core.events import AT_MOST_ONCE, Unhandled
from perkey.core.partition import Partition
from perkey.core.states import RUNNING
from perkey.core.work import Work
from perkey.runtime.calls import pace, stacks
from perkey.runtime.calls.deadlines import AttemptTimeout, Deadlines
from perkey.runtime.calls.invoke import failed, report_returned
from perkey.runtime.calls.pace import Pace
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan
from perkey.runtime.logs import event

FAST_S = 100e-6  # calls shorter than this report together
#: interval of checks whether calls may still start at all, by any thread: see MembershipProof
LOOK_S = 100e-6
#: of calls in a row, one in this many also samples its record's age and wait, as does a slow one;
#: while calls are granted ahead no other one is timed
SAMPLED_EVERY = 32
SLOW_S = 0.001

T = TypeVar("T")


class WorkerThreads(Executor, Generic[T]):
    """Threads that take the next item themselves; created as needed, up to a limit."""

    def __init__(
        self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop`: where an async decoder is awaited."""
        self._plan = plan
        self._door = door
        self._decode = None if plan.decoding is None else plan.decoding.on_threads(loop)
        self._ready: deque[T] = deque()
        #: one entry for each thread that waits and is not being woken; appended by it, and popped
        #: by the thread that wakes it, or by itself: popping one obliges to wake it, or to continue
        self._idle: deque[None] = deque()
        #: one for each thread that will take its next item in a moment: it need not be woken
        self._seeking: deque[None] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._hiring = threading.Lock()
        self._waking = False
        self._closed = False
        self._short_of_threads = False

    # -- from any thread ---------------------------------------------------------------------------

    def put(self, items: Sequence[T]) -> None:
        """Call the handler for each of these; never blocks."""
        self._ready.extend(items)
        if not self._waking and len(self._ready) > len(self._seeking):
            self._wake_one()

    def close(self) -> None:
        """Start no further record and end the idle threads."""
        self._closed = True
        for _ in self._threads:
            self._tokens.put(None)

    def stack(self, where: stacks.Where) -> list[str]:
        """The stack of the thread that runs this record."""
        threads = [thread.ident for thread in tuple(self._threads)]
        return stacks.of_call(threads, type(self)._call.__code__, where)  # noqa: SLF001  # our own function

    def _wake_one(self) -> None:
        try:
            self._idle.pop()
        except IndexError:
            if len(self._threads) < self._plan.calls_max:
                self._hire()
            return
        self._waking = True
        self._tokens.put(None)

    def _hire(self) -> None:
        with self._hiring:
            if len(self._threads) >= self._plan.calls_max or self._closed:
                return
            self._waking = True
            name = f"perkey-{self._plan.spec.name}-{len(self._threads)}"
            thread = guard.thread(name, self._work, self._door.died)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            # Continue with fewer threads; without any, end the run with the reason.
            with self._hiring:
                self._threads.remove(thread)
                self._waking = False
                there = len(self._threads)
            if not there:
                self._door.died(thread.name, error)
            elif not self._short_of_threads:
                self._short_of_threads = True
                event(
                    "warning",
                    "no more threads available: raise the limit of processes (ulimit -u, pids.max)",
                    handler=self._plan.spec.name,
                    threads=there,
                    wanted=self._plan.calls_max,
                    error=str(error),
                )

    # -- on a worker thread ------------------------------------------------------------------------

    def _work(self) -> None:
        self._waking = False
        ready, context = self._ready, Context()
        while not self._closed:
            try:
                item = ready.popleft()
            except IndexError:
                self._turn()
                if not ready:
                    self._rest()
                continue
            if ready and not self._waking and len(ready) > len(self._seeking):
                self._wake_one()
            if context.run(self._call, item, context):
                self._turn()
            if context:  # the call has set something, which stays private
                context = Context()
        self._door.turn()

    def _turn(self) -> None:
        """Report ended calls; this thread takes next what that starts."""
        self._seeking.append(None)
        self._door.turn()
        self._seeking.pop()

    def _rest(self) -> None:
        self._idle.append(None)
        if self._ready or self._closed:
            # An item may have come between the last check and the entry above, and its thread may
            # not have seen the entry: do not wait for a token, unless there is one.
            with contextlib.suppress(IndexError):
                self._idle.pop()
                return
        self._tokens.get()
        self._waking = False

    @abstractmethod
    def _call(self, item: T, context: Context) -> bool:
        """Call the handler for one item, in this empty context.

        Returns whether to report to the engine immediately.
        """


class ThreadExecutor(WorkerThreads[Work]):
    """Runs one plain handler, one record at a time in each thread."""

    def __init__(
        self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        super().__init__(plan, door, loop)
        self._at_most_once = plan.spec.delivery == AT_MOST_ONCE
        #: a running call cannot be ended: it counts as failed when it returns
        self._deadlines = Deadlines[Work](plan, door, lambda _: None)
        self._trusted_until = -1.0
        #: while calls are granted ahead, a report waits if more is available than waits for it: the
        #: polling thread runs its next round soon and reports the rest
        self._pace = Pace(plan, door)
        #: approximate number of turns since a time: several threads count them
        self._turns, self._turned_at = 0, 0.0

    def start(self, works: Sequence[Work]) -> None:
        """Call the handler for each; never blocks."""
        self.put(works)

    # -- on the polling thread ---------------------------------------------------------------------

    def keeps_pace(self) -> bool:
        """Whether calls end so fast that the next ones are granted ahead; measured now and then.

        Never more of them run together than declared: only existing threads call granted records.
        """
        if self._pace.measure(len(self._threads)):
            self._recall()
        return self._pace.ahead > 0

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Return calls granted ahead, so that they do not wait for running ones."""
        if self._pace.ahead:
            self._recall()

    def _recall(self) -> None:
        """Return records that no thread has taken; the engine grants again what may start."""
        with contextlib.suppress(IndexError):
            while True:  # the last one first: each goes in front of the previous one
                self._door.ended.append(Unhandled(self._ready.pop()))
        self._door.turn()

    # -- on a worker thread ------------------------------------------------------------------------

    def _call(self, work: Work, context: Context) -> bool:
        """Call for this record, and then for those that are ready, as long as calls are short."""
        plan, door, ready, decode = self._plan, self._door, self._ready, self._decode
        function, clock, done = plan.function, time.perf_counter, door.done
        deadlines, handler, paced = self._deadlines, self._deadlines.handler, self._pace
        began, unsampled = clock(), 0
        while True:
            # plan.may_call, inlined: this is the hot path.
            if (
                work.state != RUNNING
                or (work.partition.gate.reasons and not self._at_most_once)
                or (began > self._trusted_until and not self._trusted(began))
            ):
                door.ended.append(Unhandled(work))
                return False
            if timed := handler.timeout_s is not None:
                deadlines.began(work)
            try:
                returned = function(work.record if decode is None else decode(work.record))
            except BaseException as error:
                if timed:
                    deadlines.ended(work)
                plan.called([work], began)
                door.ended.append(failed(work, error))
            else:
                late = timed and deadlines.ended(work)
                if returned is None and not late and plan.calls is None:
                    done.append(work)
                else:
                    self._returned(work, returned, began, late=late)
            ended = clock()
            took_s = ended - began
            unsampled -= 1
            if unsampled < 0 or (took_s > SLOW_S and not paced.ahead):
                plan.timed(took_s, work)
                unsampled = SAMPLED_EVERY - 1
            elif not paced.ahead:
                plan.latency.add(took_s)
            if took_s > FAST_S and (not paced.ahead or len(done) >= len(ready)):
                return True
            if context or self._closed:
                return False
            try:
                work = ready.popleft()
            except IndexError:
                return False
            if (
                not self._waking
                and (self._idle or not paced.ahead)  # else all threads work: the hot path
                and ready
                and len(ready) > len(self._seeking)
            ):
                self._wake_one()
            began = ended

    def _turn(self) -> None:
        super()._turn()
        self._turns += 1
        if self._turns > pace.PACE_CALLS * self._plan.spec.concurrency:
            turns, since, self._turns = self._turns, self._turned_at, 0
            self._turned_at = time.perf_counter()
            lags = self._pace.may_lag and not self._pace.ahead
            if lags and turns > pace.PACE_PER_S * (self._turned_at - since):
                self._door.wake()  # it may sleep for long, and must measure the pace

    def _trusted(self, now: float) -> bool:
        """Check again after a suspension: the process's clock has advanced by then."""
        if not self._door.trusted():
            return False
        self._trusted_until = now + LOOK_S
        return True

    def _returned(self, work: Work, returned: object, began: float, *, late: bool) -> None:
        plan, door = self._plan, self._door
        if late:
            limit_s = work.partition.handler.timeout_s
            error = AttemptTimeout(f"returned after more than timeout_s={limit_s}")
            plan.called([work], began)
            door.ended.append(failed(work, error))
        else:
            report_returned(plan, door, work, returned, began)
