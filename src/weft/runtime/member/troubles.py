"""Failures by handler and type of error, with the latest one as an example."""

from __future__ import annotations

import time
from typing import Any

from weft.account.shown import shown_key, shown_text
from weft.core import effects as fx
from weft.core.work import Work
from weft.types import ErrorInfo

#: distinct kinds; further ones are counted as one
KINDS_MAX = 50
OTHERS = "(other types)"


class Kind:
    """Failures of one handler with one type of error."""

    __slots__ = ("attempt", "counts", "error", "first_at", "last_at", "work")

    def __init__(self, at: float) -> None:
        self.first_at = self.last_at = at
        self.counts = {"failed": 0, "parked": 0, "dead_lettered": 0, "skipped": 0}
        self.attempt = 0
        self.error: ErrorInfo | None = None
        self.work: tuple[str, int, int, bytes | None] | None = None

    def note(self, effect: fx.Troubled, at: float) -> None:
        """One more; it is the example now."""
        self.counts[effect.outcome] += 1
        self.last_at, self.attempt, self.error = at, effect.attempts, effect.error
        self.work = _where(effect.work)


def _where(work: Work) -> tuple[str, int, int, bytes | None]:
    # Not the record: its value is not kept longer than the record itself.
    record = work.record
    return record.topic, record.partition, record.offset, record.key


class Troubles:
    """The kinds of one run."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Kind] = {}

    def note(self, effect: fx.Troubled) -> None:
        """An attempt failed, or a record was given up. Inside the door."""
        handler, at = effect.work.partition.handler.name, time.time()
        name = (handler, effect.error.type)
        if name not in self._kinds and len(self._kinds) >= KINDS_MAX:
            name = (handler, OTHERS)
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind(at)
        kind.note(effect, at)

    def rows(self) -> list[dict[str, Any]]:
        """As JSON-able data, the latest first. Any thread."""
        kinds = sorted(self._kinds.items(), key=lambda one: one[1].last_at, reverse=True)
        return [_row(handler, error, kind) for (handler, error), kind in kinds]


def _row(handler: str, error: str, kind: Kind) -> dict[str, Any]:
    counts, last = kind.counts, kind.error or ErrorInfo("", "")
    topic, partition, offset, key = kind.work or ("", 0, 0, None)
    return {
        "handler": handler,
        "type": shown_text(error, 100),
        "attempts": counts["failed"],
        "parked": counts["parked"],
        "dead_lettered": counts["dead_lettered"],
        "skipped": counts["skipped"],
        "first_at": round(kind.first_at, 3),
        "last_at": round(kind.last_at, 3),
        "example": {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": shown_key(key),
            "attempt": kind.attempt,
            "message": shown_text(last.message),
            "traceback": "\n".join(shown_text(line) for line in last.traceback.splitlines()),
        },
    }
