"""The reader of a fleet's results, at the moments when the run begins and ends."""

from __future__ import annotations

import threading

import perkey
from perkey.spark.fleet.results import Relay

WAIT_S = 60.0
#: a thread that is to wait has had its chance after so long
CHANCE_S = 0.3


def relay(wanted: list[bool]) -> Relay:
    """Of an app without callbacks."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
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


def test_a_reader_that_comes_as_the_former_one_leaves_is_served() -> None:
    """Members stop for the one, and then begin for the other."""
    wanted: list[bool] = []
    threads: list[threading.Thread] = []

    def want(on: bool) -> None:  # as Relay calls it
        if not on:
            threads.append(threading.Thread(target=one.open))
            threads[0].start()
            threads[0].join(CHANCE_S)
        wanted.append(on)

    app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
    one = Relay(app.options, None, want, None)
    one.begin()
    one.open().close()
    threads[0].join(WAIT_S)
    assert wanted == [True, False, True]
