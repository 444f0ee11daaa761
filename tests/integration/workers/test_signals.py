"""What a service manager does: SIGTERM to the whole process group, workers among them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LIMIT_S = 90.0


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_a_signal_to_the_group_ends_no_call(delivery: str) -> None:
    """What began ends; what waits in the pipes is taken back, not waited for; exit code 0."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.workers.signalled", delivery],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        said = [program.stdout.readline().split() for _ in range(3)]
        assert said[0][0] == b"begun"
        os.killpg(program.pid, signal.SIGTERM)
        said += [line.split() for line in program.stdout]
        assert program.wait(LIMIT_S) == 0
    begun, done = ([n for what, n in said if what == one] for one in (b"begun", b"done"))
    assert sorted(begun) == sorted(done)
    assert len(begun) == len(set(begun)) < 20
