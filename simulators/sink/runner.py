"""Many seeds of the sink's simulator."""

from __future__ import annotations

from collections.abc import Iterator

from simulators.seeds import Broken, Totals, totals_so_far
from simulators.sink.world import World

CHUNK = 100


def run_seed(seed: int, *, trace: list[str] | None = None) -> Totals:
    """One seed; what went wrong is in `broken`, never raised."""
    totals = Totals(seeds=1)
    world = World(seed, trace=trace)
    try:
        world.run()
    except Exception as error:  # whatever the protocol raises is a finding like any other
        what = f"{type(error).__name__}: {error}"
        totals.broken.append(Broken(seed, what, f"--sink --seed {seed}"))
    totals.steps = world.steps
    totals.stats += world.stats
    return totals


def run_seeds(first: int, count: int, *, jobs: int = 1) -> Iterator[Totals]:
    """Totals so far, after each chunk."""
    return totals_so_far(run_seed, Totals, first, count, chunk=CHUNK, jobs=jobs)
