"""How a program ends: the exit codes, and the one line of what is no bug."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from weft.errors import ConfigError, WeftError

if TYPE_CHECKING:
    from weft.types import RunReport

EXIT_FAILED, EXIT_BAD_INPUT = 1, 2


def refused(error: Exception) -> tuple[int, str] | None:
    """The exit code and line of an error that its reader can mend; None for a bug."""
    if isinstance(error, WeftError):
        code = EXIT_BAD_INPUT if isinstance(error, ConfigError) else EXIT_FAILED
        return code, " ".join(str(error).split())
    from weft.kafka.failures import told_by_kafka

    told = told_by_kafka(error)
    return None if told is None else (EXIT_FAILED, told)


def exit_with(run: Callable[[], RunReport]) -> NoReturn:
    """Run it and exit as it ended; a failure is one line on stderr."""
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
        sys.stderr.write(f"weft: {line}\n")
    sys.exit(code)


def why(report: RunReport) -> str:
    """How the run ended, in one line, with the error behind it where there is one."""
    error = report.error
    if error is None or error.message in report.reason:
        return " ".join(report.reason.split())
    return " ".join(f"{report.reason}: {error.line}".split())
