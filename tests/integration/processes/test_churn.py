"""Members that join and leave all the time, cleanly and by kill, in all three group protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.support.chaos import PROTOCOLS, SESSION_S, Chaos, say

MEMBERS_MAX = 4
PATIENCE_S = 60.0
LONG = pytest.mark.long


def churn(run: Chaos, seconds: float, *, kills: bool) -> int:
    """Join, leave and kill at random for so long; how many times the group changed.

    On a busy machine it goes on, a minute at most, until that has tried something: three members
    have had work, and one was killed where that is asked for. In the end somebody is there.
    """
    changes, ends = 0, time.monotonic() + seconds
    worked: set[object] = set()
    tried = False
    while time.monotonic() < (ends if tried else ends + PATIENCE_S):
        living = run.living()
        working = [child for child in living if run.starts_of(child)]
        worked |= {child.pid for child in working}
        if not working or (len(living) < MEMBERS_MAX and run.dice.random() < 0.5):
            if len(living) < MEMBERS_MAX:
                run.start()
        elif kills and run.dice.random() < 0.4:
            run.kill(run.dice.choice(working))
        else:
            run.terminate(run.dice.choice(working))
        changes += 1
        tried = len(worked) >= 3 and bool(run.kills or not kills)
        threading.Event().wait(run.dice.uniform(0.5, 1.5))
    run.start()  # whoever is left may be leaving: somebody has to finish
    return changes


def scenarios() -> list[object]:
    """Each protocol, clean and with kills: on every push 10 s of one of them."""
    return [
        pytest.param(
            protocol, kills, seconds, marks=[LONG] * (seconds > 30 or protocol != "cooperative")
        )
        for protocol in PROTOCOLS
        for kills, seconds in ((False, 60), (True, 60), (protocol == "cooperative", 10))
    ]


@pytest.mark.parametrize(("protocol", "kills", "seconds"), scenarios())
@pytest.mark.timeout(240)
def test_members_join_and_leave_and_every_promise_is_kept(
    chaos: Callable[..., Chaos], protocol: str, kills: bool, seconds: float
) -> None:
    """S1, S2, S3, S6, S7: without kills no finished record is ever repeated."""
    # Who leaves in the middle of its join is waited for by its group, for a session.
    options = {"session_s": SESSION_S, "partitions": 6, "work_s": 0.01}
    with chaos(seed=401, protocol=protocol, **options) as run:
        run.start()
        run.feed(400)
        changes = churn(run, seconds, kills=kills)
        run.stop_feeding()
        run.all_done(60)
        run.until(run.committed, 20, "everything committed")
        for child in run.living():
            run.terminate(child)
        verdict = run.verdict()
        pids = {entry.pid for entry in run.entries}
        say(f"group changes={changes} members that worked={len(pids)}")
        assert changes >= seconds / 4
        assert len(pids) >= 3, "too few members ever had work"
        if kills:
            assert run.kills
        else:
            assert (verdict.repeated, verdict.restarts) == (0, 0)
