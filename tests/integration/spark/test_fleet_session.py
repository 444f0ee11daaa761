"""A fleet in a Spark session that is given: callbacks, snapshots and stops on the driver."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.spark.fleet_kit import (
    START_S,
    at_work,
    fill,
    free_port,
    running,
    write_app,
)
from tests.integration.spark.sink_kit import values
from tests.support.waiting import wait_for

import perkey
from perkey.spark.fleet import roster, settings, slots

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTITIONS, KEYS = 4, 50
LOCK = threading.Lock()


class Payload:
    """A value of the app's own class."""

    def __init__(self, data: bytes) -> None:
        self.number = int(data)


@asynccontextmanager
async def lifespan(app: perkey.App) -> Any:
    """Which process this is, and which opening of it."""
    await asyncio.sleep(0)
    yield {"pid": os.getpid(), "opening": uuid.uuid4().hex}


def note(log: str, scar: str, fatal: bool, line: str) -> None:
    """Log a call, unless it is the one that kills its process, which happens once."""
    if fatal and not Path(scar).exists():
        Path(scar).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(log).open("a", buffering=1) as file:
        file.write(f"{line} {time.time()}\n")


@pytest.fixture
def app_on(topic, kafka_broker, monkeypatch) -> Any:
    """A topic of 4 partitions with so many records, and an app of a group of its own for it.

    No fleet outlives its test, however that ends: it would hold the slots of the one session that
    all tests share, and every later one would wait for them.
    """
    monkeypatch.setattr(settings, "DIAL_IN_S", float(START_S))  # Python takes its time to start
    apps: list[perkey.App] = []

    def make(records: int, **more: Any) -> tuple[perkey.App, str]:
        name = topic(PARTITIONS, "fleet")
        fill(kafka_broker.bootstrap, name, records, PARTITIONS, KEYS)
        kafka = {"bootstrap.servers": kafka_broker.bootstrap, **more.pop("kafka", {})}
        apps.append(perkey.App(group=f"g-{name}", kafka=kafka, **more))
        return apps[-1], name

    yield make
    for app in apps:
        app.stop("now")
    wait_for(lambda: all(map(over, apps)), 60, "the end of its fleets")


def over(app: perkey.App) -> bool:
    """It has ended, or was never started."""
    try:
        return app.snapshot()["state"] in ("ended", "failed")
    except perkey.NotStarted:
        return True


def test_everything_is_reported_on_the_driver(spark, app_on, topic, kafka_broker) -> None:
    """Outputs, values of the app's classes, callbacks, a snapshot over all members, a lifespan each."""
    committed: list[perkey.Committed] = []
    assigned: list[Any] = []
    out = topic(1, "out")
    port = free_port()
    app, name = app_on(
        6_000,
        lifespan=lifespan,
        on_commit=committed.extend,
        on_assign=assigned.extend,
        http=f"127.0.0.1:{port}",
    )

    @app.consume(name, value=Payload, concurrency=5, output=out)
    async def handle(record: perkey.Record) -> Any:
        await asyncio.sleep(0.002)
        return {**app.state, "number": record.value.number}

    app.pause()  # or the first member could be done before the second one is there
    run = app.start(engine="spark", spark=spark, members=2, until="drained")
    shot = wait_for(lambda: _busy(app.snapshot()), START_S, "both members at work")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert "perkey_calls_max{" in answer.read().decode()  # the driver answers for all members
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/snapshot", timeout=60) as answer:
        assert len(json.load(answer)["members"]) == 2
    where = f"http://127.0.0.1:{port}/why?where={name}:0:0"  # which its member knows alone
    row = wait_for(lambda: _ready(_found(where)), 60, "the member's word")
    assert row["member"].endswith(tuple("01"))
    app.resume()
    report = run.wait(START_S)
    assert (report.exit_code, report.reason, report.done) == (0, "drained", 6_000), report
    returned = [json.loads(one) for one in values(kafka_broker, out)]
    assert len(returned) == 6_000
    assert {one["number"] for one in returned} == set(range(6_000 // KEYS))
    openings = {(one["pid"], one["opening"]) for one in returned}
    assert len(openings) == 2
    assert [(one["member"], one["state"]) for one in shot["members"]] == [(0, "up"), (1, "up")]
    assert {one["pid"] for one in shot["members"]} == {pid for pid, _ in openings}
    assert shot["handlers"]["handle"]["concurrency"] == 10
    assert json.dumps(shot)
    assert {where[0] for where in assigned} == {name}
    assert {type(one) for one in committed} == {perkey.Committed}

    def ends() -> int:
        return sum({one.partition: one.frontier for one in [*committed]}.values())

    wait_for(lambda: ends() >= 6_000, 60, "the last callback")  # the run's end waits a second
    assert ends() == 6_000


def _found(url: str) -> dict[str, Any]:
    """The one record that was asked for."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        (row,) = json.load(answer)["found"]
        return dict(row)


def _ready(row: dict[str, Any]) -> dict[str, Any] | None:
    """Elsewhere it is also while its member has not answered in time."""
    return row if row["place"] == "ready" else None


def _busy(shot: dict[str, Any]) -> dict[str, Any] | None:
    owners = {row["member"] for row in shot["partitions"]}
    rows = len(shot["partitions"])
    return shot if owners == {0, 1} and rows == PARTITIONS else None


def test_parked_records(spark, app_on) -> None:
    """A drained group with parked records ends with exit code 3."""
    app, name = app_on(200)

    @app.consume(name, retry=perkey.Retry(attempts=1))
    def handle(record: perkey.Record) -> None:
        if record.key == b"k7":
            raise ValueError("never")

    report = app.run(engine="spark", spark=spark, members=2, until="drained")
    assert (report.exit_code, report.parked) == (3, 1), report
    assert report.done == 196  # 3 stay behind the parked one
    # Executors that start later load what was shipped, too: without it every job of theirs fails.
    files = [Path(one.removeprefix("file:")) for one in spark.sparkContext.listFiles]
    assert files and all(one.exists() for one in files), files


def test_worker_processes_in_members(spark, app_on, topic, kafka_broker) -> None:
    """executor="processes" works in a member, whose workers cannot import the app's module."""
    out = topic(1, "out")
    app, name = app_on(60, lifespan=plain_lifespan)

    @app.consume(name, executor="processes", concurrency=1, value=Payload, output=out)
    def handle(record: perkey.Record) -> Any:
        return {"pid": os.getpid(), "opened": app.state, "number": record.value.number}

    run = app.start(engine="spark", spark=spark, members=1, until="drained")
    member = app.snapshot()["members"][0]["pid"]
    assert run.wait(START_S).done == 60
    returned = [json.loads(one) for one in values(kafka_broker, out)]
    workers = {one["pid"] for one in returned}
    assert len(workers) == 1
    assert member not in workers
    assert {one["opened"] for one in returned} == workers
    assert {one["number"] for one in returned} == {0, 1}


@contextmanager
def plain_lifespan(app: perkey.App) -> Any:
    """The process that opened it."""
    yield os.getpid()


def test_stop_policy_ends_all_members(spark, app_on) -> None:
    """perkey.Stop() in one member drains the others and ends the run with exit code 1."""
    app, name = app_on(400)

    @app.consume(name, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Stop(), concurrency=2)
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.01)
        if record.value == b"3":
            raise ValueError("enough")

    report = app.run(engine="spark", spark=spark, members=2)
    assert report.exit_code == 1
    assert "member" in report.reason
    assert report.error is not None and report.error.message == "enough"


@pytest.mark.long
def test_app_stop_in_a_handler_ends_all_members(spark, app_on) -> None:
    """app.stop() called by a handler on an executor is a clean stop of the whole fleet."""
    app, name = app_on(4_000)

    @app.consume(name, concurrency=2)
    async def handle(record: perkey.Record) -> None:
        # What comes after that takes a minute in all: a driver that hears late still stops it.
        await asyncio.sleep(0.005 if record.value in (b"0", b"1") else 0.1)
        if record.value == b"1":
            app.stop()

    report = app.run(engine="spark", spark=spark, members=2)
    assert (report.exit_code, report.reason) == (0, "stopped")
    assert report.done < 4_000


def test_pause_holds_for_all_members_and_those_to_come(spark, app_on) -> None:
    """What was paused before the start is not handled by any member until it is resumed."""
    app, name = app_on(100)

    @app.consume(name)
    def handle(record: perkey.Record) -> None: ...

    app.pause()
    run = app.start(engine="spark", spark=spark, members=2, until="drained")
    wait_for(lambda: len(app.snapshot()["partitions"]) == PARTITIONS, START_S, "assignment")
    assert app.snapshot()["handlers"]["handle"]["done"] == 0
    app.resume()
    assert run.wait(START_S).done == 100


def test_a_killed_member_is_back_though_spark_gives_up(spark, app_on, tmp_path) -> None:
    """local[2] retries no task: the member's own job is submitted again, the other runs on."""
    app, name = app_on(2_000, lifespan=lifespan, kafka={"session.timeout.ms": 120_000})
    log, scar = str(tmp_path / "log"), str(tmp_path / "scar")

    @app.consume(name, concurrency=5)
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.002)
        fatal = record.partition == 1 and record.value == b"5"
        note(log, scar, fatal, f"{record.partition} {record.offset} {app.state['opening']}")

    report = app.run(engine="spark", spark=spark, members=2, until="drained")
    calls = [line.split() for line in Path(log).read_text().splitlines()]
    assert (report.exit_code, report.reason, report.done) == (0, "drained", 2_000)
    assert len({(p, o) for p, o, *_ in calls}) == 2_000
    assert len({opening for _, _, opening, _ in calls}) <= 3
    at = sorted(float(t) for p, _, _, t in calls if p == "1")
    # The session time-out is 120 s: only the static id can bring it back this soon.
    assert max(b - a for a, b in pairwise(at)) < 90


@pytest.mark.long
def test_exactly_once_survives_a_killed_member(
    spark, app_on, topic, tmp_path, kafka_broker
) -> None:
    """A member is killed in the middle of transactions: readers see each output once, in order."""
    out = topic(1, "once")
    app, name = app_on(2_000)
    log, scar = str(tmp_path / "log"), str(tmp_path / "scar")

    @app.consume(name, delivery="exactly_once", output=out, concurrency=5)
    async def handle(record: perkey.Record) -> str:
        await asyncio.sleep(0.002)
        fatal = record.partition == 1 and record.value == b"5"
        note(log, scar, fatal, "called")
        return f"{record.partition} {record.offset}"

    report = app.run(engine="spark", spark=spark, members=2, until="drained")
    assert (report.exit_code, report.reason) == (0, "drained")
    assert Path(scar).exists()
    seen = committed_values(kafka_broker.bootstrap, out)
    assert len(seen) == len(set(seen)) == 2_000
    for key in range(KEYS):
        lane = [offset for partition, offset in seen if offset_key(partition, offset) == key]
        assert lane == sorted(lane)


def offset_key(partition: int, offset: int) -> int:
    """Which key `fill` gave the record at this offset: partitions take their keys in turns."""
    keys = [key for key in range(KEYS) if key % PARTITIONS == partition]
    return keys[offset % len(keys)]


def committed_values(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """What a read_committed consumer sees, in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: list[tuple[int, int]] = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        partition, offset = bytes(message.value() or b"").split()
        seen.append((int(partition), int(offset)))
    consumer.close()
    return seen


@pytest.mark.long
def test_a_member_that_keeps_dying_ends_the_run(spark, app_on, monkeypatch, caplog) -> None:
    """After a number of deaths the run ends with exit code 1 and tells which member and how."""
    for module in (slots, roster):
        monkeypatch.setattr(module, "DEATHS_MAX", 3)
    app, name = app_on(100)

    @app.consume(name)
    def handle(record: perkey.Record) -> None:
        if record.partition == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    report = app.run(engine="spark", spark=spark, members=2)
    assert report.exit_code == 1
    assert "died 3 times" in report.reason and "killed, or crashed" in report.reason
    assert sum("member died" in one.message for one in caplog.records) >= 3


def test_an_error_on_the_executors_is_one_line(spark, app_on) -> None:
    """What fails on every executor ends the start with its story, not with Spark's stacks."""

    @asynccontextmanager
    async def broken(app: perkey.App) -> Any:
        raise RuntimeError("no database here")
        yield

    app, name = app_on(1, lifespan=broken)

    @app.consume(name)
    def handle(record: perkey.Record) -> None: ...

    with pytest.raises(perkey.FatalError, match=r"^member \d: .*RuntimeError: no database here$"):
        app.run(engine="spark", spark=spark, members=2)


def test_what_cannot_travel_is_named(spark, app_on) -> None:
    """An app that cannot be pickled is refused before any job starts, with the global's name."""
    app, name = app_on(1)

    @app.consume(name)
    def handle(record: perkey.Record) -> None:
        with LOCK:
            pass

    with pytest.raises(perkey.ConfigError, match=r"handle uses 'LOCK', a lock: .*lifespan="):
        app.run(engine="spark", spark=spark, members=2)


def test_more_members_than_slots(spark, app_on) -> None:
    """A session with fewer slots than members is told at once, with both numbers."""
    app, name = app_on(1)

    @app.consume(name)
    def handle(record: perkey.Record) -> None: ...

    with pytest.raises(perkey.ConfigError, match=r"runs 2 concurrent tasks and members=3"):
        app.run(engine="spark", spark=spark, members=3)


def test_members_log_values_are_json(spark, app_on, caplog) -> None:
    """A number in a member's log line is a number on the driver, and the member stands beside."""
    app, name = app_on(100)

    @app.consume(name)
    def handle(record: perkey.Record) -> None: ...

    with caplog.at_level("INFO", "perkey"):
        app.run(engine="spark", spark=spark, members=1, until="drained")
    assigned = [one.perkey for one in caplog.records if "assigned" in one.getMessage()]
    assert assigned[0]["member"] == 0
    assert type(assigned[0]["seconds"]) is float
    assert assigned[0]["event"] == "assigned"


DEFAULTS = """
import perkey
app = perkey.App(group="g", kafka={"bootstrap.servers": %r})

@app.consume(%r)
def handle(record): ...
app.main(engine="spark", members=1, master="local[1]")
"""


@pytest.mark.long
def test_spark_defaults_are_read(tmp_path, topic, kafka_broker) -> None:
    """Speculation from spark-defaults.conf is refused with master=, too."""
    (tmp_path / "spark-defaults.conf").write_text("spark.speculation true\n")
    script = DEFAULTS % (kafka_broker.bootstrap, topic(1, "defaults"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert "spark.speculation=true cannot be used with a fleet" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_sparks_ui_names_the_members(tmp_path, topic, kafka_broker) -> None:
    """One job for each member, with a description that stays."""
    name = topic(PARTITIONS, "described")
    fill(kafka_broker.bootstrap, name, 20_000, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=2)
    conf = ("--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0")
    with running(tmp_path, "--members", "2", *conf) as fleet:
        found: Any = wait_for(lambda: re.search(r" ui=(http://\S+)", fleet.text), START_S, "the UI")
        api = f"{found[1]}/api/v1/applications"
        at_work(fleet)
        whole = re.compile(r": member [01] of 2$")

        def told() -> list[str]:
            with urllib.request.urlopen(api, timeout=60) as answer:
                (one,) = json.load(answer)
            with urllib.request.urlopen(f"{api}/{one['id']}/jobs", timeout=60) as answer:
                jobs = json.load(answer)
            return [str(job["description"]) for job in jobs if job["status"] == "RUNNING"]

        wait_for(lambda: sum(bool(whole.search(line)) for line in told()) == 2, 60, "both lines")
        fleet.ctrl_c()
        assert fleet.wait() == 0, fleet.text
