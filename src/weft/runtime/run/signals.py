"""SIGINT and SIGTERM while an app runs on the main thread: the first drains, the second is now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from weft.kafka import guard
from weft.types import StopMode


class StopSignals:
    """Turns signals into stops of one run."""

    def __init__(self, stop: Callable[[StopMode], None], started: Callable[[], bool]) -> None:
        """`stop` may wait; `started`: whether there is anything to commit yet."""
        self._stop = stop
        self._started = started
        self._before: dict[int, Any] = {}
        self._count = 0
        #: the exit code that a second signal asks for; None before it came
        self.exit_code: int | None = None

    def install(self) -> None:
        """Take the signals over; only the main thread may do this."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def reinstall(self) -> None:
        """Be in charge again: a SparkContext that was made since takes SIGINT for itself."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Put the handlers of before back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only a flag and a thread: a signal handler may interrupt a thread that holds a lock.
        self._count += 1
        if self._count >= 2:
            self.exit_code = 128 + number
        if not self._started():
            raise SystemExit(self.exit_code or 0)  # nothing has run: there is nothing to finish
        mode: StopMode = "in_flight" if self._count == 1 else "now"
        guard.thread("weft-stop", self._stop, guard.log_death, mode).start()
