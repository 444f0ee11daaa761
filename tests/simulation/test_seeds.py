"""The core keeps every promise through random faults."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.simulation.conftest import regressions
from tests.support.seeds import new_seeds, skip_unless_changed

from simulators.core import profiles
from simulators.core.profiles import PROFILES
from simulators.core.runner import Totals, digest, run_seed, run_seeds
from simulators.core.watched import every_edge

FAULTS = (
    "cancelled",
    "commits lost",
    "crashes",
    "expelled",
    "fatal",
    "hung",
    "intake paused",
    "last commits",
    "late",
    "lost",
    "maps_cut",
    "outputs refused in a transaction",
    "read back",
    "refused gone",
    "refused retry",
    "refused stop",
    "repeats",
    "revoked",
    "skipped",
    "starts",
    "stops",
    "transactions aborted",
    "transactions in doubt",
    "answers lost",
)
#: what the seeds of the profiles meet, each at least so often in 300 lives of its subject
WORDS = {
    profiles.LOGS: {
        "foreign transactions": 300,
        "taken over past the last stable offset": 30,
        "topics made again": 50,
        "out of range": 20,
    },
    profiles.LATE: {"outputs late": 50, "intake paused": 100},
    profiles.WAITING: {"not begun": 1_000, "begun late": 5, "cancelled": 100},
    profiles.STEERED: {"steered": 2_000, "starts": 10_000},
    profiles.AHEAD: {"granted ahead": 200, "starts": 10_000},
    profiles.AWAY: {"probes": 200, "outages ended": 100, "attempts charged after max_s": 100},
    profiles.BRAKED: {"brakes": 100, "probes": 200, "attempts spared": 50},
    profiles.BUDGETED: {
        "paid for": 3_000,
        "room in a budget": 300,
        "shares compared": 3_000,
        "settled": 100,
    },
    profiles.LENT: {"lent": 10_000, "paid for": 3_000, "lines cut": 500},
    profiles.REDONE: {"redo begun": 500, "outcome redone": 200},
    profiles.OWNERS: {"obeyed by two owners": 500, "outcome redone": 20, "outcome skipped": 20},
    profiles.BOTH: {"answered skip": 300, "answered release": 300, "decided Retry": 100},
    profiles.PARKED: {
        "fetched again": 1_000,
        "gone while parked": 1,
        "exported by map": 50,
        "exported by time": 50,
        "exports refused": 1,
    },
    profiles.REFUSED_MAPS: {"maps refused in a transaction": 1_000},
    profiles.ABORTED: {"transactions aborted for their content": 3_000, "culprits found": 300},
}


#: Seeds of these profiles take a second each, and half of that.
FEWER = {
    profiles.HOLES: 60, profiles.MAPS: 120, profiles.OFFLINE: 200, profiles.BUDGETED: 150,
}  # fmt: skip


def run(first: int, count: int, jobs: int) -> Totals:
    """Seeds from `first` on; fails with every broken one and how to replay it."""
    for totals in run_seeds(first, count, jobs=jobs):
        assert not totals.broken, "\n".join(map(str, totals.broken[:10]))
    return totals


@pytest.mark.parametrize("seed", regressions())
def test_seed_that_once_failed(seed):
    """A seed that broke a promise once keeps all of them now."""
    assert [str(broken) for broken in run_seed(seed).broken] == []


@pytest.mark.push
def test_two_hundred_seeds():
    """Every promise holds through 200 lives."""
    run(20_000, 200, jobs=1)


@pytest.mark.push
@pytest.mark.timeout(900)
def test_a_thousand_seeds():
    """Every promise holds through 1,000 lives, and these meet every fault."""
    skip_unless_changed("core")
    totals = run(0, 1_000, jobs=2)
    assert [fault for fault in FAULTS if not totals.stats[fault]] == []


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_ten_thousand_new_seeds():
    """Every promise holds through 10,000 lives that are new each time, with every change of state."""
    totals = run(new_seeds(profiles.SHARED - 10_000), 10_000, jobs=2)
    assert totals.missing() == []
    assert totals.transitions <= every_edge()
    assert {fault: totals.stats[fault] for fault in FAULTS if totals.stats[fault] < 20} == {}


@pytest.mark.push
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", PROFILES)
def test_seeds_of_each_profile(first):
    """Every promise holds where the seeds are about one subject."""
    skip_unless_changed("core")
    totals = run(first, FEWER.get(first, 300) // 5, jobs=2)
    wanted = WORDS.get(first, {})
    assert [what for what in wanted if not totals.stats[what]] == []


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", PROFILES)
def test_new_seeds_of_each_profile(first):
    """So it does in lives that are new each time, which meet their subject often."""
    totals = run(first + new_seeds(profiles.WIDTH - 300), FEWER.get(first, 300), jobs=2)
    wanted = WORDS.get(first, {})
    assert {
        what: totals.stats[what] for what, count in wanted.items() if totals.stats[what] < count
    } == {}


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_same_seed_same_trace_in_another_process(hash_seed):
    """The effects of a seed do not depend on the process or its hash seed (S10)."""
    seeds = range(30, 50)
    code = "from simulators.core.runner import digest\n"
    code += f"print([digest(seed) for seed in {list(seeds)}])"
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert there.stdout.strip() == str([digest(seed) for seed in seeds])
