"""Leaving in the middle of other members' comings and goings: bounded, clean, nothing repeated."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from tests.support.chaos import ONE_ON_A_PUSH, SESSION_S, Chaos

LEAVE_S = 10.0  # what a member grants the group to let it go; more than any protocol needs
MARGIN_S = 20.0  # a busy machine's


@pytest.mark.parametrize("protocol", ONE_ON_A_PUSH)
def test_members_that_leave_together_end_in_time(
    chaos: Callable[..., Chaos], protocol: str
) -> None:
    """L4, S4: SIGTERM for a joining member, a working one and a third, one right after another."""
    # Who leaves in the middle of its join is waited for by its group, for a session.
    options = {"session_s": SESSION_S, "concurrency": 16, "work_s": 0.01}
    with chaos(seed=901, protocol=protocol, **options) as run:
        run.feed(400)
        members = [run.start(), run.start()]
        run.until(lambda: min(map(run.starts_of, members)) > 20, 30, "both work")
        members.append(run.start())
        run.until(lambda: " starting " in members[2].said(10**6), 20, "the third joins")
        began = time.monotonic()
        for child in members:
            child.process.send_signal(signal.SIGTERM)
        for child in members:
            run.wait_exit(child, LEAVE_S + MARGIN_S)
        took_s = time.monotonic() - began
        run.stop_feeding()
        last = run.start()
        run.all_done(30)
        run.terminate(last)
        assert took_s < LEAVE_S + MARGIN_S
        verdict = run.verdict()
        assert (verdict.repeated, verdict.restarts) == (0, 0)
