"""Threads, locks, queues and clocks of the simulated process."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from perkey.runtime import door
from simulators.runtime.scheduler import Scheduler, Task

T = TypeVar("T")
EPOCH_S = 1_700_000_000.0  # what the wall clock says at the beginning


class Primitives:
    """The classes, each bound to one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        made = {"sim": scheduler}
        self.lock = type("Lock", (Lock,), made)
        self.rlock = type("RLock", (RLock,), made)
        self.condition = type("Condition", (Condition,), made)
        self.event = type("Event", (Event,), made)
        self.thread = type("Thread", (Thread,), made)
        self.simple_queue = type("SimpleQueue", (SimpleQueue,), made)
        self.deque = type("Deque", (Deque,), made)
        self.reports = type("Reports", (Reports,), made)
        self.threading = FakeModule(
            threading,
            Thread=self.thread,
            Lock=self.lock,
            RLock=self.rlock,
            Condition=self.condition,
            Event=self.event,
            get_ident=lambda: -1 if scheduler.running is None else scheduler.running.number,
        )
        self.time = FakeModule(
            time,
            monotonic=lambda: scheduler.now,
            perf_counter=lambda: scheduler.now,
            time=lambda: EPOCH_S + scheduler.now,
            sleep=scheduler.sleep,
        )


class FakeModule:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Lock:
    """threading.Lock."""

    sim: Scheduler
    again = False  # an RLock may be taken again by who has it

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._count = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  # as threading has it
        """Take it."""
        sim = self.sim
        if sim.closing:
            return True
        if self.again and self._owner is sim.running:
            self._count += 1
            return True
        sim.point()
        until = sim.now + timeout if timeout >= 0 else None
        while self._owner is not None:
            if not blocking:
                return False
            self._waiting.append(sim.running)  # type: ignore[arg-type]  # a task runs
            woken = sim.block(until)
            if sim.running in self._waiting:
                self._waiting.remove(sim.running)
            if not woken and self._owner is not None:
                return False
        self._owner, self._count = sim.running, 1
        return True

    def release(self) -> None:
        """Let it go; who waits for it may run."""
        if self.sim.closing:
            return
        self.sim.point()  # still inside: what others do now finds it taken
        if self.again and self._owner is not self.sim.running:
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count > 0:
            return
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner = None
        for task in self._waiting:
            self.sim.wake(task)

    def locked(self) -> bool:
        """Somebody has it."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class RLock(Lock):
    """threading.RLock."""

    again = True

    def given_up(self) -> int:
        """Let it go altogether; how often it had been taken."""
        count, self._count = self._count, 1
        self.release()
        return count

    def taken_again(self, count: int) -> None:
        """Take it as often as before."""
        self.acquire()
        self._count = count


class Condition:
    """threading.Condition, with a lock of its own."""

    sim: Scheduler

    def __init__(self, lock: Any = None) -> None:
        self._lock = type("RLock", (RLock,), {"sim": self.sim})() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; whether that was in time."""
        sim = self.sim
        task = sim.running
        assert task is not None
        until = None if timeout is None else sim.now + max(0.0, timeout)
        self._waiting.append(task)
        count = self._lock.given_up()
        try:
            # Notified between the release and here, it is in the list no more.
            woken = sim.block(until) if task in self._waiting else True
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
            self._lock.taken_again(count)
        return woken

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until it holds, or for that long."""
        until = None if timeout is None else self.sim.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self.sim.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """Let so many go on."""
        for task in self._waiting[:n]:
            self._waiting.remove(task)
            self.sim.wake(task)

    def notify_all(self) -> None:
        """Let all go on."""
        self.notify(len(self._waiting))


class Event:
    """threading.Event."""

    sim: Scheduler

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """It is set."""
        return self._set

    def set(self) -> None:
        """Let all who wait go on."""
        self._set = True
        for task in self._waiting:
            self.sim.wake(task)
        self._waiting.clear()
        self.sim.point()

    def clear(self) -> None:
        """It is not set any more."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it; whether it is set."""
        self.sim.point()
        if not self._set:
            self._waiting.append(self.sim.running)  # type: ignore[arg-type]  # a task runs
            self.sim.block(None if timeout is None else self.sim.now + max(0.0, timeout))
            if self.sim.running in self._waiting:
                self._waiting.remove(self.sim.running)
        return self._set


class SimpleQueue(Generic[T]):
    """queue.SimpleQueue."""

    sim: Scheduler

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: list[Task] = []

    def put(self, item: T) -> None:
        """Add one; whoever waits may have it."""
        self._items.append(item)
        for task in self._waiting:
            self.sim.wake(task)
        self.sim.point()

    def get(self, block: bool = True, timeout: float | None = None) -> T:  # noqa: FBT001, FBT002  # as queue has it
        """The first; raises Empty."""
        self.sim.point()
        until = None if timeout is None else self.sim.now + max(0.0, timeout)
        while not self._items:
            if not block:
                raise queue.Empty
            task = self.sim.running
            assert task is not None
            self._waiting.append(task)
            try:
                woken = self.sim.block(until)
            finally:
                self._waiting.remove(task)
            if not woken and not self._items:
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> T:
        """The first; raises Empty."""
        return self.get(block=False)

    def empty(self) -> bool:
        """Nothing is in it."""
        return not self._items

    def qsize(self) -> int:
        """How many are in it."""
        return len(self._items)


class Deque(deque[T]):
    """A deque that threads share: each of its steps is atomic, and others may run in between."""

    sim: Scheduler

    def append(self, item: T, /) -> None:
        """Add at the right."""
        self.sim.point()
        super().append(item)

    def appendleft(self, item: T, /) -> None:
        """Add at the left."""
        self.sim.point()
        super().appendleft(item)

    def extend(self, items: Iterable[T], /) -> None:
        """Add all at the right."""
        self.sim.point()
        super().extend(items)

    def popleft(self) -> T:
        """Take from the left."""
        self.sim.point()
        return super().popleft()


class Reports(door.Reports[T]):
    """What the door takes, as threads share it: see `Deque`."""

    sim: Scheduler

    def append(self, item: T, /) -> None:
        """Add at the end."""
        self.sim.point()
        super().append(item)

    def extend(self, items: Iterable[T], /) -> None:
        """Add all at the end."""
        self.sim.point()
        super().extend(items)

    def take(self) -> list[T]:
        """Take all."""
        self.sim.point()
        return super().take()


class Thread:
    """threading.Thread."""

    sim: Scheduler

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._task: Task | None = None

    def run(self) -> None:
        """What it does."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Let it run."""
        self._task = self.sim.spawn(self.run, self.name)
        self.sim.point()

    def is_alive(self) -> bool:
        """It has begun and not ended."""
        return self._task is not None and not self._task.ended

    @property
    def ident(self) -> int | None:
        """A number of its own."""
        return None if self._task is None else self._task.number

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        task = self._task
        assert task is not None
        if not task.ended:
            task.joiners.append(self.sim.running)  # type: ignore[arg-type]  # a task runs
            self.sim.block(None if timeout is None else self.sim.now + max(0.0, timeout))
