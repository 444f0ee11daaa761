"""`weft simulate`: prove the core against random faults."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.errors import ConfigError


def simulate(
    seeds: Annotated[int, typer.Option(help="How many seeds to run.")] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes to use.")] = 1,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of each seed before everything heals.")] = 300,
    seed: Annotated[int | None, typer.Option(help="Run this seed alone.")] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print every step and effect.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Run the core through random faults and check every promise.

    Each seed is one life of a group on an in-memory broker: crashes, rebalances, lost and doubtful
    commits, failing handlers. The same seed is the same life. Exit code 1 when a promise breaks.

    Example: weft simulate --seeds 10000 --jobs 2
    """
    _check("--seeds", seeds)
    _check("--jobs", jobs)
    _check("--steps", steps)
    if seed is not None:
        return _one(seed, steps, trace=trace, as_json=as_json)
    if trace:
        raise ConfigError("--trace prints one seed: add --seed with its number")
    return _many(first, seeds, jobs, steps, as_json=as_json)


def _check(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} {value}: give 1 or more")


def _one(seed: int, steps: int, *, trace: bool, as_json: bool) -> int:
    from weft.testing.sim.runner import run_seed

    lines: list[str] | None = [] if trace else None
    totals = run_seed(seed, steps, trace=lines)
    for line in lines or ():
        typer.echo(line)
    if as_json:
        typer.echo(totals.as_json())
    for broken in totals.broken:
        typer.echo(str(broken), err=True)
    if not totals.broken and not as_json:
        typer.echo(f"seed {seed}: {totals.steps} steps, every promise kept")
    return 1 if totals.broken else 0


def _many(first: int, seeds: int, jobs: int, steps: int, *, as_json: bool) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from weft.testing.sim.runner import Totals, run_seeds

    totals = Totals()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=seeds)
        for totals in run_seeds(first, seeds, jobs=jobs, steps=steps):
            progress.update(task, completed=totals.seeds)
    if as_json:
        typer.echo(totals.as_json())
    else:
        typer.echo(f"{totals.seeds} seeds, {totals.steps} steps, {len(totals.broken)} broken")
    for broken in totals.broken[:20]:
        typer.echo(str(broken), err=True)
    return 1 if totals.broken else 0
