"""Run many seeds in several processes, and collect their coverage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import TimeoutError as TookTooLongError
from multiprocessing import get_context
from typing import Any, Self, TypeVar

T = TypeVar("T")
S = TypeVar("S", bound="Totals")

CHUNK_LIMIT_S = 300.0  # a chunk takes a second or two; a seed without an end is to be named


class SeedsStuckError(RuntimeError):
    """A chunk of seeds has not come to its end."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A seed that broke a promise."""

    seed: int
    what: str
    #: options of `python -m simulators` that run it again
    options: str

    def __str__(self) -> str:
        replay = f"python -m simulators {self.options} --trace"
        return f"seed {self.seed}: {self.what}\n  replay: {replay}"


@dataclass
class Totals:
    """What a number of seeds covered."""

    seeds: int = 0
    steps: int = 0
    stats: Counter[str] = field(default_factory=Counter)
    broken: list[Broken] = field(default_factory=list)

    def add(self, other: Self) -> None:
        """Count the other's seeds in."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.stats += other.stats
        self.broken += other.broken

    def row(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "seeds": self.seeds,
            "steps": self.steps,
            "broken": [{"seed": b.seed, "what": b.what} for b in self.broken],
            "stats": dict(sorted(self.stats.items())),
        }

    def as_json(self) -> str:
        """For people who count."""
        return json.dumps(self.row())


def dealt_out(
    run_chunk: Callable[[int, int], T],
    chunks: list[tuple[int, int]],
    *,
    jobs: int,
    limit_s: float = CHUNK_LIMIT_S,
) -> Iterator[T]:
    """What `run_chunk(first, count)` says of each chunk, in order; one process needs no other.

    Raises `SeedsStuckError` when a chunk takes longer than `limit_s`. The processes are killed
    when the caller stops reading, for whatever reason: to wait for them would hang with a seed.
    """
    if jobs == 1:
        yield from (run_chunk(first, count) for first, count in chunks)
        return
    with get_context("spawn").Pool(jobs) as pool:  # leaving it kills
        results = pool.imap(partial(_apart, run_chunk), chunks)
        for first, count in chunks:
            try:
                yield results.next(limit_s)
            except TookTooLongError:
                which = f"seeds {first} to {first + count - 1}"
                raise SeedsStuckError(
                    f"{which} have not ended after {limit_s:.0f} s: run each of them alone"
                ) from None


def _apart(run_chunk: Callable[[int, int], T], chunk: tuple[int, int]) -> T:
    return run_chunk(*chunk)


def totals_so_far(
    run_seed: Callable[[int], S], of: type[S], first: int, count: int, *, chunk: int, jobs: int
) -> Iterator[S]:
    """What seeds from `first` on covered, after each chunk of them."""
    chunks = [(at, min(chunk, first + count - at)) for at in range(first, first + count, chunk)]
    totals = of()
    for some in dealt_out(partial(_run_chunk, run_seed, of), chunks, jobs=jobs):
        totals.add(some)
        yield totals


def _run_chunk(run_seed: Callable[[int], S], of: type[S], first: int, count: int) -> S:
    """Seeds one after another."""
    totals = of()
    for seed in range(first, first + count):
        totals.add(run_seed(seed))
    return totals
