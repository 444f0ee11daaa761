"""Worker processes: order, death, time-outs, and that none is left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.workers import burning

import perkey
from perkey.testing import run

Notes = Callable[[], list[list[str]]]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What the handlers of all processes wrote."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv(burning.NOTES, str(path))
    return lambda: [line.split() for line in path.read_text().splitlines()]


def app_of(handler: Any, **options: Any) -> perkey.App:
    """An app with this handler in two processes."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:1"})
    given = {"executor": "processes", "concurrency": 2, "retry": perkey.Retry(delay_s=0.01)}
    app.consume("work", **{**given, **options})(handler)
    return app


def children() -> list[psutil.Process]:
    """Worker processes of this one that run; one that has just ended is none."""
    return [child for child in psutil.Process().children(recursive=True) if is_worker(child)]


def is_worker(process: psutil.Process) -> bool:
    """It runs, as a worker."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False


def test_lanes_keep_their_order_over_processes(notes: Notes) -> None:
    """Records of a key start in offset order although two processes take them, and both do."""
    values = [b"meet", *[b"burn"] * 199]  # one process alone may be through before the other opens
    results = run(app_of(burning.work), [(f"k{n % 5}", v) for n, v in enumerate(values)])
    offsets: dict[int, list[int]] = defaultdict(list)
    for _, offset, _, _ in notes():
        offsets[int(offset) % 5].append(int(offset))
    assert all(lane == sorted(lane) for lane in offsets.values())
    assert len({line[-1] for line in notes()}) == 2
    assert len(results) == 200


def test_a_slow_record_holds_up_no_other(notes: Notes) -> None:
    """What its worker was given before it turned out slow goes to the worker that has time."""
    values = [b"burn"] * 200 + [b"linger 300"] + [b"burn"] * 100
    results = run(app_of(burning.work), [(f"k{n}", value) for n, value in enumerate(values)])
    assert len(results) == 301
    assert {(result.outcome, result.attempts) for result in results} == {("done", 1)}


def test_none_is_left_after_the_run(notes: Notes) -> None:
    """When the app has ended its worker processes are gone."""
    run(app_of(burning.work), [b"burn"])
    assert notes()
    assert children() == []


def test_outputs_come_back(notes: Notes) -> None:
    """What a handler returns in a worker is produced by the member."""
    (result,) = run(app_of(burning.work), [b"out"])
    assert [sent.topic for sent in result.outputs] == ["out"]


def test_a_failure_comes_back_with_its_traceback(notes: Notes) -> None:
    """An exception crosses as plain strings and counts attempts; the last one has no delay."""
    policy = perkey.Retry(attempts=2, delay_s=burning.delay_of)
    app = app_of(burning.work, retry=policy, on_exhausted=perkey.Skip())
    (result,) = run(app, [b"raise"])
    assert [line[1] for line in notes() if line[0] == "delay"] == ["1"]
    assert result.attempts == 2
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ValueError", "as asked")
    assert "burning.py" in result.error.traceback


def test_only_the_record_at_hand_is_charged_for_a_death(notes: Notes) -> None:
    """A worker killed by one record: that one has a failed attempt, the others none."""
    records = [(f"k{n}", b"die-once" if n == 7 else b"burn") for n in range(60)]
    results = run(app_of(burning.work), records)
    attempts = {result.record.offset: result.attempts for result in results}
    assert attempts == {n: 2 if n == 7 else 1 for n in range(60)}
    assert {result.outcome for result in results} == {"done"}


def test_a_record_that_kills_twice_is_exhausted(notes: Notes) -> None:
    """Whatever attempts are left, the second death ends the record; the rest go on."""
    app = app_of(
        burning.work, retry=perkey.Retry(attempts=None, delay_s=0.01), on_exhausted=perkey.Skip()
    )
    results = run(app, [("a", b"burn"), ("b", b"die"), ("c", b"burn"), ("b", b"burn")])
    by_value = {(r.record.key, r.record.value): r for r in results}
    bad = by_value[b"b", b"die"]
    assert (bad.outcome, bad.attempts) == ("skipped", 2)
    assert bad.error is not None
    assert "SIGKILL" in bad.error.message
    assert by_value[b"b", b"burn"].outcome == "done"


def test_a_timeout_kills_the_worker(notes: Notes) -> None:
    """`timeout_s` ends a call that hangs; its record has a failed attempt, others go on."""
    app = app_of(
        burning.work,
        timeout_s=4.0,  # the call that burns may be held up by a busy machine
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.Skip(),
    )
    results = run(app, [("a", b"sleep"), ("b", b"burn")])
    by_key = {result.record.key: result for result in results}
    assert by_key[b"b"].outcome == "done"
    assert by_key[b"a"].outcome == "skipped"
    assert by_key[b"a"].error is not None
    assert by_key[b"a"].error.type == "AttemptTimeout"


def test_the_lifespan_is_opened_once_in_each(notes: Notes) -> None:
    """Each worker process opens the lifespan of the app; its value is the app's state there."""
    results = run(burning.app, [(f"k{n}", b"x") for n in range(20)])
    opens = [line[1] for line in notes() if line[0] == "open"]
    assert len(opens) == len(set(opens)) == 3  # the member and two workers
    assert all(result.outputs for result in results)


def test_async_handlers_work_too(notes: Notes) -> None:
    """An `async def` handler runs on a loop of its worker."""
    results = run(app_of(burning.work_async), [b"a", b"b"])
    assert [result.outcome for result in results] == ["done", "done"]


def test_what_a_batch_acknowledged_outlives_its_worker(notes: Notes) -> None:
    """Explicit batches: records acknowledged before the worker died are not handled again."""
    app = app_of(burning.work_batch, batch=perkey.Batch(10, linger_s=0.3, ack="explicit"))
    results = run(app, [("k", b"die" if n == 4 else b"x") for n in range(8)])
    starts = [int(line[1]) for line in notes()]
    assert sorted(result.record.offset for result in results) == list(range(8))
    assert [starts.count(n) for n in range(4)] == [1, 1, 1, 1]


def test_results_of_a_batch_have_its_value_and_times(notes: Notes) -> None:
    """Each of its records: what the call returned, and how long it took."""
    app = app_of(burning.sum_batch, batch=perkey.Batch(4, linger_s=0.3))
    results = run(app, [("k", b"x")] * 4)
    assert {result.returned for result in results} == {perkey.Produce("4", topic="out")}
    assert all(result.finished_at - result.started_at >= 0.05 for result in results)


def test_at_most_once_never_handles_a_record_twice(notes: Notes) -> None:
    """A record whose worker was killed is failed, and counted, not tried again."""
    app = app_of(burning.work, delivery="at_most_once", retry=perkey.Retry(attempts=1))
    results = run(app, [(f"k{n}", b"die" if n == 3 else b"burn") for n in range(10)])
    starts = [line[1] for line in notes() if line[0] == "start"]
    assert len(starts) == len(set(starts)) == 10
    assert sorted(r.outcome for r in results) == ["done"] * 9 + ["skipped"]


def test_a_handler_that_cannot_be_imported_is_one_line() -> None:
    """A function inside a function is refused before anything is consumed."""

    def inner(record: perkey.Record) -> None:
        """Not at the top level."""

    with pytest.raises(perkey.ConfigError, match="top level of a module"):
        run(app_of(inner), [b"x"])


@pytest.mark.parametrize(("count", "good"), [(0, False), (1, True), (64, True), (65, False)])
def test_concurrency_is_the_number_of_processes(count: int, good: bool) -> None:
    """From 1 to 64; 100, the default of other executors, is not meant."""
    if good:
        app_of(burning.work, concurrency=count)
        return
    with pytest.raises(perkey.ConfigError, match="from 1 to 64"):
        app_of(burning.work, concurrency=count)


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """After kill -9 of the member no worker process is left."""
    script = tmp_path / "member.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, threading, psutil, time
            from tests.integration.workers import burning
            import perkey
            from perkey.testing import MemoryKafka
            if __name__ == "__main__":
                with MemoryKafka(auto_create=True) as kafka:
                    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
                    app.consume("work", executor="processes", concurrency=2)(burning.work)
                    kafka.create_topic("work")
                    kafka.produce("work", b"sleep")
                    app.start()
                    while not os.path.getsize(os.environ["PERKEY_TEST_NOTES"]):
                        time.sleep(0.01)
                    print(*[c.pid for c in psutil.Process().children()], flush=True)
                    os.kill(os.getpid(), 9)
            """
        )
    )
    record = tmp_path / "notes"
    record.touch()
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, burning.NOTES: str(record), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) >= 2, ended.stderr
    gone, alive = psutil.wait_procs(
        [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60
    )
    assert alive == [], gone


@pytest.mark.parametrize(
    ("bad_value", "message"),
    [
        (threading.Lock, "cannot be sent to a worker process"),
        (burning.Unreadable, "ValueError: invalid literal for int()"),
    ],
    ids=["not pickled", "not unpickled"],
)
def test_a_value_that_no_worker_gets_fails_its_attempt(
    notes: Notes, bad_value: Callable[[], object], message: str
) -> None:
    """One record's prefetched value cannot be sent or read: that one has failed, no worker has."""

    def load(records: Sequence[perkey.Record]) -> list[object]:
        return [bad_value() if record.value == b"bad" else "fine" for record in records]

    once = {"retry": perkey.Retry(attempts=1), "on_exhausted": perkey.Skip()}
    app = app_of(burning.work, prefetch=load, **once)
    results = run(app, [(f"k{n}", b"bad" if n == 30 else b"burn") for n in range(60)])
    assert Counter(result.outcome for result in results) == {"done": 59, "skipped": 1}
    (bad,) = [result for result in results if result.error is not None]
    assert bad.record.value == b"bad"
    assert bad.error is not None
    assert message in bad.error.message


def test_a_worker_that_reads_nothing_delays_no_other(notes: Notes) -> None:
    """A suspended worker's pipe is full: others go on, and its time-out ends it."""
    app = app_of(burning.work, timeout_s=4.0)
    values = [(b"suspend" if n == 150 else b"quick") + b"|" + bytes(300_000) for n in range(250)]
    results = run(app, [(f"k{n}", value) for n, value in enumerate(values)])
    attempts = {result.record.offset: result.attempts for result in results}
    assert attempts == {n: 2 if n == 150 else 1 for n in range(250)}
    assert {result.outcome for result in results} == {"done"}


def test_a_process_that_a_handler_forked_does_not_hide_the_workers_end(notes: Notes) -> None:
    """The worker is killed while its own child lives: the record is tried again."""
    try:
        results = run(app_of(burning.work), [("a", b"fork"), ("b", b"burn")], timeout_s=60)
    finally:
        for line in notes():
            if line[0] == "forked":
                os.kill(int(line[-1]), signal.SIGKILL)
    attempts = {result.record.key: (result.outcome, result.attempts) for result in results}
    assert attempts == {b"a": ("done", 2), b"b": ("done", 1)}


def test_a_log_line_with_a_wrong_format_fails_no_record(
    notes: Notes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """As everywhere in Python, a log call does not raise: the worker's stderr has the fault."""
    with caplog.at_level(logging.WARNING):
        (result,) = run(app_of(burning.work), [b"log"])
    assert (result.outcome, result.attempts) == ("done", 1)
    assert "--- Logging error ---" in capfd.readouterr().err
