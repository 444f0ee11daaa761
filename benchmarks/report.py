"""What a benchmark run prints and keeps: a table for people, JSON lines for the record."""

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.workloads import Check, Workload

RESULTS = Path(__file__).resolve().parent / "results"
_SIDES = ("bare-async", "perkey-async", "bare-threads", "perkey-threads", "java")


@dataclass
class Row:
    """One workload's outcome: median seconds by side, every run of it, errors, checks."""

    workload: Workload
    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    #: CPU seconds of the whole process, start included; they vary less than the clock's on a busy
    #: machine
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    memory_mb: list[float | None] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every side ran and every must is reached."""
        return not self.errors and all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Plain data; rates beside seconds so that a reader need not divide."""
        records = self.workload.topic.records
        return {
            "type": "result",
            "workload": asdict(self.workload),
            "seconds": self.seconds,
            "records_per_s": {side: round(records / s) for side, s in self.seconds.items()},
            "runs": self.runs,
            "cpu_s": self.cpu_s,
            "memory_mb_by_tenth": self.memory_mb,
            "errors": self.errors,
            "checks": [
                {
                    **asdict(check),
                    "passed": check.passed,
                    "reached_goal": check.reached_goal,
                }
                for check in self.checks
            ],
            "passed": self.passed,
        }


def write(facts: dict[str, Any], rows: Sequence[Row], folder: Path = RESULTS) -> Path:
    """Write one JSON-lines file: the machine's facts, then a line a workload."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{stamp}.json"
    lines = [json.dumps(line) for line in (facts, *(row.as_json() for row in rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def table(facts: dict[str, Any], rows: Sequence[Row]) -> Table:
    """Seconds (and records a second) of every side, with the checks of each workload."""
    title = f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}"
    result = Table(title=title, caption="seconds (records/s); median of the runs")
    result.add_column("workload")
    for side in _SIDES:
        result.add_column(side, justify="right")
    result.add_column("checks")
    for row in rows:
        cells = [_cell(row, side) for side in _SIDES]
        result.add_row(row.workload.name, *cells, "\n".join(map(_verdict, row.checks)))
    return result


def show(facts: dict[str, Any], rows: Sequence[Row], console: Console) -> None:
    """Print the table, then the last line of each error; the JSON has all of it."""
    console.print(table(facts, rows))
    for row in rows:
        for side, error in row.errors.items():
            text = f"{row.workload.name} {side}: {error.splitlines()[-1]}"
            console.print(text, style="red", markup=False, highlight=False)


def _cell(row: Row, side: str) -> str:
    if side in row.errors:
        return "[red]failed[/red]"
    if side not in row.seconds:
        return ""
    seconds = row.seconds[side]
    return f"{seconds:.3f} ({row.workload.topic.records / seconds:,.0f})"


def _verdict(check: Check) -> str:
    colour = "red" if not check.passed else "green" if check.reached_goal else "yellow"
    bars = [f"{word} {bar:,g}" for word, bar in (("must", check.must), ("goal", check.goal)) if bar]
    return f"[{colour}]{check.name} {check.value:,.5g}[/{colour}] ({', '.join(bars)})"
