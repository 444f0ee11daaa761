"""Start, serve, results, callbacks, snapshots and the report."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter

import pytest
from tests.support.waiting import wait_for

import perkey


def copying(kafka, source, **options):
    """An app that copies each value to an output topic."""
    app, out = kafka.app(**options), kafka.topic()

    @app.consume(source, output=out)
    async def copy(record):
        return record.value

    return app, out


def test_start_returns_a_handle_that_stops_waits_and_tells(kafka):
    """Nothing runs on the caller's thread; waiting has a limit."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app, _ = copying(kafka, source)
    run = app.start()
    wait_for(lambda: run.snapshot()["handlers"]["copy"]["done"] == 1)
    with pytest.raises(TimeoutError, match="not ended"):
        run.wait(0.05)
    with pytest.raises(perkey.ConfigError, match="already running"):
        app.start()
    run.stop()
    report = run.wait(60)
    assert (report.exit_code, report.ok, report.reason, report.done) == (0, True, "stopped", 1)
    assert 0 < report.seconds < 60
    assert report.error is None


def test_an_app_can_run_again_after_it_has_ended(kafka):
    """The second run goes on where the first one stopped."""
    source = kafka.topic()
    app, out = copying(kafka, source)
    for value in (b"1", b"2"):
        kafka.fill(source, [value])
        assert kafka.drain(app).done == 1
    assert [m.value() for m in kafka.read(out, 2)] == [b"1", b"2"]


def test_run_off_the_main_thread_installs_no_signal_handlers(kafka):
    """And returns the report there."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])
    app, _ = copying(kafka, source)
    reports = []
    thread = threading.Thread(target=lambda: reports.append(app.run(until="drained")))
    thread.start()
    thread.join(60)
    assert reports[0].done == 1


def test_serve_runs_on_the_callers_loop(kafka):
    """Handlers share it with the caller's other tasks; it returns the report when drained."""
    source = kafka.topic()
    kafka.fill(source, [b"x", b"y"])
    app = kafka.app()
    loops = []

    @app.consume(source)
    async def handler(record):
        loops.append(asyncio.get_running_loop())

    async def main():
        report = await app.serve(until="drained")
        return report, asyncio.get_running_loop()

    report, loop = asyncio.run(main())
    assert (report.exit_code, report.done) == (0, 2)
    assert set(loops) == {loop}


def test_cancelling_serve_drains(kafka):
    """What runs is finished and committed before the cancellation goes on."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    app = kafka.app(group=group)
    steps, cancelled = [], asyncio.Event()

    @app.consume(source)
    async def handler(record):
        steps.append("started")
        await cancelled.wait()
        steps.append("finished")

    async def main():
        serving = asyncio.create_task(app.serve())
        await asyncio.to_thread(wait_for, lambda: steps)
        serving.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await serving
        steps.append("cancelled")

    asyncio.run(main())
    assert steps == ["started", "finished", "cancelled"]
    assert kafka.committed(group, source) == 1


def test_a_result_reports_what_became_of_a_record(kafka):
    """Record, outcome, attempts, what was returned and sent, and when, in UNIX seconds."""
    source = kafka.topic()
    kafka.fill(source, [b"x"], key=b"k")
    app, out = copying(kafka, source)
    before = time.time()
    stream = app.results()
    kafka.start(app, until="drained")
    (result,) = list(stream)
    assert (result.record.value, result.outcome, result.attempts) == (b"x", "done", 1)
    assert (result.error, result.returned) == (None, b"x")
    assert result.outputs == (perkey.Sent(out, 0, 0, b"k"),)
    assert before <= result.started_at <= result.finished_at <= time.time()


def test_results_come_after_the_acknowledgement_and_end_with_the_app(kafka):
    """`for` and `async for`; every record once."""
    source = kafka.topic(partitions=2)
    for number in range(2):
        kafka.fill(source, [b"%d" % n for n in range(300)], partition=number)
    app, _ = copying(kafka, source)
    stream = app.results()
    with pytest.raises(perkey.ConfigError, match="one reader"):
        app.results()
    kafka.start(app, until="drained")

    async def read():
        return [result async for result in stream]

    results = asyncio.run(read())
    assert {result.outcome for result in results} == {"done"}
    places = {(result.record.partition, result.record.offset) for result in results}
    assert len(results) == len(places) == 600
    assert {result.outputs[0].offset for result in results} == set(range(600))


def test_a_slow_reader_slows_the_intake_and_nothing_is_lost(kafka):
    """Handlers rest while the results wait; all of them come in the end."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 9000)
    app = kafka.app()

    @app.consume(source, concurrency=10)
    async def handler(record): ...

    stream = app.results()
    kafka.start(app, until="drained")
    wait_for(lambda: app.snapshot()["holds"] == ["results"])
    done = app.snapshot()["handlers"]["handler"]["done"]
    assert done < 6000
    assert len(list(stream)) == 9000


def test_leaving_the_results_early_leaves_the_app_running(kafka):
    """The reader goes; the records are handled all the same; a new reader may come."""
    source = kafka.topic()
    kafka.fill(source, [b""] * 5000)
    app, _ = copying(kafka, source)
    stream = app.results()
    run = kafka.start(app, until="drained")
    for _result in stream:
        break
    assert stream.closed
    app.results().close()
    report = run.wait(60)
    assert report.done == 5000


@pytest.mark.parametrize("batch", [None, perkey.Batch(linger_s=0)])
def test_a_cancelled_record_is_reported_as_superseded(kafka, batch):
    """An async call that is cancelled when its partition moves is in the results and counted."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    app = kafka.app(group=group, drain_timeout_s=0.2)
    started = threading.Event()

    @app.consume(source, batch=batch)
    async def handler(records):
        started.set()
        await asyncio.sleep(100)

    stream = app.results()
    run = kafka.start(app)
    assert started.wait(60)
    run.stop()
    report = run.wait(60)
    assert [result.outcome for result in stream] == ["superseded"]
    assert report.superseded == 1
    assert kafka.committed(group, source) == 0


def test_superseded_records_are_reported(kafka):
    """Its partition went away first: the old attempt's result says so."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x"])
    app = kafka.app(group=group, drain_timeout_s=0.2)
    gate = threading.Event()
    started = threading.Event()

    @app.consume(source)
    def handler(record):
        started.set()
        gate.wait(60)

    stream = app.results()
    run = kafka.start(app)
    assert started.wait(60)
    run.stop("now")
    run.wait(60)
    gate.set()
    outcomes = [result.outcome for result in stream]
    assert outcomes in ([], ["superseded"])
    assert kafka.committed(group, source) == 0


def test_callbacks_report_assignments_commits_and_results(kafka):
    """In order, on a thread of their own, after the broker's acknowledgement."""
    source, group = kafka.topic(), kafka.name("g")
    kafka.fill(source, [b"x", b"y"])
    calls = []
    threads = set()

    def note(what):
        def called(value):
            threads.add(threading.current_thread().name)
            calls.append((what, value))

        return called

    app = kafka.app(
        group=group,
        on_assign=note("assign"),
        on_commit=note("commit"),
        on_revoke=note("revoke"),
        on_result=note("result"),
    )
    app.consume(source, value="str")(lambda _: None)
    kafka.drain(app)
    wait_for(lambda: len(calls) == 4 + sum(what == "commit" for what, _ in calls))
    by_kind = Counter(what for what, _ in calls)
    assert by_kind["result"] == 2
    assert {v.record.value for what, v in calls if what == "result"} == {"x", "y"}
    assert [value for what, value in calls if what == "assign"] == [[(source, 0)]]
    assert [value for what, value in calls if what == "revoke"] == [[(source, 0)]]
    last = [value for what, value in calls if what == "commit"][-1]
    assert last == [perkey.Committed(source, 0, 2, 0)]
    assert kafka.committed(group, source) == 2
    assert all(name.startswith("perkey-") for name in threads)


def test_a_member_without_partitions_calls_no_callback(kafka):
    """Of two members of a topic with one partition: no list that a callback gets is empty."""
    source, group = kafka.topic(), kafka.name("g")
    calls = []
    one, two = (
        kafka.app(group=group, on_assign=calls.append, on_revoke=calls.append) for _ in "ab"
    )
    one.consume(source)(lambda record: None)
    two.consume(source)(lambda record: None)
    first = kafka.start(one)
    wait_for(lambda: len(calls) == 1)
    second = kafka.start(two)
    wait_for(lambda: two.snapshot()["state"] in ("running", "waiting"))
    for run in (second, first):
        run.stop()
        run.wait(60)
    assert calls
    assert [] not in calls


def test_callbacks_that_raise_are_logged_and_counted(kafka, caplog):
    """The records do not suffer."""
    source = kafka.topic()
    kafka.fill(source, [b"x"])

    def broken(*_):
        raise RuntimeError("callback")

    app = kafka.app(on_assign=broken, on_commit=broken, on_revoke=broken, on_result=broken)
    app.consume(source)(lambda _: None)
    with caplog.at_level(logging.ERROR, "perkey"):
        report = kafka.drain(app)
    assert (report.exit_code, report.done) == (0, 1)
    wait_for(lambda: app.snapshot()["callback_errors"] >= 4)
    assert "callback" in caplog.text


PARTITION_FIELDS = {
    "topic", "partition", "frontier", "highest_seen", "buffered", "in_flight", "retrying",
    "parked", "lag", "map_chars", "paused",
}  # fmt: skip


def test_the_snapshot_is_json_with_all_its_fields(kafka):
    """States, partitions and handlers while it runs, and after its end."""
    source = kafka.topic()
    kafka.fill(source, [{"value": b"%d" % n, "key": b"%d" % n} for n in range(10)])
    app = kafka.app()
    gate = threading.Event()

    @app.consume(
        source,
        concurrency=3,
        retry=perkey.Retry(attempts=1),
        commit=perkey.Commit(interval_s=0.05),
    )
    def handler(record):
        if record.value == b"0":
            raise ValueError
        if record.value in (b"8", b"9"):
            gate.wait(60)

    run = kafka.start(app)
    row = wait_for(
        lambda: [
            p
            for p in app.snapshot()["partitions"]
            if (p["highest_seen"], p["in_flight"]) == (9, 2) and p["map_chars"]
        ]
    )[0]
    shot = json.loads(json.dumps(app.snapshot()))
    assert set(row) >= PARTITION_FIELDS
    assert (row["topic"], row["partition"], row["frontier"], row["highest_seen"]) == (
        source, 0, 0, 9,
    )  # fmt: skip
    assert (row["parked"], row["retrying"], row["buffered"], row["lag"]) == (1, 0, 3, 10)
    handler_row = shot["handlers"]["handler"]
    assert (handler_row["done"], handler_row["failures"]) == (7, 1)
    assert handler_row["latency_ms"]["p50"] <= handler_row["latency_ms"]["p99"]
    assert handler_row["rate_per_s"] >= 0
    assert shot["state"] == "running"
    gate.set()
    run.stop()
    run.wait(60)
    assert app.snapshot()["state"] == "ended"
