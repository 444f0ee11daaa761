"""Call plain `def` handlers on worker threads that take their next record themselves.

At most one idle thread is on its way at any time: it takes a record and, if more are ready, wakes
the next. Handlers that block are so spread over as many threads as there are records; handlers
that return at once are done by one thread before the second has even got the interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from queue import SimpleQueue
from typing import Generic, TypeVar

from weft import guard
from weft.core.events import GivenBack
from weft.core.spec import AT_MOST_ONCE
from weft.core.states import RUNNING
from weft.core.work import Work
from weft.runtime.calls import stacks
from weft.runtime.calls.aio import AttemptTimeout
from weft.runtime.calls.invoke import ending, failed
from weft.runtime.door import Door
from weft.runtime.handling import Executor, HandlerPlan, call_of
from weft.runtime.logs import event

_log = logging.getLogger("weft")

FAST_S = 100e-6  # calls shorter than this report together
#: whether calls may still begin at all is asked once in so long, by whichever thread: see Lease
LOOK_S = 100e-6
#: of calls shorter than a millisecond, one in this many samples its record's age and wait
SAMPLED_EVERY = 32
SLOW_S = 0.001


T = TypeVar("T")


class WorkerThreads(Executor, Generic[T]):
    """Threads that take the next item themselves; made as they are needed, up to a limit."""

    def __init__(self, plan: HandlerPlan, door: Door) -> None:
        self._plan = plan
        self._door = door
        self._ready: deque[T] = deque()
        #: one entry for each thread that waits; appended and popped, both atomic
        self._idle: deque[None] = deque()
        #: and one for each that will look for its next item in a moment: it need not be woken
        self._seeking: deque[None] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._hiring = threading.Lock()
        self._waking = False
        self._closed = False
        self._short_of_threads = False

    # -- from any thread ---------------------------------------------------------------------------

    def put(self, items: Sequence[T]) -> None:
        """Have each of these called; never blocks."""
        self._ready.extend(items)
        if not self._waking and len(self._ready) > len(self._seeking):
            self._wake_one()

    def close(self) -> None:
        """Let no further record start and end the idle threads."""
        self._closed = True
        for _ in self._threads:
            self._tokens.put(None)

    def stack(self, where: stacks.Where) -> list[str]:
        """Where the thread is that is at this record."""
        threads = [thread.ident for thread in tuple(self._threads)]
        return stacks.of_call(threads, type(self)._call.__code__, where)  # noqa: SLF001  # our own function

    def _wake_one(self) -> None:
        if self._idle:
            self._waking = True
            self._tokens.put(None)
        elif len(self._threads) < self._plan.calls_max:
            self._hire()

    def _hire(self) -> None:
        with self._hiring:
            if len(self._threads) >= self._plan.calls_max or self._closed:
                return
            self._waking = True
            name = f"weft-{self._plan.spec.name}-{len(self._threads)}"
            thread = guard.thread(name, self._work, self._door.died)
            self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread to give
            self._not_hired(thread, error)

    def _not_hired(self, thread: threading.Thread, error: RuntimeError) -> None:
        """Continue with fewer threads; without any, end the run with the reason."""
        with self._hiring:
            self._threads.remove(thread)
            self._waking = False
            there = len(self._threads)
        if not there:
            self._door.died(thread.name, error)
        elif not self._short_of_threads:
            self._short_of_threads = True
            event(
                _log,
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
            if context:  # it has set something, which stays private
                context = Context()
        self._door.turn()

    def _turn(self) -> None:
        """Report what has ended; what that starts is looked at by this thread next."""
        self._seeking.append(None)
        self._door.turn()
        self._seeking.pop()

    def _rest(self) -> None:
        self._idle.append(None)
        if self._ready or self._closed:
            # Something came between the last check and the entry above, and its thread
            # may not have seen the entry: do not wait for a token.
            self._idle.pop()
            return
        self._tokens.get()
        self._idle.pop()
        self._waking = False

    @abstractmethod
    def _call(self, item: T, context: Context) -> bool:
        """Call the handler for one item, in this context, where nothing is set yet.

        Returns whether to report to the engine immediately.
        """


class ThreadExecutor(WorkerThreads[Work]):
    """Runs one plain handler, a record at a time in each thread."""

    def __init__(
        self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop`: where an async decoder is awaited."""
        super().__init__(plan, door)
        self._decode = None if plan.decoding is None else plan.decoding.on_threads(loop)
        self._at_most_once = plan.spec.delivery == AT_MOST_ONCE
        self._expired: set[Work] = set()
        self._trusted_at = -1.0

    def start(self, works: Sequence[Work]) -> None:
        """Call the handler for each; never blocks."""
        self.put(works)

    def cancel(self, work: Work, *, expired: bool) -> None:
        """A running call cannot be ended; a time-out makes it count as failed when it returns."""
        if expired and work in self._ready:
            self._door.waiting([work])  # no thread has come to it yet
        elif expired:
            for ended in [one for one in self._expired if one.state != RUNNING]:
                self._expired.discard(ended)  # returned in the very moment it expired
            self._expired.add(work)

    def _call(self, work: Work, context: Context) -> bool:
        """This record, and then those that are ready, as long as calls are short."""
        plan, door, ready, decode = self._plan, self._door, self._ready, self._decode
        function, clock = plan.function, time.perf_counter
        began = clock()
        while True:
            # As plan.may_call, written out: this is the hot path.
            if (
                work.state != RUNNING
                or not (work.partition.startable or self._at_most_once)
                or (began - self._trusted_at > LOOK_S and not self._trusted(began))
            ):
                door.ended.append(GivenBack(work))
                return False
            returned = None
            try:
                returned = function(work.record if decode is None else decode(work.record))
            except BaseException as error:
                self._expired.discard(work)
                door.ended.append(failed(work, error, plan.retry))
            else:
                if returned is None and not self._expired:
                    door.done.append(work)
                else:
                    self._returned(work, returned, began)
            ended = clock()
            took_s = ended - began
            if took_s > SLOW_S or not work.record[2] % SAMPLED_EVERY:
                plan.timed(took_s, work)
            else:
                plan.latency.add(took_s)
            if plan.calls is not None:
                plan.calls[work] = call_of(began, ended, returned)
            if took_s > FAST_S:
                return True
            if context or self._closed:
                return False
            try:
                work = ready.popleft()
            except IndexError:
                return False
            if ready and not self._waking and len(ready) > len(self._seeking):
                self._wake_one()
            began = ended

    def _trusted(self, now: float) -> bool:
        """A suspended process's clock has advanced, so a waking thread asks again."""
        if not self._door.trusted():
            return False
        self._trusted_at = now
        return True

    def _returned(self, work: Work, returned: object, began: float) -> None:
        plan, door = self._plan, self._door
        expired = work in self._expired
        self._expired.discard(work)
        # Its time counts from its beginning, which the engine does not know.
        limit_s = work.partition.handler.timeout_s
        if expired and time.perf_counter() - began >= (limit_s or 0.0):
            late = AttemptTimeout(f"returned after more than timeout_s={limit_s}")
            door.ended.append(failed(work, late, plan.retry))
            return
        ended = None
        if returned is not None:  # a generator's body runs only now
            ended = ending(work, returned, plan.output, plan.retry)
        if ended is None:
            door.done.append(work)
        else:
            door.ended.append(ended)
