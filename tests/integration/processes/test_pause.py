"""A process that stands still past its session does no harm when it goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.chaos import ONE_ON_A_PUSH, SESSION_S, STOOD_STILL, STOPPED_S, Chaos
from tests.support.verdict import Excuse


def stand_still(run: Chaos) -> tuple[Excuse, float]:
    """Two members; one is stopped until the other has all its partitions, then continued."""
    first, second = run.start(), run.start()
    run.feed(600)
    run.until(lambda: min(map(run.starts_of, (first, second))) > 50, 30, "both work")
    run.until(lambda: divided(run, first.pid, second.pid), 30, "each has two partitions")
    since = run.suspend_at_work(first)
    run.until(lambda: taken_over(run, second.pid, since), 30, "the second takes all over")
    threading.Event().wait(0.5)
    excuse = run.wake(first, since)
    threading.Event().wait(SESSION_S)
    run.stop_feeding()
    run.all_done(30)
    run.until(run.committed, 10, "everything committed")
    for child in (first, second):
        run.terminate(child)
    return excuse, since


def divided(run: Chaos, *pids: int) -> bool:
    """Each of these works on two partitions of its own: a cooperative group's second round is over."""
    run.look()
    latest = [e for e in run.entries if e.kind == "S"][-200:]
    held = [{e.partition for e in latest if e.pid == pid} for pid in pids]
    return [len(one) for one in held] == [2, 2] and set.union(*held) == {0, 1, 2, 3}


def taken_over(run: Chaos, pid: int, since: float) -> bool:
    """This process has begun records of every partition since then."""
    run.look()
    later = [e for e in run.entries if e.kind == "S" and e.pid == pid and e.at > since]
    return {entry.partition for entry in later} == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["threads", pytest.param("async", marks=pytest.mark.long)])
@pytest.mark.parametrize("protocol", ONE_ON_A_PUSH)
def test_a_zombie_commits_nothing_and_starts_nothing(
    chaos: Callable[..., Chaos], protocol: str, kind: str
) -> None:
    """S7: stopped with SIGSTOP until another member has its partitions, then continued."""
    options = {"session_s": SESSION_S, "concurrency": 16, "work_s": 0.02, "kind": kind}
    with chaos(seed=301, protocol=protocol, **options) as run:
        excuse, since = stand_still(run)
        verdict = run.verdict()
        late = [e for e in run.entries if e.pid == excuse.pid and e.kind != "S" and e.at > since]
        assert late, "nothing was in flight when it was stopped"
        assert verdict.bounds[excuse]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["async", "threads"])
def test_at_most_once_begins_nothing_behind_its_successor(
    chaos: Callable[..., Chaos], kind: str
) -> None:
    """Woken after its session it begins no record that another member has or has gone past."""
    options = {"concurrency": 16, "work_s": 0.02, "kind": kind, "mode": "at_most_once"}
    with chaos(seed=304, protocol="eager", session_s=SESSION_S, **options) as run:
        first, second = run.start(), run.start()
        run.feed(600)
        run.until(lambda: min(map(run.starts_of, (first, second))) > 50, 30, "both work")
        since = run.suspend(first)
        run.until(lambda: taken_over(run, second.pid, since), 30, "the second takes all over")
        run.wake(first, since)
        threading.Event().wait(SESSION_S)
        run.stop_feeding()
        run.until(run.committed, 30, "everything committed")
        for child in (first, second):
            run.terminate(child)
        run.look()
        begun = sorted((e for e in run.entries if e.kind == "S"), key=lambda entry: entry.at)
        assert max(Counter(entry.record for entry in begun).values()) == 1
        last: dict[tuple[int, str], int] = {}
        for entry in begun:
            assert last.get(entry.lane, -1) < entry.offset
            last[entry.lane] = entry.offset


def test_a_short_stop_costs_nothing(chaos: Callable[..., Chaos]) -> None:
    """Standing still within the session: no record is repeated, and work goes on."""
    with chaos(seed=302, concurrency=16, work_s=0.02) as run:
        child = run.start()
        run.feed(400)
        run.let_work(child, 0.5)
        since = run.suspend(child)
        threading.Event().wait(STOPPED_S + 0.1)
        run.wake(child, since)
        woken = run.completed
        run.until(lambda: run.completed > woken + 100, 5, "it goes on")
        run.stop_feeding()
        run.all_done(20)
        run.terminate(child)
        assert STOOD_STILL in child.said(10**7)
        assert run.verdict().repeated == 0
