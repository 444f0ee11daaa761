"""Measure Perkey beside bare sleeps and the Java Parallel Consumer on a real broker.

Example: python -m benchmarks --only headline --scale 0.1

The other benchmarks are programs of their own: `python -m benchmarks.seen --help`, and so on.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import javapc, machine, memory, report, sides, topics
from benchmarks.report import Row
from benchmarks.workloads import Workload, all_workloads
from perkey.broker import LocalBroker

_SCALE_MAX = 100.0
_PIPE_COLUMNS = 180


@dataclass(frozen=True)
class Options:
    """What to measure; without `bootstrap` a local broker is started for the run."""

    only: tuple[str, ...] = ()
    scale: float = 1.0
    bootstrap: str | None = None
    sides: tuple[str, ...] = ()
    results: Path = report.RESULTS
    check: bool = False


class OptionsError(Exception):
    """Options that name nothing that can be measured, in one line."""


def run(options: Options) -> int:
    """Measure, print the table, keep the JSON; exit code 1 if `check` and a must is missed."""
    workloads = select(options)
    console = _console()
    facts = machine.facts()
    with _broker(options) as bootstrap, _bars() as bars:
        rows = [_measure(workload, bootstrap, options, bars) for workload in workloads]
    report.show(facts, rows, console)
    path = report.write({**facts, "scale": options.scale}, rows, options.results)
    console.print(f"kept in {path.name}", highlight=False)
    return 1 if options.check and not all(row.passed for row in rows) else 0


def select(options: Options) -> list[Workload]:
    """The workloads whose name or group is asked for, all without a wish; raises OptionsError."""
    if not 0 < options.scale <= _SCALE_MAX:
        raise OptionsError(f"--scale {options.scale}: must be above 0 and at most {_SCALE_MAX:g}")
    table = [*all_workloads(options.scale), memory.workload(options.scale)]
    unknown = set(options.only) - {word for work in table for word in (work.name, work.group)}
    if unknown:
        known = ", ".join(dict.fromkeys(work.name for work in table))
        raise OptionsError(f"--only {min(unknown)}: no such workload; there are {known}")
    if not options.only:
        return table
    return [work for work in table if {work.name, work.group} & set(options.only)]


def _measure(workload: Workload, bootstrap: str, options: Options, bars: Progress) -> Row:
    """Fill a topic, run every side on it, delete it."""
    topic = topics.create(bootstrap, workload.topic)
    try:
        task = bars.add_task(f"{workload.name}: fill", total=workload.topic.records)
        topics.fill(bootstrap, topic, workload.topic, lambda n: bars.advance(task, n))
        bars.remove_task(task)
        if workload.group == "memory":
            return _memory_row(workload, bootstrap, topic)
        row = _timed_row(workload, bootstrap, topic, options, bars)
    finally:
        topics.delete(bootstrap, topic)
    row.checks = workload.checks(row.seconds)
    return row


def _timed_row(
    workload: Workload, bootstrap: str, topic: str, options: Options, bars: Progress
) -> Row:
    row = Row(workload)
    wanted = [side for side in workload.sides() if _is_wanted(side, options)]
    task = bars.add_task(workload.name, total=workload.repeats * len(wanted))
    for _ in range(workload.repeats):
        for side in wanted:
            bars.update(task, description=f"{workload.name}: {side}")
            _run_into(row, side, bootstrap, topic)
            bars.advance(task)
    bars.remove_task(task)
    row.seconds = {side: statistics.median(values) for side, values in row.runs.items()}
    return row


def _is_wanted(side: str, options: Options) -> bool:
    if options.sides and side not in options.sides:
        return False
    return side != "java" or javapc.missing() is None


def _run_into(row: Row, side: str, bootstrap: str, topic: str) -> None:
    """A side that failed once is not run again: its error stands in the row."""
    if side in row.errors:
        return
    try:
        answer = sides.run_side(side, row.workload, bootstrap, topic)
    except sides.SideError as error:
        row.errors[side] = str(error)
        row.runs.pop(side, None)
        return
    row.runs.setdefault(side, []).append(answer["seconds"])
    if "cpu_s" in answer:
        row.cpu_s.setdefault(side, []).append(answer["cpu_s"])


def _memory_row(workload: Workload, bootstrap: str, topic: str) -> Row:
    row = Row(workload)
    try:
        answer = memory.run(workload, bootstrap, topic)
    except sides.SideError as error:
        row.errors["perkey-async"] = str(error)
        return row
    row.seconds["perkey-async"] = answer["seconds"]
    row.cpu_s["perkey-async"] = [answer["cpu_s"]]
    row.memory_mb = memory.tenths_mb(workload.topic.records, answer["samples"])
    row.checks = memory.checks(workload.topic.records, answer["samples"])
    return row


@contextmanager
def _broker(options: Options) -> Iterator[str]:
    """The bootstrap address: the given one, or that of a broker which lives as long as the run."""
    if options.bootstrap:
        yield options.bootstrap
        return
    with LocalBroker() as broker:
        yield broker.bootstrap


def _console() -> Console:
    """Stdout; a pipe or a file gets the width the table needs."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


def _bars() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit code 2 for options that make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], help="a workload or a group of them")
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of records")
    parser.add_argument("--bootstrap", help="an own broker instead of a local one")
    parser.add_argument("--side", action="append", default=[], help="perkey-async, java, …")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder of the JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a must is missed")
    given = parser.parse_args(arguments)
    options = Options(
        only=tuple(given.only),
        scale=given.scale,
        bootstrap=given.bootstrap,
        sides=tuple(given.side),
        results=given.results,
        check=given.check,
    )
    try:
        return run(options)
    except OptionsError as error:
        print(error, file=sys.stderr)
        return 2
