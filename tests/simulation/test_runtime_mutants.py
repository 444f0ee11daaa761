"""Each fault that all other tests let pass, put back: the runtime simulator names the promise."""

from __future__ import annotations

from itertools import count, islice

import pytest

from simulators.runtime.mutants import MUTANTS, Fault
from simulators.runtime.runner import run_seed
from simulators.runtime.setup import draw

SEEDS_MAX = 500


def promise_broken(seed: int) -> str | None:
    """The name of the promise that this seed sees broken."""
    for broken in run_seed(seed).broken:
        kind, _, rest = broken.what.partition(": ")
        return rest.partition(":")[0] if kind == "Violation" else None
    return None


def first_caught(mutant: Fault) -> int | None:
    """The first seed, of those that may show it, that reports a promise which it breaks."""
    seeds = (seed for seed in count(mutant.first_seed) if mutant.among(draw(seed)))
    with mutant.alive():
        for seed in islice(seeds, SEEDS_MAX):
            if promise_broken(seed) in mutant.promises:
                return seed
    return None


@pytest.mark.push
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_fault_is_found(mutant, record_property):
    """The simulator names a promise that the fault breaks, within 500 seeds that have what it needs."""
    seed = first_caught(mutant)
    record_property("seed", seed)
    assert seed is not None, f"{mutant.name} survived {SEEDS_MAX} seeds"
