"""SIGINT and SIGTERM on the driver: they drain the members."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from weft.core.engine import StopMode


class StopSignals:
    """The first signal stops, a second one stops at once."""

    def __init__(self, stop: Callable[[StopMode], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}
        self._count = 0
        self._last = 0

    def install(self) -> None:
        """Have signals stop the run; only the main thread may do this."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def reinstall(self) -> None:
        """A new SparkContext puts a handler over ours, which would kill the members."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Put the handlers of before back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @property
    def exit_code(self) -> int | None:
        """130 or 143 after a second signal."""
        return 128 + self._last if self._count >= 2 else None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only a flag and a thread: a signal handler may interrupt a thread that holds a lock.
        self._count += 1
        self._last = number
        mode: StopMode = "in_flight" if self._count == 1 else "now"
        threading.Thread(target=self._stop, args=(mode,), daemon=True).start()
