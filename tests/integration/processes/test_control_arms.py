"""The judge on broken libraries: each mutant must be found, or the other scenarios prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.processes.test_kill import STATIC, kill_and_restart
from tests.integration.processes.test_pause import stand_still
from tests.support.chaos import SESSION_S, Chaos


def found(run: Chaos) -> str:
    """The problems of a run that must have some."""
    with pytest.raises(AssertionError, match="seed") as caught:
        run.verdict()
    return str(caught.value)


@pytest.mark.long
def test_an_app_without_order_is_found(chaos: Callable[..., Chaos]) -> None:
    """ordering="unordered" where key order was promised."""
    with chaos(seed=801, ordering="unordered", concurrency=16, work_s=0.01) as run:
        run.produce(500)
        child = run.start()
        run.all_done(30)
        run.terminate(child)
        problems = found(run)
        assert "order" in problems
        assert "overlaps" in problems


def test_committing_what_was_only_seen_is_found(chaos: Callable[..., Chaos]) -> None:
    """A frontier past what is done loses records at a kill."""
    options = {"mutant": "seen", "concurrency": 16, "work_s": 0.01}
    with chaos(seed=802, kafka=STATIC, **options) as run:
        run.produce(3000)
        kill_and_restart(run, 1)
        problems = found(run)
        assert "S2" in problems
        assert "lost" in problems


@pytest.mark.long
def test_a_commit_without_its_map_is_found(chaos: Callable[..., Chaos]) -> None:
    """With a record stuck at the base, all that was done beyond it repeats."""
    options = {"mutant": "no map", "concurrency": 16, "work_s": 0.01}
    with chaos(seed=803, kafka=STATIC, partitions=1, **options) as run:
        run.produce(4000, stuck="first")
        kill_and_restart(run, 2)
        last = run.start()
        run.let_work(last, 1.0)
        run.kill(last)
        assert "unexplained" in found(run)


@pytest.mark.long
def test_a_zombie_that_trusts_itself_is_found(chaos: Callable[..., Chaos]) -> None:
    """Without doubt after standing still, a member goes on with what it has lost."""
    options = {"session_s": SESSION_S, "concurrency": 16, "work_s": 0.02, "kind": "threads"}
    with chaos(seed=804, mutant="trusting", **options) as run:
        stand_still(run)
        assert "zombies" in found(run)
