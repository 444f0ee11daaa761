"""Logging of `perkey run`: one line per event, on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from perkey.account.shown import shown_lines
from perkey.errors import ConfigError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
LEVEL = "info"


#: attributes of every log record; others were passed with `extra=`
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "perkey",
    "message",
    "asctime",
    "taskName",
}


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO assigned partitions=orders[0,1]`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, with the traceback below; unprintable characters are escaped."""
        source = "" if record.name == "perkey" else f"{record.name}: "
        text = record.getMessage()
        text = " ".join(text.splitlines()) if "\n" in text else text
        line = f"{_time(record)} {record.levelname} {source}{text}"
        trace = _trace(self, record)
        return shown_lines(f"{line}\n{trace}" if trace else line)


class JsonLines(logging.Formatter):
    """`{"time": …, "level": …, "logger": …, "event": …, further fields}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message contains."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields |= getattr(record, "perkey", None) or {"event": record.getMessage()}
        extra = vars(record).items()
        fields |= {name: value for name, value in extra if name not in _STANDARD}
        if trace := _trace(self, record):
            fields["traceback"] = trace
        return json.dumps(fields, default=str)


class _OnConsole(logging.Handler):
    """Writes above the progress line."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._console.print(
                self.format(record), markup=False, highlight=False, soft_wrap=True, emoji=False
            )
        except Exception:
            self.handleError(record)


def check(style: str, level: str | None) -> None:
    """Raise ConfigError for unknown values."""
    for option, value, known in (
        ("--log-format", style, FORMATS),
        ("--log-level", level or LEVEL, LEVELS),
    ):
        if value not in known:
            raise ConfigError(f"{option} {value}: choose one of {', '.join(known)}")


def set_up(console: Console, style: str, level: str | None) -> bool:
    """Send the log to stderr through `console`; False if the user has configured logging.

    The user's handlers and levels are then kept. Only a level given on the command line is set,
    on Perkey's own logger.
    """
    check(style, level)
    root = logging.getLogger()
    if root.handlers or logging.getLogger("perkey").handlers:
        if level is not None:
            logging.getLogger("perkey").setLevel(level.upper())
        return False
    # On a terminal, lines go above the progress line. Pipes and JSON get plain lines without
    # terminal codes.
    handler: logging.Handler = (
        _OnConsole(console) if console.is_terminal and style == "text" else logging.StreamHandler()
    )
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root.addHandler(handler)
    root.setLevel((level or LEVEL).upper())
    return True


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of an exception, or its text where Perkey has only that."""
    if record.exc_info and not hasattr(record, "perkey"):
        return formatter.formatException(record.exc_info)
    return record.exc_text or ""


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
