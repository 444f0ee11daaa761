"""One line at the bottom of a terminal: rate, remaining, in flight, retries, parked.

Without a terminal, one log line per minute has the same content.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from perkey import guard
from perkey.account.snapshot import is_away, total
from perkey.errors import NotStarted
from perkey.runtime.logs import event

REFRESHES_PER_S = 2
LOGGED_EVERY_S = 60.0


class ProgressLine:
    """Shown while its block runs; logged once per minute if `console` is not a terminal."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]], console: Console) -> None:
        """`snapshot` is `app.snapshot`."""
        self._snapshot = snapshot
        self._over = threading.Event()
        self._live = Live(
            console=console,
            get_renderable=self._line,
            refresh_per_second=REFRESHES_PER_S,
            transient=True,
        )
        self._shown = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> Self:
        if self._shown:
            self._live.start()
        else:
            guard.thread("perkey-progress", self._log_lines).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._shown:
            self._live.stop()

    def _log_lines(self) -> None:
        turns = guard.Turns("perkey-progress")
        while not self._over.wait(LOGGED_EVERY_S):
            with turns.turn(), contextlib.suppress(NotStarted):
                event("info", "progress", **counts_of(self._snapshot()))

    def _line(self) -> Text:
        try:
            return Text(line_of(self._snapshot()), no_wrap=True, overflow="ellipsis")
        except NotStarted:
            return Text("starting")


def line_of(snapshot: dict[str, Any]) -> str:
    """The line for one snapshot of an app."""
    counts = counts_of(snapshot)
    state, rate = counts.pop("state"), counts.pop("rate_per_s")
    shown = "  ".join(
        f"{name.replace('_', ' ')} {'unknown' if count is None else f'{count:,}'}"
        for name, count in counts.items()
    )
    return f"{state}  {rate:,.0f}/s  {shown}"


def counts_of(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The state, and sums over partitions and handlers."""
    partitions, handlers = snapshot["partitions"], snapshot["handlers"].values()
    unknown = not partitions and is_away(snapshot)
    return {
        "state": snapshot["state"],
        "rate_per_s": round(sum(row.get("rate_per_s", 0.0) for row in handlers), 1),
        "partitions": len(partitions),
        "remaining": None if unknown else total(partitions, "remaining"),
        "lag": None if unknown else total(partitions, "lag"),
        "in_flight": sum(row["in_flight"] for row in handlers),
        "retrying": sum(row["retrying"] for row in partitions),
        "parked": sum(row["parked"] for row in partitions),
    }
