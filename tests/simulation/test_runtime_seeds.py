"""The real runtime keeps its promises on a scheduler that seeds drive."""

from __future__ import annotations

import pytest
from tests.simulation.conftest import regressions

from simulators.runtime.runner import digest, run_seed, run_seeds
from simulators.seeds import Totals

SEEN = ("calls", "commits", "epochs", "killed", "loaded", "lost", "released", "workers killed")


def run(first: int, count: int, jobs: int) -> Totals:
    """Seeds from `first` on; fails with every broken one and how to replay it."""
    for totals in run_seeds(first, count, jobs=jobs):
        assert not totals.broken, "\n".join(map(str, totals.broken[:10]))
    return totals


def test_seeds_that_once_failed():
    """A seed that broke a promise once keeps all of them now."""
    seeds = regressions("regressions-runtime.txt")
    assert [str(broken) for seed in seeds for broken in run_seed(seed).broken] == []


def test_a_hundred_lives_of_whole_apps():
    """Every promise holds through 100 lives, in which everything that may happen happens."""
    totals = run(100_000, 100, jobs=1)
    assert {what: totals.stats[what] for what in SEEN if totals.stats[what] < 1} == {}


@pytest.mark.push
@pytest.mark.timeout(900)
def test_a_thousand_lives_of_whole_apps():
    """Every promise holds through 1,000 lives; `python -m simulators --runtime` runs as many as you like."""
    run(0, 1_000, jobs=2)


def test_same_seed_same_turns():
    """A seed gives the same turns of the same threads each time it is run (S10)."""
    seeds = range(12)
    assert [digest(seed) for seed in seeds] == [digest(seed) for seed in seeds]


def test_what_the_environment_asks_for_reaches_no_seed(monkeypatch):
    """A run that is to serve a socket does not in a seed: its server would wait for ever."""
    plain = digest(1)
    monkeypatch.setenv("WEFT_SOCKET", "1")
    assert digest(1) == plain
