"""The real runtime keeps its promises on a scheduler that seeds drive."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable, Iterable

import pytest
from tests.simulation.conftest import regressions
from tests.support.seeds import new_seeds, skip_unless_changed

from perkey.runtime.member.run_log import RunLog
from simulators.runtime.patches import installed
from simulators.runtime.runner import digest, run_seed, run_seeds
from simulators.runtime.scheduler import Scheduler, Task
from simulators.runtime.world import World
from simulators.seeds import Totals

SEEN = (
    "calls",
    "commits",
    "epochs",
    "fenced",
    "killed",
    "lingered",
    "loaded",
    "lost",
    "released",
    "workers killed",
)


def run(first: int, count: int, jobs: int) -> Totals:
    """Seeds from `first` on; fails with every broken one and how to replay it."""
    for totals in run_seeds(first, count, jobs=jobs):
        assert not totals.broken, "\n".join(map(str, totals.broken[:10]))
    return totals


@pytest.mark.push
def test_seeds_that_once_failed():
    """A seed that broke a promise once keeps all of them now."""
    seeds = regressions("regressions-runtime.txt")
    assert [str(broken) for seed in seeds for broken in run_seed(seed).broken] == []


@pytest.mark.push
def test_thirty_lives_of_whole_apps():
    """Every promise holds through 30 lives."""
    run(100_000, 30, jobs=1)


@pytest.mark.push
@pytest.mark.timeout(900)
def test_two_hundred_lives_of_whole_apps():
    """Every promise holds through 200 lives, in which everything that may happen happens."""
    skip_unless_changed("runtime")
    totals = run(0, 200, jobs=2)
    assert {what: totals.stats[what] for what in SEEN if totals.stats[what] < 1} == {}


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_a_thousand_new_lives_of_whole_apps():
    """Every promise holds through 1,000 lives that are new each time."""
    run(new_seeds(10_000_000), 1_000, jobs=2)


def test_same_seed_same_turns():
    """A seed gives the same turns of the same threads each time it is run (S10)."""
    seeds = range(12)
    assert [digest(seed) for seed in seeds] == [digest(seed) for seed in seeds]


def test_what_the_environment_asks_for_reaches_no_seed(monkeypatch):
    """A run that is to serve a socket does not in a seed: its server would wait for ever."""
    plain = digest(1)
    monkeypatch.setenv("PERKEY_SOCKET", "1")
    assert digest(1) == plain


#: what no seed may ask of the machine
REAL = {
    *(time.monotonic, time.perf_counter, time.time, time.thread_time, time.process_time),
    *(time.monotonic_ns, time.perf_counter_ns, time.time_ns, time.sleep),
    _thread.start_new_thread,
}


@pytest.fixture
def real_calls(monkeypatch) -> Callable[[Iterable[int]], set[str]]:
    """Of these seeds: which real clocks and threads the runtime has called, and from where."""
    found: set[str] = set()
    body = Scheduler._body

    def seen(frame, event, called) -> None:
        if event == "c_call" and getattr(called, "__hash__", None) and called in REAL:
            found.add(f"{called.__name__} in {frame.f_code.co_filename}:{frame.f_lineno}")

    def watched(self: Scheduler, task: Task) -> None:
        sys.setprofile(seen)
        try:
            body(self, task)
        finally:
            sys.setprofile(None)

    def of(seeds: Iterable[int]) -> set[str]:
        for seed in seeds:
            run_seed(seed)
        return found

    monkeypatch.setattr(Scheduler, "_body", watched)
    return of


def test_no_seed_sees_a_real_clock(real_calls):
    """Whatever a seed does is decided by the seed, not by how busy the machine is."""
    assert real_calls(range(6)) == set()


def test_a_real_clock_is_seen(real_calls, monkeypatch):
    """One that was bound at import, as a default: it went past the patches, 27 of 37 seeds took other turns."""
    monkeypatch.setattr(RunLog.__init__, "__defaults__", (time.monotonic, None, None))
    assert any("run_log.py" in call for call in real_calls(range(6)))


def test_a_module_that_a_seed_imports_is_refused(monkeypatch):
    """It would come in with the real clocks."""
    world = World(0)
    monkeypatch.delitem(sys.modules, "perkey.spark.openings", raising=False)
    with (
        installed(world.sim, world.machine, shuffle=False),
        pytest.raises(AssertionError, match="AT_RUN"),
    ):
        __import__("perkey.spark.openings")
