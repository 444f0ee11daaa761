"""Log lines of a worker process, written by its parent: one format, one level, one place.

Where the module of the handler sets up logging by itself when it is imported, that is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from weft.runtime.calls.processes.protocol import LogLine

LINE_CHARS_MAX = 16_000


class _ToParent(logging.Handler):
    """Sends records up the pipe, formatted as far as only this process can."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: _plain(value) for name, value in vars(record).items()}
        fields |= {"msg": _plain(record.getMessage()), "args": None, "exc_info": None}
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            fields["exc_text"] = trace[:LINE_CHARS_MAX]
        self._send(LogLine(fields))


def _plain(value: Any) -> Any:
    """What can be pickled and is not endless, whatever the user gave as `extra=`."""
    if isinstance(value, str):
        return value[:LINE_CHARS_MAX]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)[:LINE_CHARS_MAX]


def tell_parent(send: Callable[[Any], None], level: int) -> None:
    """In the worker: from now on the parent writes the log."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_ToParent(send))
        root.setLevel(level)


def write(line: LogLine) -> None:
    """In the parent: as if it had been logged here."""
    record = logging.makeLogRecord(line.fields)
    log = logging.getLogger(record.name)
    if log.isEnabledFor(record.levelno):
        log.handle(record)
