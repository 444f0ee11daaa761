"""Static members: a restart gets its partitions back at once, and a clean end leaves no ghost."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

import pytest
from tests.support.chaos import Chaos, Child

SESSION_S = 60.0  # so that a busy machine cannot take for "at once" what waited for it
AT_ONCE_S = 30.0


def named(run: Chaos, name: str) -> Child:
    """A member with this group.instance.id."""
    return run.start(kafka={**run.plan.kafka, "group.instance.id": name})


def assigned_after(child: Child) -> float:
    """Seconds from its first line, "starting", to its first assignment."""
    lines = child.said(10**6).splitlines()
    times = {
        word: datetime.fromisoformat(line.split()[0]).timestamp()
        for word in ("assigned", "starting")
        for line in lines
        if f" {word} " in line
    }
    return times["assigned"] - times["starting"]


def test_a_killed_static_member_is_back_immediately(chaos: Callable[..., Chaos]) -> None:
    """After kill -9 and a restart under the same id: partitions in 0.3 s and no rebalance for others."""
    with chaos(seed=501, session_s=SESSION_S, concurrency=16, work_s=0.01) as run:
        run.feed(300)
        other, killed = named(run, "other"), named(run, "killed")
        run.until(lambda: min(map(run.starts_of, (other, killed))) > 50, 30, "both work")
        rebalances = other.said(10**6).count("assigned")
        run.kill(killed)
        again = named(run, "killed")
        run.until(lambda: run.starts_of(again) > 20, 10, "it works again")
        assert assigned_after(again) < AT_ONCE_S
        assert other.said(10**6).count("assigned") == rebalances
        run.stop_feeding()
        run.all_done(20)
        for child in (other, again):
            run.terminate(child)
        assert run.verdict().bounds[run.excuses[0]]


@pytest.mark.long
def test_a_static_member_that_ends_leaves_no_ghost(chaos: Callable[..., Chaos]) -> None:
    """After SIGTERM another member has all partitions long before the session would be over."""
    with chaos(seed=502, session_s=SESSION_S, concurrency=16, work_s=0.01) as run:
        run.feed(300)
        leaving, staying = named(run, "leaving"), named(run, "staying")
        run.until(lambda: min(map(run.starts_of, (leaving, staying))) > 50, 30, "both work")
        took_s = run.terminate(leaving)
        at = time.monotonic()
        moved_s = run.until(lambda: covers(run, staying, at), 60, "the other has all partitions")
        assert took_s + moved_s < AT_ONCE_S
        run.stop_feeding()
        run.all_done(20)
        run.terminate(staying)
        verdict = run.verdict()
        assert (verdict.repeated, verdict.restarts) == (0, 0)


def covers(run: Chaos, child: Child, since: float) -> bool:
    """It has begun records of every partition since then."""
    run.look()
    later = [e for e in run.entries if e.kind == "S" and e.pid == child.pid and e.at > since]
    return {entry.partition for entry in later} == {0, 1, 2, 3}
