"""The parent's end of one worker process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from perkey import guard
from perkey.core.work import Work
from perkey.runtime.calls.processes.protocol import (
    IDLE,
    AskStack,
    Drop,
    Job,
    LogLine,
    Packed,
    StackIs,
    Warn,
    WorkerSpec,
    write_log_line,
)
from perkey.runtime.calls.processes.worker import HELD_BACK, main

SPAWN = multiprocessing.get_context("spawn")  # forking a process that has threads deadlocks

WINDOW_S = 0.004  # work that may wait in the pipe: hides its latency without a long delay
#: and of calls shorter than that, where other workers have as much to do: a worker must not run dry
#: while all processors are taken by workers, and a message for many calls costs as much as for few
DEEP_S = 0.02
SLOW_S = 0.02
WINDOW_MAX = 64
LATENCY_SHARE = 0.2

#: longest time for answers to gather while the worker has more to do: less than its deep window
GATHER_S = 0.004
#: calls that a worker keeps while its answers gather: it must not run dry
KEPT = 4
READ_BYTES = 1 << 18

#: bytes of a message whose length multiprocessing's connections write in four
SHORT_MAX = 0x7FFFFFFF
_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")

#: children that end with this process whatever happens to its runs: they ignore SIGTERM, with which
#: multiprocessing would end them
_RUNNING: weakref.WeakSet[Link] = weakref.WeakSet()


@atexit.register  # after multiprocessing's own, and so called before it
def _end_all() -> None:
    for link in list(_RUNNING):
        link.kill()


class Item:
    """One call that was passed to a worker: a record, or a batch."""

    __slots__ = ("acked", "alone", "batch", "call", "works")

    def __init__(self, works: list[Work], *, batch: bool) -> None:
        self.works = works
        self.batch = batch
        #: the core's call of a batch; a record that was acknowledged may be in another one later
        self.call = works[0].call
        #: of a batch: records that were acknowledged while it ran
        self.acked: set[Work] = set()
        #: a job with this one and others could not be read: it is sent without others
        self.alone = False


class Link:
    """One child, its pipe, and the calls that it has been given."""

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        on_messages: Callable[[Link, list[Any]], None],
        on_death: Callable[[Link], None],
        on_room: Callable[[], object],
        died: guard.Died,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        """`one_at_a_time`: it gets a call only after it has answered the previous one.

        `on_room` is called when what did not fit into its pipe is there.
        """
        self._one_at_a_time = one_at_a_time
        self._pipe, childs = SPAWN.Pipe(duplex=True)
        self._running = SPAWN.RawValue("q", IDLE)
        self._began = SPAWN.RawValue("d", 0.0)
        shared = (self._running, self._began)
        self.process = SPAWN.Process(
            target=main, args=(childs, shared, spec), name=name, daemon=True
        )
        # Start the child with those signals blocked that it leaves to the parent.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _RUNNING.add(self)
        childs.close()  # otherwise the pipe would not close when the child dies
        # A connection of multiprocessing reads one message at a time, in two calls.
        self._socket = socket.socket(fileno=os.dup(self._pipe.fileno()))
        #: what did not fit into the pipe, for the thread that may wait for the child to read
        self._rest: SimpleQueue[memoryview | None] = SimpleQueue()
        self._rests = 0
        self._sending = threading.Lock()
        self.opened = False
        #: the expired call that it is being killed for
        self.killed_for: Item | None = None
        #: its own thread gives it more in a moment: no other thread needs to wake
        self.feeding = False
        #: number -> call; a batch under the numbers of all its records
        self.given: dict[int, Item] = {}
        #: a stack was requested and not answered: no second request
        self.asked = False
        self.stack: list[str] = []
        self.stack_received = threading.Event()
        self._latency_s = 0.01
        self._on_messages = on_messages
        self._on_death = on_death
        self._on_room = on_room
        guard.thread(f"{name}-pipe", self._read, died).start()
        guard.thread(f"{name}-rest", self._send_rest, died).start()

    def _read(self) -> None:
        unread = bytearray()
        while True:
            self._gather()
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                break
            if not data:
                break
            unread += data
            answers = []
            for message in messages_in(unread):
                if isinstance(message, LogLine):
                    write_log_line(message)
                elif isinstance(message, StackIs):
                    self.asked, self.stack = False, message.lines
                    self.stack_received.set()
                else:
                    answers.append(message)
            if answers:
                self._on_messages(self, answers)
        self._rest.put(None)
        self._pipe.close()
        self.process.join(1.0)
        self._on_death(self)

    def _gather(self) -> None:
        """Let some answers come together: one wake-up for all of them costs less than one each."""
        spare = len(self.given) - KEPT
        if spare > 0:
            time.sleep(min(GATHER_S, spare * self._latency_s))

    def _send_rest(self) -> None:
        while (rest := self._rest.get()) is not None:
            with suppress(OSError):  # the child is gone, which the reader detects
                self._socket.sendall(rest)
            with self._sending:
                self._rests -= 1
            if not self._rests:
                self._on_room()
        with self._sending:
            self._socket.close()

    def send(self, message: Job | Packed | Drop | Warn | AskStack) -> None:
        """Send; never waits for the child to read. Nothing happens if it is gone.

        A child that is suspended, or whose call holds the interpreter, reads nothing, and its pipe
        fills. Callers hold the executor's lock, which the engine needs for all other workers and to
        end this one for its time-out: so another thread sends what does not fit.

        Raises pickle's exceptions for a record whose value cannot be sent.
        """
        data = pickle.dumps(message, protocol=5)
        # What multiprocessing's connections expect in front of a message.
        size = len(data)
        header = struct.pack("!i", size) if size <= SHORT_MAX else struct.pack("!iQ", -1, size)
        rest = memoryview(header + data)
        with self._sending:
            if not self._rests:
                try:
                    rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    pass
                except OSError:
                    return
            if rest:
                self._rests += 1
                self._rest.put(rest)

    @property
    def slow(self) -> bool:
        """Whether its current call takes longer than its whole window."""
        return self.at_hand != IDLE and time.monotonic() - self.began_at > SLOW_S

    def _window(self, share: int) -> int:
        if self._one_at_a_time or self.slow:
            return 1
        latency_s = max(self._latency_s, 1e-5)
        most, shallow = int(DEEP_S / latency_s), int(WINDOW_S / latency_s)
        return 1 + min(WINDOW_MAX, max(shallow, min(share - 1, most) if shallow else 0))

    def room(self, share: int) -> int:
        """How many more calls it may get now. `share`: of all calls, its equal part."""
        ready = self.opened and not self._rests
        return max(0, self._window(share) - len(self.given)) if ready else 0

    @property
    def hungry(self) -> bool:
        """Whether half of its window is free; filling it costs as much for one call as for ten."""
        ready = self.opened and not self._rests
        return ready and 2 * len(self.given) <= self._window(WINDOW_MAX)

    def took(self, seconds: float) -> None:
        """Adapt the window to the duration of a call."""
        self._latency_s += LATENCY_SHARE * (seconds - self._latency_s)

    @property
    def at_hand(self) -> int:
        """Number of the record that runs now, or ran when the child died; -1 for none."""
        return int(self._running.value)

    @property
    def began_at(self) -> float:
        """When the current record started, on the monotonic clock, which all processes share."""
        return float(self._began.value)

    @property
    def call(self) -> tuple[Item | None, float]:
        """The current call and for how long it has run; negative once it has ended."""
        # The number first: a time read after it is of that call, or of a later one.
        return self.given.get(self.at_hand), time.monotonic() - self.began_at

    def how_it_died(self) -> str:
        """The reason, for the error of the current record."""
        code = self.process.exitcode
        if code is not None and code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"exited with code {code}"

    def kill(self) -> None:
        """Kill the child."""
        # Another thread may have waited for it meanwhile, so it may be gone by now.
        with suppress(ProcessLookupError):
            if self.process.pid is not None and self.process.is_alive():
                os.kill(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Make the child exit by closing its pipe.

        A shutdown, not a close: the reader blocks on the pipe, and meanwhile a close would reach
        neither the reader nor the child.
        """
        with self._sending, suppress(OSError):  # it has closed itself already
            self._socket.shutdown(socket.SHUT_RDWR)


def messages_in(unread: bytearray) -> Iterator[Any]:
    """The whole messages at its start, which are removed; as multiprocessing's connections write.

    A message has its length in front: four bytes, or -1 in them and then eight.
    """
    start = 0
    try:
        while len(unread) - start >= _SHORT.size:
            (size,) = _SHORT.unpack_from(unread, start)
            first = start + _SHORT.size
            if size == -1:
                if len(unread) - first < _LONG.size:
                    break
                (size,) = _LONG.unpack_from(unread, first)
                first += _LONG.size
            if len(unread) - first < size:
                break
            start = first + size
            yield pickle.loads(unread[first:start])  # noqa: S301  # from our own child
    finally:
        del unread[:start]
