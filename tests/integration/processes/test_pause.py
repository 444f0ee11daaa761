"""A process that stands still past its session: its partitions move on, and it does no harm when
it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.chaos import SESSION_S, Chaos


@pytest.mark.parametrize("protocol", ["eager", "cooperative", "consumer"])
def test_a_zombie_commits_nothing_and_starts_nothing(
    chaos: Callable[..., Chaos], protocol: str
) -> None:
    """S7: stopped with SIGSTOP until another member has its partitions, then continued."""
    with chaos(seed=301, protocol=protocol, concurrency=16, work_s=0.02, kind="threads") as run:
        first, second = run.start(), run.start()
        run.feed(600)
        run.until(lambda: min(map(run.starts_of, (first, second))) > 50, 30, "both work")
        since = run.suspend(first)
        before = run.starts_of(second)
        run.until(lambda: taken_over(run, second.pid, since), 30, "the second takes all over")
        threading.Event().wait(0.5)
        excuse = run.wake(first, since)
        threading.Event().wait(SESSION_S)
        run.stop_feeding()
        run.all_done(30)
        run.until(run.committed, 10, "everything committed")
        for child in (first, second):
            run.terminate(child)
        verdict = run.verdict()
        assert run.starts_of(second) > before
        late = [e for e in run.entries if e.pid == first.pid and e.kind == "E" and e.at > since]
        assert late, "nothing was in flight when it was stopped"
        assert verdict.bounds[excuse]


def taken_over(run: Chaos, pid: int, since: float) -> bool:
    """This process has begun records of every partition since then."""
    run.look()
    return {e.partition for e in run.entries if e.pid == pid and e.kind == "S" and e.at > since} == {
        0, 1, 2, 3,
    }  # fmt: skip
