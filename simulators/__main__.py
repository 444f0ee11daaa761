"""`python -m simulators`: check the core, the runtime or the sink against random faults."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated

import typer

from perkey.cli.commands import command_line
from perkey.cli.main import run
from perkey.errors import ConfigError


def simulate(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.")] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes to use.")] = 1,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of each seed before everything heals.")] = 300,
    seed: Annotated[int | None, typer.Option(help="Run this seed alone.")] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print every step and effect.")
    ] = False,
    runtime: Annotated[
        bool,
        typer.Option("--runtime", help="Run whole apps: the real runtime, not the core alone."),
    ] = False,
    sink: Annotated[
        bool, typer.Option("--sink", help="Run the transactional sink for Spark.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Run the core through random faults and check every promise.

    Each seed is one run of a group on an in-memory broker: crashes, rebalances, lost and doubtful
    commits, failing handlers. The same seed is the same run. Exit code 1 when a promise breaks.
    With --runtime whole apps run on the real runtime, on threads and loops whose turns the seed
    decides; --steps has no meaning then. With --sink it is a query with transactional=true, killed
    and repeated with other numbers of tasks.

    Example: python -m simulators --seeds 10000 --jobs 2
    """
    _check("--seeds", seeds)
    _check("--jobs", jobs)
    _check("--steps", steps)
    if trace and seed is None:
        raise ConfigError("--trace prints one seed: add --seed with its number")
    if runtime and sink:
        raise ConfigError("--runtime and --sink are two simulators: give one")
    runner = _runner(runtime=runtime, sink=sink)
    options = {} if runtime or sink else {"steps": steps}
    if seed is not None:
        return _one(runner, seed, options, trace=trace, as_json=as_json)
    return _many(runner, first, seeds, jobs, options, as_json=as_json)


def _runner(*, runtime: bool, sink: bool) -> ModuleType:
    """The module that runs seeds: of the core, of whole apps, or of the sink."""
    if sink:
        from simulators.sink import runner as of_the_sink

        return of_the_sink
    if not runtime:
        from simulators.core import runner as of_the_core

        return of_the_core
    if find_spec("greenlet") is None:
        raise ConfigError("--runtime needs greenlet: make setup, or pip install greenlet")
    from simulators.runtime import runner as of_the_runtime

    return of_the_runtime


def _check(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} {value}: give 1 or more")


def _one(
    runner: ModuleType, seed: int, options: dict[str, int], *, trace: bool, as_json: bool
) -> int:
    lines: list[str] | None = [] if trace else None
    totals = runner.run_seed(seed, trace=lines, **options)
    for line in lines or ():
        typer.echo(line)
    if as_json:
        typer.echo(totals.as_json())
    for broken in totals.broken:
        typer.echo(str(broken), err=True)
    if not totals.broken and not as_json:
        typer.echo(f"seed {seed}: {totals.steps} steps, every promise kept")
    return 1 if totals.broken else 0


def _many(
    runner: ModuleType, first: int, seeds: int, jobs: int, options: dict[str, int], *, as_json: bool
) -> int:
    from rich.console import Console
    from rich.progress import Progress

    totals = runner.Totals()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=seeds)
        for totals in runner.run_seeds(first, seeds, jobs=jobs, **options):
            progress.update(task, completed=totals.seeds)
    if as_json:
        typer.echo(totals.as_json())
    else:
        typer.echo(f"{totals.seeds} seeds, {totals.steps} steps, {len(totals.broken)} broken")
    for broken in totals.broken[:20]:
        typer.echo(str(broken), err=True)
    return 1 if totals.broken else 0


if __name__ == "__main__":
    sys.exit(run(None, command_line(simulate), "python -m simulators"))
