"""Handlers that take longer than a rebalance waits, and longer than max.poll.interval.ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.chaos import Chaos
from tests.support.verdict import Excuse

REVOKE_S = 0.7
POLL_INTERVAL_S = 10  # more than a busy machine keeps a thread from its turn
LONG_CALL_S = 1.4 * POLL_INTERVAL_S


def grow_under(run: Chaos) -> tuple[int, int]:
    """A second member joins while calls of the first hold all its slots; their pids.

    The calls end only when the second has begun its own.
    """
    run.produce(30, stuck="all")
    first = run.start()
    run.until(
        lambda: run.starts_of(first) == run.plan.concurrency, 20, "all slots are in long calls"
    )
    second = run.start()
    run.until(lambda: run.starts_of(second) > 5, 20, "the second has partitions")
    (run.folder / "release").touch()
    # What was cut off or left running is the revoke's doing; nothing that was done may repeat.
    run.excuses.append(Excuse("cut off", first.pid, 0, 0))
    return first.pid, second.pid


def test_async_calls_longer_than_a_revoke_are_cancelled_and_given_back(
    chaos: Callable[..., Chaos],
) -> None:
    """They end within the revoke; the next owner runs them, and no two run at once."""
    with chaos(seed=701, concurrency=12, revoke_timeout_s=REVOKE_S) as run:
        first, _ = grow_under(run)
        cancelled = [e for e in run.entries if e.kind == "F" and e.pid == first]
        assert cancelled, "no call was cut off"
        run.all_done(60)
        for child in run.living():
            run.terminate(child)
        verdict = run.verdict()
        assert verdict.repeated == 0


@pytest.mark.long
def test_threads_longer_than_a_revoke_run_on_and_count_for_nothing(
    chaos: Callable[..., Chaos],
) -> None:
    """A thread cannot be ended: its record is handled again by the next owner.

    Its late end is dropped, and its lane is held should the partition come back.
    """
    with chaos(seed=702, kind="threads", concurrency=12, revoke_timeout_s=REVOKE_S) as run:
        first, second = grow_under(run)
        run.excuses.append(Excuse("threads run on", first, 0, 1e9, overlap=True))
        run.all_done(90)
        for child in run.living():
            run.terminate(child)
        verdict = run.verdict()
        started = Counter((e.pid, e.record) for e in run.entries if e.kind == "S")
        moved = [record for pid, record in started if pid == second and started[first, record]]
        held = [record for (pid, record), calls in started.items() if pid == first and calls > 1]
        assert moved, "no call was longer than the revoke of a partition that moved"
        assert held, "no call was longer than the revoke of a partition that came back"
        again = verdict.starts - verdict.records
        assert again == len(moved) + len(held) <= run.plan.concurrency


@pytest.mark.parametrize("kind", ["threads", pytest.param("async", marks=pytest.mark.long)])
def test_a_handler_longer_than_max_poll_interval_keeps_its_membership(
    chaos: Callable[..., Chaos], kind: str
) -> None:
    """Calls longer than max.poll.interval.ms: each record once, one assignment for ever."""
    kafka = {"max.poll.interval.ms": 1000 * POLL_INTERVAL_S}
    options = {"kafka": kafka, "slow_s": LONG_CALL_S, "concurrency": 20}
    options["revoke_timeout_s"] = POLL_INTERVAL_S / 3  # its limit
    # Of the poll interval's length, the longest that librdkafka takes beside it.
    session = {"session_s": POLL_INTERVAL_S}
    with chaos(seed=703, kind=kind, slow_permille=1000, **session, **options) as run:
        run.produce(20, keys=1000)
        child = run.start()
        run.all_done(40)
        run.until(run.committed, 5, "everything committed")
        run.terminate(child)
        verdict = run.verdict()
        assert (verdict.repeated, verdict.restarts) == (0, 0)
        said = child.said(10**6)
        assert said.count(" assigned ") == 1
        assert " lost " not in said
