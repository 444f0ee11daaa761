"""One line at the bottom of a terminal: rate, lag, in flight, retries, parked."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from weft.errors import NotStarted

REFRESHES_PER_S = 2


class ProgressLine:
    """Shown while its block runs; nothing at all where `console` is not a terminal."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]], console: Console) -> None:
        """`snapshot` is `app.snapshot`."""
        self._snapshot = snapshot
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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self._live.stop()

    def _line(self) -> Text:
        try:
            return Text(line_of(self._snapshot()), no_wrap=True, overflow="ellipsis")
        except NotStarted:
            return Text("starting")


def line_of(snapshot: dict[str, Any]) -> str:
    """The line for one snapshot of an app."""
    partitions, handlers = snapshot["partitions"], snapshot["handlers"].values()
    shown = {
        "partitions": len(partitions),
        "lag": sum(row["lag"] for row in partitions),
        "in flight": sum(row["in_flight"] for row in handlers),
        "retrying": sum(row["retrying"] for row in partitions),
        "parked": sum(row["parked"] for row in partitions),
    }
    rate = sum(row.get("rate_per_s", 0.0) for row in handlers)
    counts = "  ".join(f"{name} {count:,}" for name, count in shown.items())
    return f"{snapshot['state']}  {rate:,.0f}/s  {counts}"
