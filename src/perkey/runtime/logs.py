"""Log lines: an event and its fields."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from perkey.account.shown import shown_lines

_log = logging.getLogger("perkey")
_REPORTED: list[bool] = []


def say_how_to_see_more() -> None:
    """Without logging set up, Python shows only warnings: print a hint, once per process."""
    if not logging.getLogger("perkey").hasHandlers() and not _REPORTED:
        _REPORTED.append(True)
        sys.stderr.write(
            'perkey: running; only warnings are shown. logging.basicConfig(level="INFO") shows '
            "more, as does perkey run MODULE:app\n"
        )


def event(level: str, what: str, **fields: Any) -> None:
    """Log `what key=value …`; the fields are also in `record.perkey` for structured handlers."""
    traced(_log, level, what, fields)


def traced(
    log: logging.Logger,
    level: str,
    what: str,
    fields: Mapping[str, Any],
    traceback: str = "",
    error: BaseException | None = None,
) -> None:
    """The same for any logger, with a traceback, in the text format of an ErrorInfo.

    Every formatter prints it below the line, so text from data is escaped here. `error` becomes
    the record's `exc_info`, which tools such as Sentry report.
    """
    number = logging.getLevelName(level.upper())
    if not log.isEnabledFor(number):
        return
    # All lines of a kind have the same template: log collectors group by it.
    template = " ".join([what.replace("%", "%%"), *(f"{name}=%s" for name in fields)])
    shown = tuple(map(_shown, fields.values()))
    extra = {"perkey": {"event": what, **fields}}
    info = None if error is None else (type(error), error, error.__traceback__)
    record = log.makeRecord(log.name, number, __file__, 0, template, shown, info, extra=extra)
    if traceback:
        record.exc_text = shown_lines(traceback.rstrip("\n"))
    log.handle(record)


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text or not text.isprintable() else text
