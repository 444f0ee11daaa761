"""The broker dies and comes back, or is gone for long: commits in doubt, nothing lost, no stall."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.support.chaos import SESSION_S, Chaos
from tests.support.verdict import Excuse

from perkey.broker import LocalBroker


def away(broker: LocalBroker, seconds: float) -> None:
    """Kill the broker and start it again after so long."""
    broker.kill()
    threading.Event().wait(seconds)
    broker.restart()


@pytest.mark.parametrize(
    ("protocol", "kills"),
    [
        ("eager", 1),
        pytest.param("cooperative", 3, marks=pytest.mark.long),
        pytest.param("consumer", 3, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(240)
def test_a_broker_killed_and_restarted_loses_and_stalls_nothing(
    mortal_broker: LocalBroker, tmp_path: Path, protocol: str, kills: int
) -> None:
    """S1, S2, S3, L3: two members under load, the broker killed in the middle.

    With sessions that outlive it nobody loses a partition: commits in doubt are settled, and
    nothing repeats.
    """
    with Chaos(
        mortal_broker,
        tmp_path,
        seed=601,
        protocol=protocol,
        session_s=120.0,
        concurrency=16,
        work_s=0.02,
    ) as run:
        members = [run.start(), run.start()]
        run.feed(300)
        run.until(lambda: min(map(run.starts_of, members)) > 100, 30, "both work")
        for _ in range(kills):
            away(mortal_broker, run.dice.uniform(0.0, 2.0))
            back = run.completed
            run.until(lambda back=back: run.completed > back + 300, 20, "work goes on")
        run.stop_feeding()
        run.all_done(30)
        run.until(run.committed, 15, "everything committed")
        for child in members:
            run.terminate(child)
        verdict = run.verdict()
        assert (verdict.repeated, verdict.restarts) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [7.0, 20.0])
def test_all_brokers_gone_for_long(
    mortal_broker: LocalBroker, tmp_path: Path, seconds: float
) -> None:
    """Longer than the session: what was fetched is handled meanwhile, and all is well after."""
    options = {"session_s": SESSION_S, "concurrency": 8, "work_s": 0.03, "kind": "threads"}
    with Chaos(mortal_broker, tmp_path, seed=602, **options) as run:
        run.produce(3000)
        child = run.start()
        run.let_work(child, 0.7)
        at = time.monotonic()
        away(mortal_broker, seconds)
        # The session is over, so what was done since the last commit is done again.
        run.excuses.append(Excuse("away", None, at - run.window_s, time.monotonic() + 5.0, True))
        run.all_done(90)
        run.until(run.committed, 15, "everything committed")
        run.terminate(child)
        assert run.verdict().bounds


@pytest.mark.long
def test_a_stop_with_the_brokers_gone_is_bounded(
    mortal_broker: LocalBroker, tmp_path: Path
) -> None:
    """L4: SIGTERM while no broker answers ends within the drain's time and that of leaving."""
    drain_s, leave_s, busy_s = 4.0, 10.0, 20.0
    options = {"concurrency": 8, "work_s": 0.03, "drain_timeout_s": drain_s}
    with Chaos(mortal_broker, tmp_path, seed=603, **options) as run:
        run.produce(2000)
        child = run.start()
        run.let_work(child, 0.5)
        mortal_broker.kill()
        threading.Event().wait(0.5)
        took_s = run.terminate(child)
    mortal_broker.restart()
    assert took_s < drain_s + leave_s + busy_s
