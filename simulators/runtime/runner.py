"""Run many seeds of the runtime simulator in several processes."""

from __future__ import annotations

from collections.abc import Iterator

from simulators.runtime.world import World
from simulators.seeds import Broken, Totals, totals_so_far

CHUNK = 10  # seeds handed to a process at once


def run_seed(seed: int, *, trace: list[str] | None = None) -> Totals:
    """One seed; what went wrong is in `broken`, never raised."""
    totals = Totals(seeds=1)
    world = World(seed, trace=trace)
    try:
        world.run()
    except Exception as error:  # whatever the runtime raises is a finding like any other
        what = f"{type(error).__name__}: {error}"
        totals.broken.append(Broken(seed, what, f"--runtime --seed {seed}"))
    totals.steps = world.sim.steps
    totals.stats += world.oracle.stats
    return totals


def digest(seed: int) -> tuple[int, int]:
    """Who ran when, as a hash, and how many steps: the same in every run (S10)."""
    world = World(seed)
    world.run()
    return world.sim.digest, world.sim.steps


def run_seeds(first: int, count: int, *, jobs: int = 1) -> Iterator[Totals]:
    """Totals so far, after each chunk."""
    return totals_so_far(run_seed, Totals, first, count, chunk=CHUNK, jobs=jobs)
