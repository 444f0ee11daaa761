"""Pausing, resuming, and the three ways to stop."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from tests.support.waiting import wait_for

import perkey


def test_a_paused_topic_starts_nothing_until_it_is_resumed(kafka):
    """The others go on; nothing is lost or repeated."""
    first, second = kafka.topic(), kafka.topic()
    app = kafka.app()
    seen = []

    @app.consume([first, second])
    async def handler(record):
        seen.append(record.value)

    app.pause(first)
    kafka.start(app)
    kafka.fill(first, [b"1a", b"1b"])
    kafka.fill(second, [b"2a"])
    wait_for(lambda: seen == [b"2a"])
    wait_for(lambda: any(p["buffered"] == 2 for p in app.snapshot()["partitions"]))
    rows = {row["topic"]: row for row in app.snapshot()["partitions"]}
    assert (rows[first]["paused"], rows[second]["paused"]) == (True, False)
    assert seen == [b"2a"]
    app.resume(first)
    wait_for(lambda: sorted(seen) == [b"1a", b"1b", b"2a"])


def test_pausing_all_and_resuming_one(kafka):
    """`pause()` holds every topic; `resume()` frees all of them, `resume(topic)` that one."""
    first, second = kafka.topic(), kafka.topic()
    for topic in (first, second):
        kafka.fill(topic, [topic.encode()])
    app = kafka.app()
    seen = []

    @app.consume([first, second])
    async def handler(record):
        seen.append(record.topic)

    app.pause()
    kafka.start(app)
    wait_for(lambda: sum(p["buffered"] for p in app.snapshot()["partitions"]) == 2)
    assert app.snapshot()["state"] == "paused"
    app.resume(first)
    wait_for(lambda: seen == [first])
    app.resume()
    wait_for(lambda: seen == [first, second])
    assert app.snapshot()["state"] == "running"


class Gate:
    """A handler that waits at a gate: two calls run, the others wait in the buffer."""

    def __init__(self, kafka, **options):
        self.kafka, self.source, self.group = kafka, kafka.topic(), kafka.name("g")
        kafka.fill(self.source, [b"%d" % n for n in range(6)])
        self.open, self.started, self.finished = threading.Event(), [], []
        self.app = kafka.app(group=self.group, **options)
        self.app.consume(self.source, concurrency=2)(self.handler)
        self.run = kafka.start(self.app)
        wait_for(lambda: len(self.started) == 2)
        wait_for(lambda: self.app.snapshot()["partitions"][0]["buffered"] == 6)

    def handler(self, record):
        self.started.append(record.value)
        self.open.wait(100)
        self.finished.append(record.value)

    def stop(self, mode):
        self.app.stop(mode)
        wait_for(lambda: self.app.snapshot()["state"] != "running")

    def committed(self):
        return self.kafka.committed(self.group, self.source)


def test_stop_in_flight_finishes_what_runs(kafka):
    """What only waits is left for the next run."""
    gate = Gate(kafka)
    gate.stop("in_flight")
    gate.open.set()
    report = gate.run.wait(60)
    assert (report.exit_code, report.reason, report.done) == (0, "stopped", 2)
    assert sorted(gate.started) == sorted(gate.finished) == [b"0", b"1"]
    assert gate.committed() == 2


def test_stop_buffered_finishes_what_waits_too(kafka):
    """Everything that was fetched is handled before the end."""
    gate = Gate(kafka)
    gate.stop("buffered")
    gate.open.set()
    assert gate.run.wait(60).done == 6
    assert gate.committed() == 6


def test_stop_now_only_commits(kafka):
    """It waits for no handler; what was not finished is not committed."""
    gate = Gate(kafka)
    gate.app.stop("now")
    report = gate.run.wait(60)
    assert gate.finished == []
    gate.open.set()
    assert (report.exit_code, report.done, gate.committed()) == (0, 0, 0)


def test_a_harsher_stop_overtakes_a_milder_one_and_not_the_other_way(kafka):
    """First "buffered", then "in_flight": what waits is left; a later "buffered" is nothing."""
    gate = Gate(kafka)
    gate.stop("buffered")
    gate.app.stop("in_flight")
    # Not before the engine knows: what ends before that is followed by what waits.
    wait_for(lambda: gate.run.member.engine.state.stop_mode == "in_flight")
    gate.app.stop("buffered")
    gate.open.set()
    assert gate.run.wait(60).done == 2


def test_a_drain_that_takes_too_long_cancels_and_commits_what_is_done(kafka):
    """Async attempts are cancelled after `drain_timeout_s`; their records are not done."""
    import asyncio

    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [{"value": b"hangs", "key": b"a"}, {"value": b"quick", "key": b"b"}])
    app = kafka.app(group=group, drain_timeout_s=0.5)
    seen = []

    @app.consume(source)
    async def handler(record):
        if record.value == b"quick":
            seen.append(record.value)
            return
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    run = kafka.start(app)
    wait_for(lambda: app.snapshot()["handlers"]["handler"]["done"] == 1)
    began = time.monotonic()
    run.stop()
    report = run.wait(60)
    assert time.monotonic() - began > 0.4
    assert (report.exit_code, report.done, report.failed_attempts) == (0, 1, 0)
    assert seen == [b"quick", "cancelled"]
    commit = kafka.commit_of(group, source)
    assert commit.offset == 0
    assert commit.metadata


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_handler_may_stop_pause_and_look_at_its_own_app(kafka, kind):
    """From inside a call: it is finished and committed like any other."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"%d" % n for n in range(50)], key=b"k")
    app = kafka.app(group=group)
    states = []

    def plain(record):
        states.append(app.snapshot()["state"])
        app.pause("another")
        app.resume("another")
        if record.value == b"4":
            app.stop()

    async def waits(record):
        plain(record)

    app.consume(source)(waits if kind == "async" else plain)
    report = kafka.start(app).wait(60)
    assert (report.exit_code, report.done) == (0, 5)
    assert set(states) == {"running"}
    assert kafka.committed(group, source) == 5


def test_run_puts_the_signal_handlers_back(kafka):
    """On the main thread they are Perkey's only while it runs."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app = kafka.app()
    during = []

    @app.consume(source)
    def handler(record):
        during.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    app.run(until="drained")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert during[0] not in before


def test_stop_on_a_stopped_app_is_a_no_op(kafka):
    """Before the start, after the end, and with a mode that does not exist."""
    app = kafka.app()
    app.stop()
    with pytest.raises(perkey.ConfigError, match='choose "in_flight", "buffered" or "now"'):
        app.stop("later")
    with pytest.raises(perkey.NotStarted, match=r"call app\.run"):
        app.snapshot()
