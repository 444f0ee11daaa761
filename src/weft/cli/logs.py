"""What `weft run` logs, how it looks, and where it goes: one line an event, on stderr."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from weft.errors import ConfigError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO assigned partitions=orders[0,1]`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it where there is one."""
        source = "" if record.name == "weft" else f"{record.name}: "
        line = f"{_time(record)} {record.levelname} {source}{_one_line(record.getMessage())}"
        return f"{line}\n{self._trace(record)}" if record.exc_info else line

    def _trace(self, record: logging.LogRecord) -> str:
        assert record.exc_info is not None
        return self.formatException(record.exc_info)


class JsonLines(logging.Formatter):
    """`{"time": …, "level": …, "logger": …, "event": …, further fields}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever stands in the message."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields |= getattr(record, "weft", None) or {"event": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class _OnConsole(logging.Handler):
    """Writes above the progress line instead of through it."""

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


def set_up(console: Console, style: str, level: str) -> None:
    """Send the log to stderr, by way of `console`; raises ConfigError for unknown words."""
    for option, value, known in (
        ("--log-format", style, FORMATS),
        ("--log-level", level, LEVELS),
    ):
        if value not in known:
            raise ConfigError(f"{option} {value}: choose one of {', '.join(known)}")
    # A pipe gets plain lines of any length; a terminal's go above the progress line.
    handler: logging.Handler = (
        _OnConsole(console) if console.is_terminal else logging.StreamHandler()
    )
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return " ".join(text.splitlines()) if "\n" in text else text
