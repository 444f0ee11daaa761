"""Signals: SIGTERM ends cleanly and repeats nothing; a second signal ends at once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from tests.support.chaos import Chaos
from tests.support.verdict import Excuse

DRAIN_S = 60.0


@pytest.mark.parametrize("kind", ["async", pytest.param("threads", marks=pytest.mark.long)])
def test_sigterm_and_a_restart_repeat_nothing(chaos: Callable[..., Chaos], kind: str) -> None:
    """S4: what was handled before a clean stop is not handled again, and exit is 0."""
    with chaos(seed=201, kind=kind, concurrency=16, work_s=0.01) as run:
        run.produce(4000)
        for _ in range(2):
            run.supply(2000)
            child = run.start()
            run.let_work(child, run.dice.uniform(0.2, 0.7))
            run.terminate(child)
        run.supply(500)
        last = run.start()
        run.all_done(60)
        run.terminate(last, signal.SIGINT)
        verdict = run.verdict()
        assert len({entry.pid for entry in run.entries}) == 3, "a stop met no work"
        assert (verdict.repeated, verdict.restarts) == (0, 0)
        assert run.committed()


@pytest.mark.long
def test_a_stop_waits_for_what_runs(chaos: Callable[..., Chaos]) -> None:
    """Handlers that run at SIGTERM are finished, not cut off; no others begin."""
    with chaos(seed=202, concurrency=8) as run:
        run.produce(200, stuck="all")
        # None ends before the engine knows of the stop: another would begin in its place.
        child = run.start(until_stopped=True)
        run.until(lambda: run.starts_of(child) == 8, 30, "eight run")
        child.process.send_signal(signal.SIGTERM)
        run.until(lambda: "stop asked" in child.said(10**6), 30, "it has heard")
        (run.folder / "release").touch()
        run.wait_exit(child, 60)
        assert run.completed == 8
        assert run.watch.looks
        last = run.start()
        run.until(lambda: run.completed >= 16, 20, "the next eight")
        run.terminate(last)
        assert not [entry for entry in run.entries if entry.kind == "F"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_second_signal_ends_immediately(chaos: Callable[..., Chaos], kind: str) -> None:
    """SIGINT twice: exit 130 at once though a handler never ends.

    What was done is committed.
    """
    options = {"kind": kind, "partitions": 1, "work_s": 0.01, "drain_timeout_s": DRAIN_S}
    with chaos(seed=203, **options) as run:
        run.produce(600, stuck="first")
        child = run.start()
        run.all_done(30, but=1)
        child.process.send_signal(signal.SIGINT)
        run.until(lambda: "stop asked" in child.said(10**6), 30, "it has heard")
        run.let_work(child, 0.5)
        assert child.alive, "the first signal did not wait for the stuck handler"
        assert run.terminate(child, signal.SIGINT, code=130) < DRAIN_S / 2
        (run.folder / "release").touch()
        last = run.start()
        run.all_done(20)
        run.terminate(last)
        run.excuses.append(Excuse("second signal", child.pid, 0, 0, overlap=True))
        verdict = run.verdict()
        assert verdict.repeated == 0
        assert verdict.restarts <= 1
