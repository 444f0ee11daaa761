"""The progress line, on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import threading

import pytest
from rich.console import Console

from perkey.errors import NotStarted
from perkey.runtime.run import progress_line
from perkey.runtime.run.progress_line import ProgressLine, line_of

SNAPSHOT = {
    "state": "running",
    "partitions": [
        {"lag": 10, "remaining": 7, "retrying": 2, "parked": 1},
        {"lag": 1_190, "remaining": 1_000, "retrying": 0, "parked": 3},
    ],
    "handlers": {"a": {"in_flight": 5, "rate_per_s": 1_000.4}, "b": {"in_flight": 2}},
}


def test_the_line_adds_up_partitions_and_handlers():
    """Rate, what remains, lag, in flight, retries and parked."""
    assert line_of(SNAPSHOT) == (
        "running  1,000/s  partitions 2  remaining 1,007  lag 1,200  in flight 7  retrying 2  parked 4"
    )


@pytest.fixture(autouse=True)
def _capable(monkeypatch):
    """A terminal that can redraw its line, wherever the tests run."""
    monkeypatch.setenv("TERM", "xterm")


def test_a_dumb_terminal_gets_nothing(monkeypatch):
    """It could not take the line back."""
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    with ProgressLine(lambda: SNAPSHOT, Console(file=stream, force_terminal=True, width=100)):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_shows_it():
    """And it is gone when the block ends."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with ProgressLine(lambda: SNAPSHOT, console):
        pass
    assert "lag 1,200" in stream.getvalue()


def test_before_the_start_it_reports_it():
    """The app has no snapshot yet."""

    def missing():
        raise NotStarted("not running")

    stream = io.StringIO()
    with ProgressLine(missing, Console(file=stream, force_terminal=True)):
        pass
    assert "starting" in stream.getvalue()


def test_a_pipe_gets_nothing():
    """Logs stay logs."""
    stream = io.StringIO()
    with ProgressLine(lambda: SNAPSHOT, Console(file=stream)):
        pass
    assert stream.getvalue() == ""


def test_without_a_terminal_a_line_a_minute_is_logged(caplog, monkeypatch):
    """The same figures as fields; none after the block's end."""
    monkeypatch.setattr(progress_line, "LOGGED_EVERY_S", 0.01)
    caplog.set_level(logging.INFO, logger="perkey")
    logged = threading.Event()
    monkeypatch.setattr(
        progress_line, "event", lambda *a, **fields: (seen.append(fields), logged.set())
    )
    seen: list[dict] = []
    with ProgressLine(lambda: SNAPSHOT, Console(file=io.StringIO())):
        assert logged.wait(20)
    assert (seen[0]["remaining"], seen[0]["state"]) == (1_007, "running")


def test_without_a_broker_what_remains_is_unknown():
    """After its session a member has no partitions: that is no 0."""
    away = {**SNAPSHOT, "partitions": [], "halts": [{"cause": "broker"}]}
    assert "remaining 0" not in line_of(away)
    assert "remaining 0" in line_of({**away, "halts": []})
