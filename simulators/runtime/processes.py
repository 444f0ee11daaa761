"""Worker processes of the simulated machine: tasks that end together, and pipes between them.

The parent's end (`link`, `executor`) and the child (`worker`) are the real ones; what they ask of
the operating system is answered here. A killed process stops wherever it is: what it had sent is
in the pipe, and its end of it is closed.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NoReturn

from simulators.runtime.primitives import FakeModule
from simulators.runtime.scheduler import Scheduler, Task

HEADER_BYTES = 4  # in front of each message
PIPE_MESSAGES = 2  # a pipe is full with so many
FIRST_PID = 2**30  # far above what the kernel gives: a real os.kill finds nobody


class Machine:
    """All processes and pipes of one seed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.sim = scheduler
        self.processes: dict[int, Process] = {}
        #: a new process imports and loads for so long
        self.opens_s = 0.0
        self.pipes: dict[int, Pipe] = {}
        #: called with the task whose handler is cut off when its process is killed
        self.on_killed: Callable[[list[Task]], None] = lambda _tasks: None
        self._pids = count(FIRST_PID)
        self._files = count(FIRST_PID)
        self.os = FakeModule(os, _exit=self.exit, kill=self._kill_pid, dup=lambda number: number)
        self.socket = FakeModule(socket, socket=lambda fileno: Socket(self.pipes[fileno]))
        self.signal = FakeModule(
            signal,
            signal=lambda *_: None,
            pthread_sigmask=lambda *_: set(),
            siginterrupt=lambda *_: None,
        )
        self.spawn = Spawn(self)

    def living(self) -> list[Process]:
        """Processes that run and have opened: those that die before that, again and again, may."""
        return [one for one in self.processes.values() if one.is_alive() and one.opened]

    def started(self, process: Process) -> int:
        """A new one; its number."""
        pid = next(self._pids)
        self.processes[pid] = process
        return pid

    def pipe(self) -> tuple[Pipe, Pipe]:
        """Two ends."""
        here, there = Pipe(self.sim, next(self._files)), Pipe(self.sim, next(self._files))
        here.other, there.other = there, here
        self.pipes |= {here.number: here, there.number: there}
        return here, there

    def kill(self, process: Process, code: int = -9) -> None:
        """End it at once, wherever it is."""
        if not process.is_alive():
            return
        tasks = [task for task in self.sim.left if task.process is process]
        process.over(code)
        self.on_killed(tasks)
        for task in tasks:
            self.sim.abandon(task)

    def _kill_pid(self, pid: int, _signal: int) -> None:
        if pid not in self.processes:
            raise ProcessLookupError(pid)
        self.kill(self.processes[pid])
        self.sim.point()

    def exit(self, code: int) -> NoReturn:
        """The running process ends itself."""
        process = None if self.sim.running is None else self.sim.running.process
        assert isinstance(process, Process)
        self.kill(process, code)
        self.sim.leave()


class Spawn:
    """What multiprocessing's context gives."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def Pipe(self, *, duplex: bool) -> tuple[Pipe, Pipe]:  # noqa: N802  # multiprocessing's name
        """Two ends."""
        return self._machine.pipe()

    def RawValue(self, _kind: str, value: Any) -> Shared:  # noqa: N802  # multiprocessing's name
        """Shared memory."""
        return Shared(value)

    def Process(self, **options: Any) -> Process:  # noqa: N802  # multiprocessing's name
        """A process that was not started."""
        return Process(self._machine, **options)


class Shared:
    """A number in shared memory."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Process:
    """multiprocessing.Process."""

    def __init__(
        self, machine: Machine, target: Callable[..., None], args: Sequence[Any], **_: Any
    ) -> None:
        self._machine = machine
        self._target = target
        self._args = args
        self.pid: int | None = None
        self.exitcode: int | None = None
        self.opened = not machine.opens_s
        self._joiners: list[Task] = []

    def start(self) -> None:
        """Let it run: with what it was given by value."""
        self.pid = self._machine.started(self)
        pipe, shared, spec = self._args

        def run() -> None:
            if self._machine.opens_s:
                self._machine.sim.sleep(self._machine.opens_s)
            self.opened = True
            self._target(pipe, shared, spec)

        task = self._machine.sim.spawn(run, f"pid {self.pid}")
        task.process = self
        pipe.owner = self

    def is_alive(self) -> bool:
        """It runs."""
        return self.pid is not None and self.exitcode is None

    def over(self, code: int) -> None:
        """It has ended."""
        self.exitcode = code
        for pipe in self._machine.pipes.values():
            if pipe.owner is self:
                pipe.close()
        for task in self._joiners:
            self._machine.sim.wake(task)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        sim = self._machine.sim
        if self.is_alive() and sim.running is not None:
            self._joiners.append(sim.running)
            sim.block(None if timeout is None else sim.now + timeout)


class Pipe:
    """One end of a duplex pipe."""

    def __init__(self, sim: Scheduler, number: int) -> None:
        self.number = number
        self.other: Pipe
        #: the process that has this end; None: the parent
        self.owner: Process | None = None
        self.closed = False
        self._sim = sim
        self._received: deque[bytes] = deque()
        self._reader: Task | None = None
        self._writer: Task | None = None

    def fileno(self) -> int:
        """Its number."""
        return self.number

    def send_bytes(self, data: bytes) -> None:
        """Send; OSError where nobody reads."""
        self._sim.point()
        if self.closed or self.other.closed:
            raise BrokenPipeError
        self.other.take(data)

    @property
    def full(self) -> bool:
        """The other end has to read first."""
        return len(self.other._received) >= PIPE_MESSAGES  # noqa: SLF001  # the same class

    def wait_for_room(self) -> None:
        """Until the other end has read, or is closed."""
        while self.full and not (self.closed or self.other.closed):
            self._writer = self._sim.running
            self._sim.block()
            self._writer = None

    def take(self, data: bytes) -> None:
        """The other end has sent this."""
        self._received.append(data)
        self._wake()
        self._sim.point()

    def _wake(self) -> None:
        for task in (self._reader, self._writer):
            if task is not None:
                self._sim.wake(task)

    def recv_bytes(self) -> bytes:
        """The next message; EOFError at the end."""
        self._sim.point()
        while not self._received:
            if self.closed or self.other.closed:
                raise EOFError
            self._reader = self._sim.running
            self._sim.block()
            self._reader = None
        data = self._received.popleft()
        self.other._wake()  # noqa: SLF001  # the same class
        return data

    def recv_all(self) -> list[bytes]:
        """The next message, and all others that are there; EOFError at the end."""
        messages = [self.recv_bytes(), *self._received]
        self._received.clear()
        return messages

    def close(self) -> None:
        """No more of it. The parent's copy of the child's end is not the child's own."""
        running = self._sim.running
        theirs = self.owner is not None and self.owner.is_alive()
        if theirs and running is not None and running.process is not self.owner:
            return
        self.closed = True
        self._wake()
        self.other._wake()  # noqa: SLF001  # the same class


class Socket:
    """A socket over a pipe: to read all of it, to send without waiting, and to shut it down."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def recv(self, _size: int) -> bytes:
        """All that is there, at least a message; nothing at the end."""
        try:
            messages = self._pipe.recv_all()
        except EOFError:
            return b""
        return b"".join(struct.pack("!i", len(data)) + data for data in messages)

    def send(self, data: memoryview, _flags: int) -> int:
        """All of it, or BlockingIOError; OSError where nobody reads."""
        if self._pipe.full:
            raise BlockingIOError
        self.sendall(data)
        return len(data)

    def sendall(self, data: memoryview) -> None:
        """Wait until it fits."""
        self._pipe.wait_for_room()
        self._pipe.send_bytes(bytes(data[HEADER_BYTES:]))

    def shutdown(self, _how: int) -> None:
        """Both ends see the end."""
        self._pipe.close()

    def close(self) -> None:
        """Nothing: the descriptor was a copy."""
