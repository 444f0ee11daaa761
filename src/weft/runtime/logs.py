"""Log lines that people and machines read: an event, then its fields."""

from __future__ import annotations

import logging
from typing import Any


def event(log: logging.Logger, level: str, what: str, **fields: Any) -> None:
    """Log `what key=value …`; the fields also stand in `record.weft` for structured handlers."""
    number = logging.getLevelName(level.upper())
    if log.isEnabledFor(number):
        text = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
        log.log(number, "%s", f"{what} {text}".rstrip(), extra={"weft": {"event": what, **fields}})


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text or not text else text
