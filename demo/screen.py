"""The demo's output on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from demo.checks import Check

_BAR_WIDTH = 30
_REFRESHES_PER_S = 8
_WIDTH_WITH_MEANING = 110
_RATE_OVER_S = 2.0


@dataclass(slots=True)
class Step:
    """One line of the screen."""

    title: str
    state: str = "waits"
    said: str = ""
    done: int = 0
    total: int = 0
    began: float = 0.0
    seconds: float = 0.0
    #: (when, how many were done) since the first one was
    seen: list[tuple[float, int]] = field(default_factory=list)
    spinner: Spinner = field(default_factory=lambda: Spinner("dots", style="cyan"))

    def progress(self, done: int, said: str) -> None:
        """How far it is."""
        if done != (self.seen[-1][1] if self.seen else 0):
            self.seen.append((time.monotonic(), done))
        self.done, self.said = done, said

    def rate_now(self) -> float:
        """Records per second in the last seconds."""
        recent = [one for one in self.seen if one[0] > time.monotonic() - _RATE_OVER_S]
        return _rate(recent)

    def rate(self) -> float:
        """Records per second since the first was done."""
        return _rate(self.seen)


def _rate(seen: Sequence[tuple[float, int]]) -> float:
    if len(seen) < 2:
        return 0.0
    (begin, before), (end, after) = seen[0], seen[-1]
    return (after - before) / (end - begin)


class Screen:
    """The list of steps; a context manager. Without a terminal, a line for each step's end."""

    def __init__(self, console: Console, titles: Sequence[str]) -> None:
        self._console = console
        self._steps = [Step(f"{number}  {title}") for number, title in enumerate(titles, 1)]
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=_REFRESHES_PER_S
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

    @contextmanager
    def step(self, number: int, total: int = 0) -> Iterator[Step]:
        """This step runs inside; `total` is how many records it has to do."""
        step = self._steps[number - 1]
        step.state, step.total, step.began = "runs", total, time.monotonic()
        try:
            yield step
        except BaseException:
            step.state = "failed"
            raise
        else:
            step.state = "done"
        finally:
            step.seconds = time.monotonic() - step.began
            if not self._shown:
                self._console.print(self._line(step), highlight=False, soft_wrap=True)

    @staticmethod
    def _line(step: Step) -> Text:
        sign = "✓" if step.state == "done" else "✗"
        return Text(f"{sign} {step.title} ({step.seconds:.1f} s) {step.said}".rstrip())

    def _table(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for step in self._steps:
            table.add_row(*_cells(step))
        return Group(Text(), table)


def _cells(step: Step) -> tuple[RenderableType, ...]:
    if step.state == "waits":
        return Text(" "), Text(step.title, style="dim"), Text(), Text()
    if step.state == "runs":
        bar: RenderableType = Text(step.said, style="dim")
        if step.total:
            rate = f"{step.rate_now():6,.0f}/s"
            words = f"{step.done:,} of {step.total:,}  {rate}  {step.said}"
            grid = Table.grid(padding=(0, 1))
            bar_of = ProgressBar(step.total, min(step.done, step.total), width=_BAR_WIDTH)
            grid.add_row(bar_of, Text(words, style="dim"))
            bar = grid
        seconds = Text(f"{time.monotonic() - step.began:5.1f} s", style="cyan")
        return step.spinner, Text(step.title, style="bold"), seconds, bar
    good = step.state == "done"
    sign = Text("✓", style="bold green") if good else Text("✗", style="bold red")
    return sign, Text(step.title), Text(f"{step.seconds:5.1f} s", style="dim"), Text(step.said)


def show_checks(console: Console, checks: Sequence[Check]) -> None:
    """The proof as a table; what the facts mean stands beside them where there is room."""
    explained = console.width >= _WIDTH_WITH_MEANING
    names = ("", "run", "fact", "found", "must be", *(["meaning"] if explained else []))
    table = Table(*names, box=None, header_style="dim")
    for number in (3, 4):
        table.columns[number].justify = "right"
    for check in checks:
        sign = Text("✓", style="bold green") if check.ok else Text("✗", style="bold red")
        cells = [check.run, check.name, f"{check.found:,}", f"{check.wanted:,}"]
        table.add_row(sign, *cells, *([Text(check.meaning, style="dim")] if explained else []))
    console.print(table)
