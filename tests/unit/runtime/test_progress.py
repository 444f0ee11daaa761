"""The progress line, on a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from weft.errors import NotStarted
from weft.runtime.progress import ProgressLine, line_of

SNAPSHOT = {
    "state": "running",
    "partitions": [
        {"lag": 10, "retrying": 2, "parked": 1},
        {"lag": 1_190, "retrying": 0, "parked": 3},
    ],
    "handlers": {"a": {"in_flight": 5, "rate_per_s": 1_000.4}, "b": {"in_flight": 2}},
}


def test_the_line_adds_up_partitions_and_handlers():
    """Rate, lag, in flight, retries and parked."""
    assert line_of(SNAPSHOT) == (
        "running  1,000/s  partitions 2  lag 1,200  in flight 7  retrying 2  parked 4"
    )


def test_a_terminal_shows_it():
    """And it is gone when the block ends."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with ProgressLine(lambda: SNAPSHOT, console):
        pass
    assert "lag 1,200" in stream.getvalue()


def test_before_the_start_it_says_so():
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
