"""timeline.png: records per second over time, for the three runs, with the kill marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.runs import rate_of, rates_over_time
from demo.witness import Answer

INK, MUTED, GRID, PAPER = "#1c2430", "#6b7686", "#e4e8ee", "#ffffff"
RED = "#d1343b"
_BINS_WANTED = 90
_BINS_S = (0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
_NARROWEST = 0.3


@dataclass(frozen=True, slots=True)
class Line:
    """One run in the picture; `kill_at` is UNIX seconds."""

    title: str
    answers: Sequence[Answer]
    colour: str
    kill_at: float | None = None

    @property
    def begin(self) -> float:
        """When its first call began."""
        return min((one.begin for one in self.answers), default=0.0)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max((one.end for one in self.answers), default=0.0) - self.begin


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    style: Any = {
        "font.family": "sans-serif", "font.size": 11, "text.color": INK, "axes.labelcolor": MUTED,
        "xtick.color": MUTED, "ytick.color": MUTED, "axes.edgecolor": GRID,
    }  # fmt: skip
    longest = max(line.seconds for line in lines)
    bin_s = next((b for b in _BINS_S if longest / b <= _BINS_WANTED), _BINS_S[-1])
    widths = [max(line.seconds / longest, _NARROWEST) for line in lines]
    with plt.rc_context(style):
        figure, panels = plt.subplots(
            1, len(lines), sharey=True, figsize=(12, 4.6), dpi=150, facecolor=PAPER,
            gridspec_kw={"width_ratios": widths, "wspace": 0.06}, squeeze=False,
        )  # fmt: skip
        for panel, line in zip(panels[0], lines, strict=True):
            _draw_run(panel, line, bin_s)
        # Shared by all, so only when the last one has been drawn.
        panels[0][0].set_ylim(bottom=0)
        _mark_plain(panels[0], lines)
        panels[0][0].set_ylabel("records per second, as the service counts them")
        figure.supxlabel("seconds since the run's first call", fontsize=11, color=MUTED, y=0.0)
        figure.savefig(path, bbox_inches="tight", facecolor=PAPER)
        plt.close(figure)


def _draw_run(panel: Any, line: Line, bin_s: float) -> None:
    points = rates_over_time(line.answers, bin_s)
    times, rates = [at for at, _ in points], [rate for _, rate in points]
    panel.fill_between(times, rates, color=line.colour, alpha=0.18, linewidth=0)
    panel.plot(times, rates, color=line.colour, linewidth=2)
    mean = rate_of(line.answers)
    panel.set_title(line.title, loc="left", fontsize=12, fontweight="bold", pad=22)
    panel.text(
        0, 1.03, f"{mean:,.0f} records/s", transform=panel.transAxes, color=line.colour,
        fontsize=11, fontweight="bold",
    )  # fmt: skip
    panel.set_xlim(0, max(line.seconds, bin_s))
    panel.grid(axis="y", color=GRID, linewidth=1)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    if line.kill_at is not None:
        _mark_kill(panel, line.kill_at - line.begin)


def _mark_kill(panel: Any, at: float) -> None:
    panel.axvline(at, color=RED, linewidth=1.5, linestyle=(0, (4, 3)))
    panel.annotate(
        "kill -9 of a member", (at, 0.97), xycoords=("data", "axes fraction"),
        xytext=(6, 0), textcoords="offset points", color=RED, fontsize=10, va="top",
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 2, "alpha": 0.85},
    )  # fmt: skip


def _mark_plain(panels: Sequence[Any], lines: Sequence[Line]) -> None:
    """At this scale the plain loop lies on the axis: say so."""
    panels[0].annotate(
        f"{rate_of(lines[0].answers):,.0f} per second", (0.5, 0), xycoords="axes fraction",
        xytext=(0, 26), textcoords="offset points", ha="center", color=lines[0].colour,
        arrowprops={"arrowstyle": "-|>", "color": lines[0].colour},
    )  # fmt: skip
