"""Every thread of the runtime is a coroutine, and a seed chooses which one runs next.

A task runs until it comes to a point where threads may change: a lock, a queue, an event, a sleep,
a deque that threads share. There the seed decides whether another goes on. Time stands still while
somebody can run, but for a little a step, and jumps to the next deadline when all wait.
"""

from __future__ import annotations

import asyncio.events
import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from simulators.core.violation import Violation

STEPS_MAX = 600_000
QUIET_S = 0.008  # a jump of time of this length: whoever has something to do has done it
_MASK = 2**64 - 1


class Task:
    """One thread of the simulated process."""

    def __init__(self, number: int, name: str, body: Callable[[], Any], priority: float) -> None:
        self.number = number
        self.name = name
        self.priority = priority
        self.ended = False
        #: what waits for its end
        self.joiners: list[Task] = []
        #: the event loop that runs on it
        self.loop: Any = None
        #: counted up at each wait, so that a timer of an earlier one does nothing
        self.waits = 0
        self.waiting = False
        self.timed_out = False
        self.body = body
        #: the process it is a thread of; None: the one that all members are in
        self.process: Any = None
        self.greenlet: greenlet

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"


class Scheduler:
    """Runs tasks one at a time, in an order that its seed decides."""

    def __init__(
        self,
        seed: int,
        *,
        odds: float = 0.2,
        tick_s: float = 1e-5,
        by_priority: bool = False,
        stall_odds: float = 0.0,
        stall_s: float = 0.0,
    ) -> None:
        """`odds`: of a change at a point; `stall_odds`: of time passing while others could run."""
        self.rng = random.Random(seed)
        self.now = 1_000.0
        self.running: Task | None = None
        self.steps = 0
        self.digest = 0
        self.violation: Violation | None = None
        #: threads that ended with an exception nobody caught
        self.died: list[tuple[str, BaseException]] = []
        self.on_quiet: Callable[[float], None] = lambda _until: None
        self.trace: list[str] | None = None
        self._odds = odds
        self._tick_s = tick_s
        self._by_priority = by_priority
        self._stall_odds = stall_odds
        self._stall_s = stall_s
        self._numbers = count()
        self._tasks: list[Task] = []
        self._runnable: list[Task] = []
        self._timers: list[tuple[float, int, Task, int]] = []
        self._closing = False
        self._abandoned: list[Task] = []
        self._hub: greenlet

    # -- tasks -------------------------------------------------------------------------------------

    def spawn(self, body: Callable[[], Any], name: str) -> Task:
        """A task that may run from now on."""
        task = Task(next(self._numbers), name, body, self.rng.random())
        task.greenlet = greenlet(lambda: self._body(task), parent=self._hub)
        if self.running is not None:
            task.process = self.running.process
        self._tasks.append(task)
        self._runnable.append(task)
        return task

    def _body(self, task: Task) -> None:
        try:
            task.body()
        except GreenletExit:
            return
        except BaseException as error:
            self.died.append((task.name, error))
        finally:
            task.ended = True
            for joiner in task.joiners:
                self.wake(joiner)

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` as the first task, until it has ended or a promise is broken."""
        self._hub = getcurrent()
        first = self.spawn(main, "main")
        try:
            while not first.ended and self.violation is None:
                self._go_on(self._next())
        except Violation as violation:  # by what looks when all is quiet, or nobody can run
            self.broken(violation)
        finally:
            self._close()

    def _go_on(self, task: Task) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Violation("L1", f"no end after {STEPS_MAX} steps: {self._tasks_left()}")
        self.now += self._tick_s
        self.digest = (self.digest * 1000003 ^ (task.number << 40) ^ int(self.now * 1e6)) & _MASK
        self.running = task
        asyncio.events._set_running_loop(task.loop)  # noqa: SLF001  # all tasks share one real thread
        task.greenlet.switch()
        task.loop = asyncio.events._get_running_loop()  # noqa: SLF001  # as said above
        asyncio.events._set_running_loop(None)  # noqa: SLF001  # as said above
        if task.ended and task in self._runnable:
            self._runnable.remove(task)

    def _next(self) -> Task:
        if self._stall_odds and self.rng.random() < self._stall_odds:
            self.now += self.rng.random() * self._stall_s
        self._fire()
        while not self._runnable:
            if not self._timers:
                raise Violation("L1", f"all wait for ever: {self._tasks_left()}")
            due = self._timers[0][0]
            if due - self.now > QUIET_S and self._awaited(self._timers[0]):
                self.on_quiet(due)
            self.now = max(self.now, due)
            self._fire()
        if self._by_priority:
            return max(self._runnable, key=lambda task: task.priority)
        return self._runnable[int(self.rng.random() * len(self._runnable))]

    @staticmethod
    def _awaited(timer: tuple[float, int, Task, int]) -> bool:
        return timer[2].waiting and timer[2].waits == timer[3]

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            timer = heapq.heappop(self._timers)
            if self._awaited(timer):
                timer[2].timed_out = True
                self._let_run(timer[2])

    def _let_run(self, task: Task) -> None:
        task.waiting = False
        self._runnable.append(task)

    def _tasks_left(self) -> str:
        return ", ".join(repr(task) for task in self._tasks if not task.ended)

    @property
    def left(self) -> list[Task]:
        """Tasks that have not ended."""
        return [task for task in self._tasks if not task.ended]

    # -- for the tasks -----------------------------------------------------------------------------

    def point(self) -> None:
        """Another task may go on here."""
        if self._closing:
            return
        if self.rng.random() < self._odds:
            self._shake()
            self._hub.switch()
            self._unwind()

    def _shake(self) -> None:
        """By priority a task goes on until it waits; here and there the order is another."""
        if self._by_priority and self.running is not None and self.rng.random() < 0.3:
            self.running.priority = self.rng.random() - 0.5

    def _unwind(self) -> None:
        if self._closing:
            raise GreenletExit

    def block(self, until: float | None = None) -> bool:
        """Wait until somebody wakes this task, or that time; whether it was woken."""
        self._unwind()
        task = self.running
        assert task is not None
        task.waits += 1
        task.waiting, task.timed_out = True, False
        self._runnable.remove(task)
        if until is not None:
            heapq.heappush(self._timers, (until, next(self._numbers), task, task.waits))
        self._hub.switch()
        self._unwind()
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a waiting task go on."""
        if task.waiting:
            self._let_run(task)

    def abandon(self, task: Task) -> None:
        """It never goes on: its process was killed."""
        task.waiting, task.ended = False, True
        task.waits += 1
        if task in self._runnable:
            self._runnable.remove(task)
        self._abandoned.append(task)

    def leave(self) -> NoReturn:
        """The running task, which was abandoned, gives way for good."""
        self._hub.switch()
        raise GreenletExit

    def sleep(self, seconds: float) -> None:
        """Wait for that long, in virtual time."""
        self.block(self.now + max(0.0, seconds))

    def broken(self, violation: Violation) -> None:
        """A promise is broken: nothing goes on."""
        if self.violation is None:
            self.violation = violation
        if not self._closing and getcurrent() is not self._hub:
            self._hub.switch()
            self._unwind()

    def note(self, text: str) -> None:
        """One line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now - 1_000.0:10.6f} {self.running!r:28} {text}")

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """All is being unwound: locks are nobody's any more."""
        return self._closing

    def _close(self) -> None:
        """Unwind whatever still waits, so that nothing of a seed outlives it."""
        self._closing = True
        for task in self._abandoned:
            task.ended = False
        for task in self._tasks:
            for _ in range(100):  # code that catches everything meets the next point
                if task.ended:
                    break
                if not task.greenlet:  # it never began
                    task.ended = True
                    break
                self.running = task
                asyncio.events._set_running_loop(task.loop)  # noqa: SLF001  # as in `_go_on`
                task.greenlet.throw(GreenletExit)
                asyncio.events._set_running_loop(None)  # noqa: SLF001  # as in `_go_on`
        self.running = None
