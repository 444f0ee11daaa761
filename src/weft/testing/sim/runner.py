"""Many seeds, on several processes, and what they covered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from weft.core.states import RECORD_NAMES, RECORD_TABLE
from weft.testing.sim.watched import watched
from weft.testing.sim.world import World

STEPS = 300
CHUNK = 50  # seeds handed to a process at once


@dataclass(frozen=True, slots=True)
class Broken:
    """A seed that broke a promise."""

    seed: int
    steps: int
    what: str

    def __str__(self) -> str:
        extra = "" if self.steps == STEPS else f" --steps {self.steps}"
        replay = f"weft simulate --seed {self.seed}{extra} --trace"
        return f"seed {self.seed}: {self.what}\n  replay: {replay}"


@dataclass(slots=True)
class Totals:
    """What a number of seeds covered."""

    seeds: int = 0
    steps: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    transitions: set[tuple[int, int]] = field(default_factory=set)
    broken: list[Broken] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Count the other's seeds in."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.stats += other.stats
        self.transitions |= other.transitions
        self.broken += other.broken

    def missing(self) -> list[str]:
        """Changes of state that the table allows and no seed has made."""
        return [
            f"{RECORD_NAMES[before]} to {RECORD_NAMES[after]}: {RECORD_TABLE[before, after]}"
            for before, after in RECORD_TABLE
            if (before, after) not in self.transitions
        ]

    def as_json(self) -> str:
        """For people who count."""
        return json.dumps(
            {
                "seeds": self.seeds,
                "steps": self.steps,
                "broken": [{"seed": b.seed, "what": b.what} for b in self.broken],
                "stats": dict(sorted(self.stats.items())),
                "transitions": len(self.transitions),
                "transitions_missing": self.missing(),
            }
        )


def run_seed(seed: int, steps: int = STEPS, *, trace: list[str] | None = None) -> Totals:
    """One seed; what went wrong is in `broken`, never raised."""
    totals = Totals(seeds=1)
    world = None
    with watched() as seen:
        try:
            world = World(seed, steps, trace=trace)
            world.run()
        except Exception as error:  # a KeyError of the engine is a finding like any other
            totals.broken.append(Broken(seed, steps, f"{type(error).__name__}: {error}"))
        totals.transitions |= seen
    if world is not None:
        totals.steps = world.step
        totals.stats += world.oracle.stats
    return totals


def digest(seed: int, steps: int = STEPS) -> int:
    """The hash of all effects of a seed: the same in every run and every process (S10)."""
    world = World(seed, steps)
    world.run()
    return world.digest


def run_chunk(first: int, count: int, steps: int) -> Totals:
    """Seeds one after another."""
    totals = Totals()
    for seed in range(first, first + count):
        totals.add(run_seed(seed, steps))
    return totals


def run_seeds(first: int, count: int, *, jobs: int = 1, steps: int = STEPS) -> Iterator[Totals]:
    """Totals so far, after each chunk."""
    chunks = [(at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK)]
    totals = Totals()
    if jobs == 1:
        for at, size in chunks:
            totals.add(run_chunk(at, size, steps))
            yield totals
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_chunk, at, size, steps) for at, size in chunks]
        for future in futures:
            totals.add(future.result())
            yield totals
