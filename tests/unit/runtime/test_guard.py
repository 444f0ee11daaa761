"""Helper threads: what escapes from one ends the run with its reason, and `wait()` returns."""

from __future__ import annotations

import threading

import pytest

import perkey
from perkey import guard
from perkey.errors import ConfigError
from perkey.runtime.calls.processes.executor import ProcessExecutor
from perkey.runtime.member.group_membership import Callbacks
from perkey.runtime.member.topic_ids import TopicIds
from perkey.runtime.run.watching import Watching

pytestmark = pytest.mark.threads_may_die
WAIT_S = 60.0


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
def test_a_death_is_reported_with_its_cause(error: BaseException) -> None:
    """Also sys.exit(), which Python would not even print."""
    told = []

    def body() -> None:
        raise error

    thread = guard.thread("perkey-x", body, lambda *death: told.append(death))
    thread.start()
    thread.join(WAIT_S)
    assert told == [("perkey-x", error)]


def test_a_thread_that_returns_reports_nothing() -> None:
    """It has ended, not died; it gets its arguments."""
    told, seen = [], []
    thread = guard.thread("perkey-x", seen.append, lambda *death: told.append(death), 7)
    thread.start()
    thread.join(WAIT_S)
    assert (seen, told) == ([7], [])


def run_of(memory_broker, handler=None, **consume):
    memory_broker.create_topic("t")
    memory_broker.produce("t", b"1")
    app = perkey.App(
        group="g", kafka={"bootstrap.servers": memory_broker.bootstrap}, drain_timeout_s=0.5
    )
    app.consume("t", **consume)(handler or (lambda record: None))
    return app.start()


def test_a_refused_look_at_topic_ids_ends_the_run(memory_broker, monkeypatch) -> None:
    """DESCRIBE was denied while it ran: the watch ends, and `wait` returns with the reason."""

    def refuse(self, membership, reread):
        raise ConfigError("not authorized to describe t")

    monkeypatch.setattr(TopicIds, "look", refuse)
    report = run_of(memory_broker).wait(WAIT_S)
    assert (report.exit_code, report.reason) == (1, "not authorized to describe t")


def test_a_look_that_fails_is_logged_once_and_the_next_one_runs(
    memory_broker, monkeypatch, caplog
) -> None:
    """What the watch only shows ends no run."""
    looks = threading.Semaphore(0)

    def fail(self, admin):
        looks.release()
        raise ValueError("cannot look")

    monkeypatch.setattr(Watching, "look", fail)
    run = run_of(memory_broker)
    for _ in range(3):
        assert looks.acquire(timeout=WAIT_S)
    run.stop()
    assert run.wait(WAIT_S).exit_code == 0
    lines = [one for one in caplog.records if "perkey-watch continues" in one.getMessage()]
    assert len(lines) == 1


def test_a_broken_end_is_an_end(memory_broker, monkeypatch) -> None:
    """Whatever fails while everything is closed: `wait` returns, and names it."""
    run = run_of(memory_broker)

    def fail():
        raise ValueError("cannot close")

    monkeypatch.setattr(run, "_close_clients", fail)
    run.stop()
    report = run.wait(WAIT_S)
    assert report.exit_code == 1
    assert "perkey-watch died: ValueError: cannot close" in report.reason


def test_a_callback_that_ends_its_thread_ends_the_run(memory_broker) -> None:
    """Later callbacks would never be called."""
    run = run_of(memory_broker)
    run.member.callbacks.call(end_the_thread)
    report = run.wait(WAIT_S)
    assert report.exit_code == 1
    assert "perkey-callbacks died: KeyboardInterrupt" in report.reason


def end_the_thread() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["perkey-background", "perkey-callbacks"])
def test_only_what_escapes_ends_it(memory_broker, name: str) -> None:
    """An error of one callback or of one piece of background work is logged, and it goes on."""
    run, done = run_of(memory_broker), threading.Event()

    def bad() -> None:
        raise ValueError("this one")

    queue = {
        "perkey-background": run.member.membership.background,
        "perkey-callbacks": run.member.callbacks.call,
    }
    queue[name](bad)
    queue[name](done.set)
    assert done.wait(WAIT_S)
    run.stop()
    assert run.wait(WAIT_S).exit_code == 0


def test_a_dispatcher_that_dies_ends_the_run(memory_broker, monkeypatch) -> None:
    """Nothing would be given to the workers any more."""

    def die(self):
        raise ValueError("no more")

    monkeypatch.setattr(ProcessExecutor, "_dispatch", die)
    report = run_of(memory_broker, handle, executor="processes", concurrency=1).wait(WAIT_S)
    assert report.exit_code == 1
    assert "perkey-dispatch died: ValueError: no more" in report.reason


def handle(record) -> None:
    """A handler that a worker process can find."""


def test_callbacks_alone_log_a_death(caplog) -> None:
    """Without a run there is only the log."""
    callbacks = Callbacks()
    callbacks.call(end_the_thread)
    callbacks.close(WAIT_S)
    assert "thread perkey-callbacks died" in caplog.text


def test_a_turn_that_fails_is_logged_once_of_a_kind(caplog: pytest.LogCaptureFixture) -> None:
    """And the loop continues; another kind of error is another line."""
    turns = guard.Turns("perkey-x")
    for number in range(6):
        with turns.turn():
            if number % 2:
                raise ValueError(number)
            int("no number")
    lines = [one for one in caplog.records if "perkey-x continues" in one.getMessage()]
    assert len(lines) == 2
    assert all(one.exc_info for one in lines)
