"""Killed with -9 at random moments and started again: nothing lost, order kept, repeats bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.chaos import COMMIT_WAY_S, Chaos
from tests.support.verdict import Verdict

STATIC = {"group.instance.id": "the-one"}  # a killed member's place is free again at once
LEAST = 1500  # records that a member finds when it starts


def kill_and_restart(run: Chaos, kills: int) -> None:
    """Kill the only member at random moments in its work, and start it again each time."""
    for _ in range(kills):
        run.supply(LEAST)
        child = run.start()
        run.let_work(child, run.dice.uniform(0.8, 1.8))
        run.let_settle(child)
        run.kill_at_work(child, LEAST)


def check_kills(run: Chaos, verdict: Verdict, kills: int) -> None:
    """The faults met work, and what was committed before them was spared."""
    assert run.kills == kills
    assert verdict.restarts, "no kill met a running handler"
    assert verdict.repeats, "no kill met a completed record that was not committed"
    assert all(run.spared(excuse) for excuse in run.excuses), "killed before anything was committed"


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("async", 3),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("threads", 2), ("async", 25))),
    ],
)
@pytest.mark.timeout(300)
def test_a_killed_app_loses_nothing_and_repeats_only_its_last_interval(
    chaos: Callable[..., Chaos], kind: str, kills: int
) -> None:
    """S1, S2, S3, S5 over kills of a loaded app."""
    options = {"kind": kind, "failing_permille": 20, "concurrency": 16, "work_s": 0.01}
    with chaos(seed=101, kafka=STATIC, **options) as run:
        run.produce(1500 * kills)
        kill_and_restart(run, kills)
        last = run.start()
        run.all_done(90)
        run.until(run.committed, 10, "everything committed")
        run.terminate(last)
        check_kills(run, run.verdict(), kills)


@pytest.mark.timeout(300)
def test_a_kill_repeats_a_thousand_and_50_ms_of_work_by_default(
    chaos: Callable[..., Chaos],
) -> None:
    """S5 with `Commit()`: besides what was in flight, and not the last second's work."""
    options = {"commit_s": 1.0, "commit_by_default": True, "concurrency": 40, "work_s": 0.005}
    with chaos(seed=103, kafka=STATIC, **options) as run:
        spans = []
        for _ in range(3):
            run.supply(12_000, keys=2_000)
            child = run.start()
            run.let_work(child, run.dice.uniform(0.85, 0.95))  # before the interval ends
            excuse = run.kill_at_work(child, 6_000, keys=2_000)
            began = run.watch.before(excuse.until, 0.05 + COMMIT_WAY_S)
            spans.append((excuse, began))
        last = run.start()
        run.all_done(90)
        run.until(run.committed, 10, "everything committed")
        run.terminate(last)
        verdict = run.verdict()
        for excuse, began in spans:
            recent = sum(
                e.kind == "E" and e.pid == excuse.pid and e.at > began for e in run.entries
            )
            done = sum(e.kind == "E" and e.pid == excuse.pid for e in run.entries)
            print(f"done {done} repeats {verdict.repeats[excuse]} bound 40 + 1000 + {recent}")
            assert verdict.repeats[excuse] <= 40 + 1_000 + recent


def test_one_stuck_record_at_the_base_does_not_widen_the_repeats(
    chaos: Callable[..., Chaos],
) -> None:
    """S5 with the frontier standing still: the offset map alone bounds what a kill repeats."""
    with chaos(seed=102, kafka=STATIC, partitions=1, concurrency=16, work_s=0.01) as run:
        run.produce(4000, stuck="first")
        kill_and_restart(run, 3)
        last = run.start()
        run.all_done(60, but=1)
        assert set(run.watch.frontiers().values()) == {0}, "the stuck record did not hold the base"
        assert any(one.metadata for one in run.watch.seen), "no map was committed"
        (run.folder / "release").touch()
        run.all_done(10)
        run.until(run.committed, 10, "everything committed")
        run.terminate(last)
        check_kills(run, run.verdict(), 3)
