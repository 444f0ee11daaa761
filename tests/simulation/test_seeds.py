"""The core keeps every promise through random faults."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from math import ceil, floor, sqrt

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
#: What the lives of a profile are about, and the share of them that meets it (of 600 new ones, or
#: 900; rounded down). Lives are counted, as one life in twenty may have thousands of an event.
WORDS: dict[int, dict[str, float]] = {
    profiles.LOGS: {
        "foreign transactions": 0.75,
        "taken over past the last stable offset": 0.5,
        "topics made again": 0.35,
        "out of range": 0.22,
    },
    profiles.LATE: {"outputs late": 0.28, "intake paused": 0.53},
    profiles.WAITING: {"cancelled": 0.35},
    profiles.STEERED: {"steered": 0.95},
    profiles.AHEAD: {"granted ahead": 0.75},
    profiles.AWAY: {"probes": 0.35, "outages ended": 0.3, "attempts charged after max_s": 0.12},
    profiles.BRAKED: {"brakes": 0.28, "probes": 0.22, "attempts spared": 0.08},
    profiles.BUDGETED: {
        "paid for": 0.98,
        "room in a budget": 0.7,
        "shares compared": 0.04,
        "settled": 0.24,
    },
    profiles.REPEATED: {"obeyed again": 0.93, "outcome skipped": 0.1},
    profiles.BOTH: {"answered skip": 0.7, "answered release": 0.75, "decided Retry": 0.28},
    profiles.PARKED: {
        "fetched again": 0.55,
        "gone while parked": 0.04,
        "given up by at_map": 0.035,
        "given up by after_s": 0.08,
    },
    profiles.REFUSED_MAPS: {"maps refused in a transaction": 0.53},
    profiles.ABORTED: {"transactions aborted for their content": 0.6, "culprits found": 0.48},
}
#: so many lives are expected to meet the rarest of these: none of them does, once in 160,000 times
RARE = 12
#: calls in a life, on average: lives in which little happens find little
STARTS = 15


#: Seeds of these profiles take a second each, and half of that.
FEWER = {
    profiles.HOLES: 60, profiles.MAPS: 120, profiles.OFFLINE: 200, profiles.BUDGETED: 150,
}  # fmt: skip


def least(expected: float) -> int:
    """Fewer lives than this are not by chance: five standard deviations, and at least one."""
    return max(1, floor(expected - 5 * sqrt(expected)))


def too_rare(totals: Totals, wanted: dict[str, float]) -> dict[str, tuple[int, int]]:
    """What too few lives have met: how many did, and how many should."""
    lives = {
        what: (totals.lives[what], least(share * totals.seeds)) for what, share in wanted.items()
    }
    return {what: (met, should) for what, (met, should) in lives.items() if met < should}


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
    assert {fault: totals.stats[fault] for fault in FAULTS if totals.stats[fault] < 20} == {}
    totals.add(run(profiles.BOTH + new_seeds(profiles.WIDTH - 500), 500, jobs=2))
    for profile in (profiles.AWAY, profiles.BUDGETED, profiles.PARKED, profiles.DECIDED):
        totals.add(run(profile + new_seeds(profiles.WIDTH - 100), 100, jobs=2))
    assert totals.missing() == []  # BOTH meets in one life of 25 what others do in one of 10,000
    assert totals.transitions.keys() <= every_edge()


@pytest.mark.push
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", PROFILES)
def test_seeds_of_each_profile(first):
    """Every promise holds where the seeds are about one subject."""
    skip_unless_changed("core")
    count = FEWER.get(first, 300) // 5
    totals = run(first, count, jobs=2)
    often = {what: share for what, share in WORDS.get(first, {}).items() if share * count >= RARE}
    assert too_rare(totals, often) == {}
    assert totals.stats["starts"] > STARTS * count


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", PROFILES)
def test_new_seeds_of_each_profile(first):
    """So it does in lives that are new each time, which meet their subject as often as ever."""
    wanted = WORDS.get(first, {})
    count = max(FEWER.get(first, 300), ceil(RARE / min(wanted.values(), default=1.0)))
    totals = run(first + new_seeds(profiles.WIDTH - count), count, jobs=2)
    assert too_rare(totals, wanted) == {}
    assert totals.stats["starts"] > STARTS * count


@pytest.mark.parametrize(("met", "found"), [(88, {}), (87, {"a": (87, 88)}), (0, {"a": (0, 88)})])
def test_what_too_few_lives_meet_is_found(met, found):
    """150 of 300 are expected: the limit is five standard deviations below."""
    totals = Totals(seeds=300, lives=Counter(a=met))
    assert too_rare(totals, {"a": 0.5}) == found


def test_a_rare_event_must_be_met_once():
    """Where few lives are expected to meet it, none of them is too few."""
    assert least(RARE) == 1


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
