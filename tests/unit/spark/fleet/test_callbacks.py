"""The user's callbacks of a fleet, and readers of results, which a fleet refuses."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import perkey
from perkey.spark.fleet.callbacks import FleetCallbacks, refuse_results
from perkey.spark.fleet.hosting import MemberHandle
from perkey.spark.fleet.run import FleetRun
from perkey.spark.fleet.settings import fleet_settings

WAIT_S = 60.0
REFUSED = (
    r"cannot be used with engine=\"spark\": results go to a topic \(output=\) or a table \(sink=\)"
)


def app_with(**options: Any) -> perkey.App:
    """An app with a handler; no broker answers."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "127.0.0.1:1"}, **options)

    @app.consume("t")
    def handle(record: perkey.Record) -> None: ...

    return app


@pytest.mark.parametrize("begin", ["run", "start"])
def test_on_result_is_refused(begin) -> None:
    """Before Spark starts, in one line that names where results go."""
    app = app_with(on_result=print)
    with pytest.raises(perkey.ConfigError, match=rf"^App\(on_result=\.\.\.\) {REFUSED}$"):
        getattr(app, begin)(engine="spark", members=1)


@pytest.mark.parametrize("begin", ["run", "start"])
def test_a_registered_reader_is_refused(begin) -> None:
    """A reader that waits for the run's results would wait for ever."""
    app = app_with()
    app.results()
    with pytest.raises(perkey.ConfigError, match=rf"^app\.results\(\) {REFUSED}$"):
        getattr(app, begin)(engine="spark", members=1)


def test_a_reader_that_has_left_is_not_refused() -> None:
    """Its stream is closed."""
    app = app_with()
    stream = app.results()
    stream.close()
    refuse_results(app.options, stream)


def test_a_reader_is_refused_while_a_fleet_runs() -> None:
    """`app.results()` raises; nothing is registered for a later run."""
    app = app_with()
    app.adopt(FleetRun(app, fleet_settings(1, None, None, None), until=None), app.options)
    with pytest.raises(perkey.ConfigError, match=rf"^app\.results\(\) {REFUSED}$"):
        app.results()


def test_a_reader_in_a_member_is_refused() -> None:
    """A handler that calls `app.results()` gets the same line."""
    with pytest.raises(perkey.ConfigError, match=REFUSED):
        MemberHandle.__new__(MemberHandle).open_results()


def test_callbacks_are_called_in_order() -> None:
    """With the types of one process; what the app does not have is not wanted of members."""
    calls: list[Any] = []
    called = threading.Event()

    def assigned(partitions: Any) -> None:
        calls.append(partitions)
        called.set()

    callbacks = FleetCallbacks(app_with(on_commit=calls.append, on_assign=assigned).options)
    assert callbacks.wanted() == ["on_commit", "on_assign"]
    callbacks.event("on_commit", [["t", 0, 5, 1]])
    callbacks.event("on_error", [["t", 0]])  # none that members report
    callbacks.event("on_assign", [["t", 0]])
    assert called.wait(WAIT_S)
    callbacks.end()
    assert calls == [[perkey.Committed("t", 0, 5, 1)], [("t", 0)]]
