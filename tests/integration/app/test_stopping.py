"""Stopping in bad moments: bounded, whatever hangs, and with the right exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tests.integration.app.conftest import Kafka
from tests.support.waiting import wait_for

import perkey

HANGS = {
    "async waits": "async def handler(record): print('in', flush=True); await asyncio.sleep(600)",
    "async blocks": "async def handler(record): print('in', flush=True); time.sleep(600)",
    "threads": "def handler(record): print('in', flush=True); time.sleep(600)",
    "to_thread": (
        "async def handler(record):\n"
        "    print('in', flush=True); await asyncio.to_thread(time.sleep, 600)"
    ),
}


def pushed(*names):
    """Each way to hang; on a push these."""
    return [pytest.param(one, marks=() if one in names else pytest.mark.long) for one in HANGS]


@pytest.fixture
def started(kafka, tmp_path):
    """Run `perkey run` on a module of this text in a process of its own."""
    processes = []

    def start(text, *arguments):
        (tmp_path / "geofence.py").write_text(
            f"import asyncio, os, sys, time, perkey\nBROKERS = {kafka.bootstrap!r}\n"
            + textwrap.dedent(text)
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "perkey.cli.main", "run", "geofence:app", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def app_with(handler, source, group, **options):
    extra = "".join(f", {name}={value!r}" for name, value in options.items())
    return (
        f"app = perkey.App(group={group!r}, kafka={{'bootstrap.servers': BROKERS}}{extra})\n"
        f"@app.consume({source!r})\n{handler}\n"
    )


def wait_until_in(process):
    assert process.stdout.readline() == "in\n", process.stderr.read()


@pytest.mark.broker
@pytest.mark.parametrize("kind", pushed("async blocks", "threads"))
def test_a_second_signal_ends_a_process_whose_handler_hangs(kafka, started, kind):
    """SIGTERM asks for a drain; a second one, or SIGINT, ends it within seconds: 143 or 130."""
    last, code = (signal.SIGINT, 130) if kind == "threads" else (signal.SIGTERM, 143)
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    process = started(app_with(HANGS[kind], source, group, drain_timeout_s=60.0))
    wait_until_in(process)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: "stop asked" in process.stderr.readline())
    began = time.monotonic()
    process.send_signal(last)
    assert process.wait(60) == code
    assert time.monotonic() - began < 30
    assert "Traceback" not in process.stderr.read()
    assert kafka.committed(group, source) == 0


@pytest.mark.broker
def test_one_signal_drains_and_is_a_clean_end(kafka, started, tmp_path):
    """What runs is finished and committed; exit code 0."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    handler = (
        "async def handler(record):\n"
        "    print('in', flush=True)\n"
        "    while not os.path.exists('stopped'): await asyncio.sleep(0.01)"
    )
    process = started(app_with(handler, source, group, drain_timeout_s=60.0))
    wait_until_in(process)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "stop asked" in process.stderr.readline())
    (tmp_path / "stopped").touch()
    assert process.wait(60) == 0
    assert kafka.committed(group, source) == 1


@pytest.mark.broker
def test_a_signal_while_the_app_still_starts_ends_it_immediately(kafka, started):
    """Nothing has run, so there is nothing to finish: exit code 0."""
    text = f"""
        from contextlib import asynccontextmanager
        @asynccontextmanager
        async def lifespan():
            print("in", flush=True)
            await asyncio.sleep(600)
            yield
        app = perkey.App(group="g", kafka={{"bootstrap.servers": BROKERS}}, lifespan=lifespan)
        @app.consume({kafka.topic()!r})
        async def handler(record): ...
        """
    process = started(text)
    wait_until_in(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()


@pytest.mark.broker
@pytest.mark.parametrize("kind", pushed("async blocks")[:3])
def test_a_stop_with_a_hanging_handler_is_bounded_by_the_drain_timeout(kafka, started, kind):
    """One signal; after `drain_timeout_s` the member leaves, whatever the handler does."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    process = started(app_with(HANGS[kind], source, group, drain_timeout_s=0.5))
    wait_until_in(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0  # the handler has 600
    said = process.stderr.read()
    assert "drain timed out seconds=0.5" in said
    assert kafka.committed(group, source) == 0


SESSION_S = 10.0  # a busy machine may stand still for seconds
BLOCKED_S = 11.0


@pytest.mark.push
def test_membership_is_kept_while_an_async_handler_blocks_the_loop(kafka):
    """Polling goes on: no rebalance for as long as `time.sleep` holds the loop."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    events = []
    app = kafka.app(
        group=group,
        kafka={
            "session.timeout.ms": int(SESSION_S * 1000),
            "heartbeat.interval.ms": 200,
            "max.poll.interval.ms": int(SESSION_S * 1000),
        },
        on_assign=lambda _: events.append("assigned"),
        on_revoke=lambda _: events.append("revoked"),
    )

    @app.consume(source)
    async def handler(record):
        time.sleep(BLOCKED_S)  # noqa: ASYNC251  # the very thing that must do no harm

    run = kafka.start(app, until="drained")
    report = run.wait(60)
    assert (report.exit_code, report.done) == (0, 1)
    wait_for(lambda: events == ["assigned", "revoked"])
    assert app.snapshot()["poll_gap_max_s"] < SESSION_S  # it was not the whole call
    assert kafka.committed(group, source) == 1


def test_a_stop_in_the_middle_of_a_rebalance_is_bounded(kafka):
    """A second member joins while a handler runs; then the first is told to stop."""
    source, group = kafka.topic(partitions=2), kafka.name("g")
    for number in range(2):
        kafka.fill(source, [b"x"], partition=number)
    gate, started_calls = threading.Event(), []

    def make(**options):
        app = kafka.app(group=group, kafka={"heartbeat.interval.ms": 200}, **options)

        @app.consume(source)
        def handler(record):
            started_calls.append(record.partition)
            gate.wait(100)

        return app

    first = kafka.start(make(revoke_timeout_s=90.0, drain_timeout_s=1.0))
    wait_for(lambda: len(started_calls) == 2)
    second = kafka.start(make(drain_timeout_s=1.0))
    # The first member is inside its revoke callback then, waiting for its two calls.
    wait_for(lambda: [p["state"] for p in first.snapshot()["partitions"]] == ["revoking"] * 2)
    first.stop()
    assert first.wait(60).exit_code == 0  # the calls hang for longer, and so would the revoke
    gate.set()
    second.stop()
    assert second.wait(60).exit_code == 0


@pytest.mark.broker
def test_a_stop_with_the_brokers_gone_is_bounded(mortal_broker):
    """Nobody answers any more, nothing can be committed: the run ends all the same."""
    kafka = Kafka(mortal_broker.bootstrap)
    source = kafka.topic()
    kafka.fill(source, [b"x"] * 10)
    app = kafka.app(drain_timeout_s=1.0)
    seen = []

    @app.consume(source, commit=perkey.Commit(interval_s=60))
    async def handler(record):
        seen.append(record)

    run = kafka.start(app)
    wait_for(lambda: len(seen) == 10)
    mortal_broker.kill(sig=signal.SIGSTOP)
    try:
        run.stop()
        report = run.wait(60)
        assert report.done == 10
    finally:
        mortal_broker.kill(sig=signal.SIGCONT)
        kafka.topic()  # for the tests after this one: it waits until the broker takes it
        kafka.end_all()


def test_stopping_while_an_async_handler_is_cancelled_keeps_the_record(kafka):
    """A cancelled attempt is no failed attempt: its record is for the next owner."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    calls = []

    def make():
        app = kafka.app(group=group, drain_timeout_s=0.3)

        @app.consume(source)
        async def handler(record):
            calls.append(record.attempt)
            if len(calls) == 1:
                await asyncio.sleep(60)

        return app

    run = kafka.start(make())
    wait_for(lambda: calls)
    run.stop()
    assert run.wait(60).failed_attempts == 0
    assert kafka.drain(make()).done == 1
    assert calls == [1, 1]
