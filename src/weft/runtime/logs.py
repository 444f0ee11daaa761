"""Log lines that people and machines read: an event, then its fields."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from weft.account.shown import shown_lines


def event(log: logging.Logger, level: str, what: str, **fields: Any) -> None:
    """Log `what key=value …`; the fields also stand in `record.weft` for structured handlers."""
    traced(log, level, what, fields, "")


def traced(
    log: logging.Logger, level: str, what: str, fields: Mapping[str, Any], traceback: str
) -> None:
    """The same with a traceback, as the text that an ErrorInfo has of one.

    Every formatter prints it below the line, so what comes from data is escaped here.
    """
    number = logging.getLevelName(level.upper())
    if not log.isEnabledFor(number):
        return
    text = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
    extra = {"weft": {"event": what, **fields}}
    message = f"{what} {text}".rstrip()
    record = log.makeRecord(log.name, number, __file__, 0, "%s", (message,), None, extra=extra)
    if traceback:
        record.exc_text = shown_lines(traceback.rstrip("\n"))
    log.handle(record)


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text or not text.isprintable() else text
