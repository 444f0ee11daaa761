"""Each way of delivery while members join and leave, in all three group protocols."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.delivery.test_kills import went_back
from tests.integration.processes.test_churn import churn
from tests.support.chaos import PROTOCOLS, SESSION_S, Chaos
from tests.support.delivery_app import MODES
from tests.support.exactness import compare, read_committed
from tests.support.verdict import judge

LONG = pytest.mark.long


def scenarios() -> list[object]:
    """Mode, protocol, kills too, seconds."""
    return [
        pytest.param("exactly_once", "cooperative", False, 8, marks=LONG),
        pytest.param("each", "eager", False, 8, marks=LONG),
        pytest.param("at_most_once", "consumer", False, 8, marks=LONG),
        *(
            pytest.param(mode, protocol, kills, 30, marks=LONG)
            for mode in MODES
            for protocol in PROTOCOLS
            for kills in (False, True)
            if not (kills and mode == "at_most_once")
        ),
    ]


@pytest.mark.parametrize(("mode", "protocol", "kills", "seconds"), scenarios())
@pytest.mark.timeout(240)
def test_promises_hold_while_members_come_and_go(
    chaos: Callable[..., Chaos], mode: str, protocol: str, kills: bool, seconds: int
) -> None:
    """Nothing lost, repeated, missed or out of order by joins and leaves; outputs exactly once."""
    exact = mode.startswith("exact")
    # Who leaves in the middle of its join is waited for by its group, for a session.
    options = {"session_s": SESSION_S, "partitions": 6, "work_s": 0.01, "mode": mode}
    with chaos(seed=640, protocol=protocol, **options) as run:
        if exact:
            run.plan.output = f"{run.plan.topic}-out"
            run.broker.create_topic(run.plan.output, 3)
        run.start()
        run.feed(300)
        changes = churn(run, seconds, kills=kills)
        run.stop_feeding()
        run.all_done(60)
        run.until(run.committed, 20, "everything committed")
        for child in run.living():
            run.terminate(child)
        run.look()
        verdict = judge(run.entries, run.produced, run.excuses, run.ended)
        print(
            f"{mode} {protocol}: seed={run.seed} changes={changes} kills={run.kills} "
            f"{verdict.summary()} lost={len(verdict.lost)} out of order={len(verdict.order)}"
        )
        assert not verdict.problems(), verdict.problems()
        assert len({entry.pid for entry in run.entries}) >= 2
        if not kills and mode != "explicit":  # whose batches may outlive a revoke
            assert (verdict.repeated, verdict.restarts) == (0, 0)
        if mode == "at_most_once":
            assert not went_back(run.entries)
        if exact:
            copy = compare(run.produced, read_committed(run.broker.bootstrap, run.plan.output))
            print(copy.summary())
            assert copy.exact, copy
