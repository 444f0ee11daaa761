"""The reader of a fleet's results, at the moments when the run begins and ends."""

from __future__ import annotations

import weft
from weft.spark.fleet.relay import Relay


def relay(wanted: list[bool]) -> Relay:
    """Of an app without callbacks."""
    app = weft.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    return Relay(app.options, None, wanted.append, None)


def test_a_reader_that_comes_as_the_run_ends_is_reported_so() -> None:
    """It came after the last result and before the run was over: it does not wait for ever."""
    wanted: list[bool] = []
    one = relay(wanted)
    one.begin()
    one.end()
    assert list(one.open()) == []
    assert wanted == []  # members are not asked any more


def test_a_reader_in_time_is_served() -> None:
    """Members are asked for results, and the end ends it."""
    wanted: list[bool] = []
    one = relay(wanted)
    one.begin()
    stream = one.open()
    assert wanted == [True]
    one.end()
    assert list(stream) == []
