"""A member's group membership: the state shared by its parts, and the queues between its threads.

The parts (commits, rebalance, transactions …) get this object, not the member that created them.
The user's callbacks run in order on a separate thread, so that none delays the member.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from perkey import guard
from perkey.core import effects as fx
from perkey.core.partition import Partition
from perkey.kafka.ports import ConsumerPort
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor
from perkey.types import ErrorInfo, StopMode, TopicPartition

_log = logging.getLogger("perkey")


class Callbacks:
    """Calls the user's functions one after another on one thread; counts their exceptions."""

    def __init__(self, died: guard.Died = guard.log_death) -> None:
        self.died = died
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.errors = 0

    def call(self, function: Callable[..., Any] | None, *arguments: Any) -> None:
        """Queue a call of the function; a no-op for None."""
        if function is None:
            return
        if self._thread is None:
            with self._starting:  # several threads may make the first call
                if self._thread is None:
                    thread = guard.thread("perkey-callbacks", self._run, self.died)
                    thread.start()
                    self._thread = thread
        self._calls.put((function, arguments))

    @property
    def waiting(self) -> int:
        """Calls that have not started."""
        return self._calls.qsize()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            try:
                function(*arguments)
            except (Exception, SystemExit):  # sys.exit() must not end this thread
                self.errors += 1
                _log.exception("callback %s failed", getattr(function, "__name__", function))

    def close(self, timeout_s: float) -> None:
        """Wait for queued calls, at most for so long."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(timeout_s)


Action = Callable[[], None]
#: on the polling thread: the log is another one, restart where the policy chooses
Reread = Callable[[list[TopicPartition]], None]


class Fail(Protocol):
    """Ends the run for a reason. Any thread, also inside the door."""

    def __call__(
        self,
        reason: str,
        error: ErrorInfo | None = None,
        exit_code: int = 1,
        *,
        mode: StopMode = "in_flight",
        may_restart: bool = False,
    ) -> None:
        """End with this exit code: finish what runs, commit, leave."""


class GroupMembership:
    """State shared by a member's parts. Every field documents which thread may use it."""

    #: any thread; made by the member, once
    door: Door
    #: written by the polling thread, which replaces it to rejoin; its port documents what other
    #: threads may call
    consumer: ConsumerPort

    def __init__(self, now: Callable[[], float], fail: Fail, died: guard.Died) -> None:
        #: any thread
        self.now = now
        #: any thread
        self.fail = fail
        #: called by a thread that dies with an exception
        self.died = died
        #: calls from any thread
        self.callbacks = Callbacks(died)
        #: changed by the polling thread only; other threads iterate over copies of it
        self.partitions: dict[TopicPartition, Partition] = {}
        #: filled by the thread that starts the member, before any other runs; then read by any
        self.executors: list[Executor] = []
        #: called with each answer to a command, inside the door: must not wait
        self.answered: list[Callable[[fx.Answered], None]] = []
        #: set by the polling thread, last of all; any thread waits for it
        self.ended = threading.Event()
        #: any thread adds, the polling thread takes
        self._outbox: deque[Action] = deque()
        #: any thread adds, the background thread takes
        self._behind: SimpleQueue[Action | None] = SimpleQueue()
        #: set by the polling thread; it and the background threads wait for it
        self._quit = threading.Event()

    # -- the polling thread ------------------------------------------------------------------------

    def on_poll_thread(self, action: Action) -> None:
        """Run this on the polling thread soon. Thread-safe."""
        self._outbox.append(action)
        self.wake()

    @property
    def waiting(self) -> bool:
        """Whether the polling thread has requests to serve."""
        return bool(self._outbox)

    def do_waiting(self) -> None:
        """On the polling thread: run the requests of other threads."""
        for _ in range(len(self._outbox)):
            self._outbox.popleft()()

    def wake(self) -> None:
        """Wake the polling thread. Thread-safe."""
        consumer = getattr(self, "consumer", None)
        if consumer is not None and not self.ended.is_set():
            consumer.wake()

    # -- the background thread ---------------------------------------------------------------------

    def background(self, action: Action) -> None:
        """Run this on the background thread, where it may wait for the network. Thread-safe."""
        self._behind.put(action)

    def work_behind(self) -> None:
        """The loop of the background thread."""
        while (action := self._behind.get()) is not None:
            try:
                action()
            except Exception:
                _log.exception("background work failed")

    def pause(self, seconds: float) -> None:
        """Wait, unless the member ends; for its threads."""
        self._quit.wait(seconds)

    def quit(self) -> None:
        """On the polling thread, after leaving the group: end all waits."""
        self._quit.set()
        self._behind.put(None)


#: the recent window is one to two of these
GAP_WINDOW_S = 150.0


class PollGaps:
    """The longest times between two polls, in seconds: the figure behind L5.

    Written by the polling thread; any thread reads it.
    """

    def __init__(self) -> None:
        #: the last poll; None before the first
        self.polled_at: float | None = None
        #: since the start of the member
        self.max_s = 0.0
        #: when the current window began, and the longest in the one before and in it
        self._windows = (0.0, 0.0, 0.0)

    def polled(self) -> None:
        """A poll has returned."""
        now = time.monotonic()
        gap_s = now - (self.polled_at or now)
        since, before_s, longest_s = self._windows
        if now - since >= GAP_WINDOW_S:
            since, before_s, longest_s = now, longest_s, 0.0
        self._windows = since, before_s, max(longest_s, gap_s)
        self.max_s, self.polled_at = max(self.max_s, gap_s), now

    def recent_s(self, *, ended: bool) -> float:
        """Of the last few minutes, including the current one unless the member has ended."""
        now = time.monotonic()
        lasts_s = 0.0 if ended else now - (self.polled_at or now)
        return max(*self._windows[1:], lasts_s)
