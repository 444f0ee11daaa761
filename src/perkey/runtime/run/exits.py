"""How a program ends: exit codes, one-line errors, and signals while it runs.

The first SIGINT or SIGTERM drains, the second ends the run immediately.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from perkey import guard
from perkey.errors import ConfigError, PerkeyError

if TYPE_CHECKING:
    from perkey.types import RunReport, StopMode

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2


def refused(error: Exception) -> tuple[int, str] | None:
    """The exit code and line of an error that the user can fix; None for a bug."""
    if isinstance(error, PerkeyError):
        code = EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
        return code, " ".join(str(error).split())
    from perkey.kafka.failures import kafka_error_text

    text = kafka_error_text(error)
    return None if text is None else (EXIT_FAILED, text)


def exit_with(run: Callable[[], RunReport]) -> NoReturn:
    """Run it and exit with its code; a failure is one line on stderr."""
    try:
        report = run()
    except Exception as error:
        known = refused(error)
        if known is None:
            raise
        code, line = known
    else:
        code, line = report.exit_code, why(report)
    if code:
        sys.stderr.write(f"perkey: {line}\n")
    sys.exit(code)


def why(report: RunReport) -> str:
    """How the run ended, in one line, with the error behind it if there is one."""
    error = report.error
    if error is None or error.message in report.reason:
        return " ".join(report.reason.split())
    return " ".join(f"{report.reason}: {error.line}".split())


class StopSignals:
    """Turns signals into stops of one run."""

    def __init__(self, stop: Callable[[StopMode], None], started: Callable[[], bool]) -> None:
        """`stop` may wait; `started`: whether there is anything to commit yet."""
        self._stop = stop
        self._started = started
        self._before: dict[int, Any] = {}
        self._count = 0
        #: the exit code after a second signal; None before it
        self.exit_code: int | None = None

    def install(self) -> None:
        """Install the signal handlers; only the main thread may do this."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)

    def reinstall(self) -> None:
        """Install them again: a new SparkContext takes SIGINT for itself."""
        for number in self._before:
            signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Only a flag and a thread: a signal handler may interrupt a thread that holds a lock.
        self._count += 1
        if self._count >= 2:
            self.exit_code = 128 + number
        if not self._started():
            raise SystemExit(self.exit_code or 0)  # nothing has run, so nothing has to finish
        mode: StopMode = "in_flight" if self._count == 1 else "now"
        guard.thread("perkey-stop", self._stop, guard.log_death, mode).start()
