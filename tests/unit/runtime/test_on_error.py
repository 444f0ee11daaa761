"""Failures as others see them: `App(on_error=...)`, and Sentry by the log's `exc_info`."""

from __future__ import annotations

import gc
import logging
import threading

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.errors import RemoteError
from perkey.runtime.member import run_log
from perkey.testing import run

AT_ONCE = perkey.Retry(attempts=2, delay_s=0)


class NoSuchCustomer(Exception):
    """What the handlers raise."""


def raising(record: perkey.Record) -> None:
    """A handler that another process can import."""
    raise NoSuchCustomer("17")


def app_with(on_error, **options) -> perkey.App:
    """An app whose handler raises."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x"}, on_error=on_error)
    app.consume("orders", **{"retry": AT_ONCE, **options})(raising)
    return app


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (perkey.Park(), "parked"),
        (perkey.DeadLetter("dead"), "dead_lettered"),
        (perkey.Skip(), "skipped"),
    ],
)
def test_each_failure_is_a_call(policy, outcome):
    """Every failed attempt and the end, with the exception itself, on the callbacks' thread."""
    calls = []

    def failed(record, error, attempt, outcome):
        calls.append((record, error, attempt, outcome, threading.current_thread().name))

    run(app_with(failed, on_exhausted=policy), [(b"k", b"v")])
    assert [call[2:] for call in calls] == [
        (1, "failed", "perkey-callbacks"),
        (2, "failed", "perkey-callbacks"),
        (2, outcome, "perkey-callbacks"),
    ]
    assert {(call[0].topic, call[0].offset, call[0].value) for call in calls} == {
        ("orders", 0, b"v")
    }
    assert all(isinstance(call[1], NoSuchCustomer) and call[1].__traceback__ for call in calls)
    assert calls[1][1] is calls[2][1]


def test_what_it_raises_is_counted_and_ends_nothing(caplog):
    """The next call comes all the same."""
    calls = []

    def failed(*arguments):
        calls.append(arguments)
        raise RuntimeError("sentry is down")

    (result,) = run(app_with(failed), [(b"k", b"v")])
    assert (result.outcome, len(calls)) == ("parked", 3)
    lines = [one for one in caplog.records if one.getMessage() == "callback failed failed"]
    assert len(lines) == 3


def test_from_a_worker_process_comes_the_text():
    """The exception stays where it was raised: type, message and traceback are strings."""
    calls = []
    app = app_with(lambda *call: calls.append(call), executor="processes", concurrency=1)
    run(app, [(b"k", b"v")])
    assert [call[3] for call in calls] == ["failed", "failed", "parked"]
    for error in (call[1] for call in calls):
        assert isinstance(error, RemoteError)
        assert (error.type, error.message, str(error)) == (
            "NoSuchCustomer",
            "17",
            "NoSuchCustomer: 17",
        )
        assert "in raising" in error.traceback


def test_a_slow_callback_leaves_calls_out_and_reports_it(caplog, monkeypatch):
    """What waits for it is bounded: the rest is counted in one line."""
    monkeypatch.setattr(run_log, "CALLS_MAX", 2)
    calls = []

    def failed(*arguments):
        wait_for(lambda: "on_error is too slow" in caplog.text)
        calls.append(arguments)

    app = app_with(failed, on_exhausted=perkey.Skip())
    run(app, [(b"%d" % n, b"v") for n in range(50)])
    assert 2 <= len(calls) < 150
    (line,) = [one for one in caplog.records if "on_error is too slow" in one.getMessage()]
    assert line.perkey["left_out_so_far"] >= 1


class Sentry(logging.Handler):
    """What sentry-sdk's logging integration does as it comes: events of ERROR and above."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.events: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """An event, by the exception where there is one."""
        self.events.append(record)


def test_sentry_sees_what_was_given_up():
    """One event with the exception and its traceback; the template groups events of a kind."""
    sentry = Sentry()
    logging.getLogger().addHandler(sentry)
    try:
        run(app_with(None, on_exhausted=perkey.Skip()), [(b"%d" % n, b"v") for n in range(20)])
    finally:
        logging.getLogger().removeHandler(sentry)
    (event,) = sentry.events
    kind, error, trace = event.exc_info
    assert (kind, str(error)) == (NoSuchCustomer, "17")
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_code.co_name == "raising"
    assert event.msg == (
        "record skipped handler=%s topic=%s partition=%s offset=%s attempts=%s error=%s"
    )
    assert event.getMessage().startswith("record skipped handler=raising topic=orders")


def test_exceptions_are_not_kept():
    """They hold their frames: of 500 records that failed no more than the limit remain."""
    app = app_with(None, retry=perkey.Retry(attempts=2, delay_s=0), on_exhausted=perkey.Park())
    run(app, [(b"%d" % n, b"v") for n in range(500)])
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, NoSuchCustomer)]
    assert len(left) <= run_log.RAISED_MAX


def test_a_function_that_cannot_be_called_so_is_refused():
    """Where the app is made, with what it is called with."""
    with pytest.raises(
        perkey.ConfigError, match=r"def on_error\(record, error, attempt, outcome\)"
    ):
        perkey.App(group="g", kafka={"bootstrap.servers": "x"}, on_error=lambda error: None)
    with pytest.raises(perkey.ConfigError, match="on_error=5"):
        perkey.App(group="g", kafka={"bootstrap.servers": "x"}, on_error=5)
