"""Run many seeds in several processes, and collect their coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from simulators import seeds
from simulators.core.steps import live
from simulators.core.watched import Edge, every_edge, watched
from simulators.core.world import World
from simulators.seeds import Broken, totals_so_far

STEPS = 300
CHUNK = 50  # seeds handed to a process at once


@dataclass
class Totals(seeds.Totals):
    """What a number of seeds covered, and in how many of them each thing happened."""

    #: each word of `stats`, once per seed: few seeds may have thousands of it, and the others none
    lives: Counter[str] = field(default_factory=Counter)
    #: changes of state, once per seed
    transitions: Counter[Edge] = field(default_factory=Counter)

    def add(self, other: Self) -> None:
        """Count the other's seeds in."""
        super().add(other)
        self.lives += other.lives
        self.transitions += other.transitions

    def missing(self) -> list[str]:
        """Changes of state that the tables allow and no seed has made."""
        return [str(edge) for edge in sorted(every_edge() - self.transitions.keys())]

    def row(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            **super().row(),
            "lives": dict(sorted(self.lives.items())),
            "transitions": len(self.transitions),
            "transitions_missing": self.missing(),
        }


def run_seed(seed: int, steps: int = STEPS, *, trace: list[str] | None = None) -> Totals:
    """One seed; what went wrong is in `broken`, never raised."""
    totals = Totals(seeds=1)
    world = None
    with watched() as seen:
        try:
            world = World(seed, steps, trace=trace)
            live(world)
        except Exception as error:  # a KeyError of the engine is a finding like any other
            what = f"{type(error).__name__}: {error}"
            totals.broken.append(Broken(seed, what, _options(seed, steps)))
        totals.transitions.update(seen)
    if world is not None:
        totals.steps = world.step
        totals.stats += world.oracle.stats
        totals.lives.update(totals.stats.keys())
    return totals


def _options(seed: int, steps: int) -> str:
    return f"--seed {seed}" if steps == STEPS else f"--seed {seed} --steps {steps}"


def digest(seed: int, steps: int = STEPS) -> int:
    """The hash of all effects of a seed: the same in every run and every process (S10)."""
    world = World(seed, steps)
    live(world)
    return world.digest


def run_seeds(first: int, count: int, *, jobs: int = 1, steps: int = STEPS) -> Iterator[Totals]:
    """Totals so far, after each chunk."""
    return totals_so_far(
        partial(run_seed, steps=steps), Totals, first, count, chunk=CHUNK, jobs=jobs
    )
