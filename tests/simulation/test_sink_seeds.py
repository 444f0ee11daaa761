"""The transactional sink: each row of a batch once, whatever dies and whoever repeats it."""

from __future__ import annotations

import pytest

from simulators.sink.mutants import MUTANTS, alive
from simulators.sink.runner import run_seed, run_seeds

SEEDS = 300
#: seeds that once failed: equal sums of other rows, a run behind another, copies in the next batch
REGRESSIONS = (1, 122, 251, 901)
FAULTS = ("crash", "kill", "lose", "copy", "split", "time out", "foreign", "zombies refused")


def test_every_row_is_there_once():
    """Drivers, tasks, zombies and layouts from seeds; every fault happens."""
    *_, totals = run_seeds(0, SEEDS)
    assert not totals.broken, totals.broken[0]
    assert all(totals.stats[fault] > 30 for fault in FAULTS), totals.stats


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_a_seed_that_once_failed_holds(seed):
    """They stay for ever."""
    assert not run_seed(seed).broken


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name):
    """A protocol that leaves out one step breaks its promise within 300 seeds."""
    with alive(name):
        assert any(run_seed(seed).broken for seed in range(SEEDS)), name
