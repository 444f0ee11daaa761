"""`perkey replay` in this process: what a run that ended early is called."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import perkey
from perkey.cli import replay
from perkey.runtime.run.replay_run import Stretch
from perkey.types import RunReport


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch):
    """The exit code of a replay whose run ended with this report, after one record."""

    def command(report: RunReport) -> int:
        class Ended:
            outcomes, outputs, failures = Counter(done=1), 0, ()

            def __init__(self, _app: Any, _stretch: Stretch) -> None:
                """It is over already."""

            def install_signals(self) -> None:
                """None come."""

            start = restore_signals = install_signals

            def wait(self) -> RunReport:
                return report

        monkeypatch.setattr(replay, "ReplayRun", Ended)
        monkeypatch.setattr(replay, "set_up", lambda *_: True)  # the level would outlive the test
        app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:1"})
        return replay._here(app, Stretch("t", 0, 1), True, progress=False)

    return command


@pytest.mark.parametrize(
    ("code", "reason", "complete"),
    [(0, "drained", True), (0, "stopped", False), (3, "drained, but parked records remain", True)],
)
def test_a_replay_that_was_stopped_says_that_its_range_is_not_complete(
    replayed: Any, capsys: Any, code: int, reason: str, complete: bool
):
    """A clean stop is exit 0, but nothing is committed, so nothing else handles the rest."""
    assert replayed(RunReport(code, reason)) == code
    found = capsys.readouterr()
    assert json.loads(found.out)["complete"] == complete
    assert ("stopped before the end of the range" in found.err) == (not complete)
