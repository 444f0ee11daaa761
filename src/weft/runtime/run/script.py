"""`python app.py` exits with the code of its run.

`app.run()` returns a report, and a script that ends after it would end well, whatever became of the
run: a supervisor would not start it again. So where the script itself calls `app.run()` and the run
failed, the process ends with the run's exit code and one line that says why. A script that reads
the report's `exit_code` or `ok` has taken it in hand, and ends as it says; so does one that dies of
an exception.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from weft.errors import ConfigError, WeftError
from weft.kafka.failures import told_by_kafka
from weft.types import RunReport

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2
_TAKEN_IN_HAND = ("exit_code", "ok")


class _Told(RunReport):
    """The report of a script's failed run: who reads its code decides how the script ends."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _TAKEN_IN_HAND:
            _EXIT.report = None
        return super().__getattribute__(name)

    def __repr__(self) -> str:
        return repr(RunReport(**_values(self)))  # printing is not deciding


class _Exit:
    """What the process is to end with; one a process."""

    def __init__(self) -> None:
        self.report: RunReport | None = None
        #: what `app.run()` raised, until somebody catches it; and the code it ends with uncaught
        self.error: Exception | None = None
        self.code: int | None = None
        self.registered = False

    def at_exit(self) -> None:
        """Last of all: what else waits for the exit is called first."""
        report, died = self.report, getattr(sys, "last_type", None) is not None
        if self.code is not None:
            self._end(self.code)
        elif report is not None and not died:
            self._end(report.exit_code, why(report))

    def _end(self, code: int, line: str = "") -> None:
        atexit.unregister(self.at_exit)
        atexit._run_exitfuncs()  # noqa: SLF001  # as multiprocessing does: os._exit calls nobody
        if line:
            _say(line)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    def register(self) -> None:
        """Be asked at the end."""
        if not self.registered:
            self.registered = True
            atexit.register(self.at_exit)

    def expect(self, error: Exception) -> None:
        """This may end the script."""
        if self.error is None:
            sys.excepthook = partial(self._uncaught, sys.excepthook)
        self.error = error

    def _uncaught(
        self,
        otherwise: Callable[..., object],
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """`sys.excepthook`: only what `app.run()` raised is Weft's to tell."""
        if error is not self.error:
            otherwise(kind, error, trace)
            return
        _say(" ".join((told_by_kafka(self.error) or str(self.error)).split()))
        self.code = EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
        self.register()


def _say(line: str) -> None:
    """One line for people, as `weft run` writes it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"weft: {line}", file=sys.stderr)  # noqa: T201  # see above


_EXIT = _Exit()


def why(report: RunReport) -> str:
    """How the run ended, in one line, with the error behind it where there is one."""
    error = report.error
    if error is None or error.message in report.reason:
        return " ".join(report.reason.split())
    return " ".join(f"{report.reason}: {error.line}".split())


def ends_script(report: RunReport, caller: FrameType) -> RunReport:
    """The report for the caller of `app.run()`; a script that runs to its end exits with its code.

    The last run counts.
    """
    if not _is_script(caller):
        return report
    _EXIT.report = report if report.exit_code else None
    if not report.exit_code:
        return report
    _EXIT.register()
    return _Told(**_values(report))


def may_end_script(error: Exception, caller: FrameType) -> None:
    """`app.run()` raises this: where its script does not catch it, it is one line and its code."""
    if _is_script(caller) and (isinstance(error, WeftError) or told_by_kafka(error)):
        _EXIT.expect(error)


def _is_script(caller: FrameType) -> bool:
    """Whether the caller stands in the file that Python runs; a prompt or a notebook is none."""
    prompt = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return caller.f_globals.get("__name__") == "__main__" and not prompt


def _values(report: RunReport) -> dict[str, Any]:
    """Every field of the report, read without deciding."""
    return {one.name: object.__getattribute__(report, one.name) for one in fields(report)}
