"""A fleet in a Spark session that is given: results, callbacks, snapshots and stops on the driver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import uuid
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.integration.spark.fleet_kit import fill, wait_until

import weft
from weft.spark.fleet import roster, slots

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

PARTITIONS, KEYS = 4, 50
LOCK = threading.Lock()


@dataclass
class Payload:
    """A value of the app's own class."""

    data: bytes

    @property
    def number(self) -> int:
        """The value's number."""
        return int(self.data)


@asynccontextmanager
async def lifespan(app: weft.App) -> Any:
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
def app_on(topic, kafka_broker) -> Any:
    """A topic of 4 partitions with so many records, and an app of a group of its own for it."""

    def make(records: int, **more: Any) -> tuple[weft.App, str]:
        name = topic(PARTITIONS, "fleet")
        fill(kafka_broker.bootstrap, name, records, PARTITIONS, KEYS)
        kafka = {"bootstrap.servers": kafka_broker.bootstrap, **more.pop("kafka", {})}
        return weft.App(group=f"g-{name}", kafka=kafka, **more), name

    return make


def test_everything_is_told_on_the_driver(spark, app_on, topic) -> None:
    """Results, values of the app's classes, callbacks, a snapshot over all members, a lifespan each."""
    committed: list[weft.Committed] = []
    assigned: list[Any] = []
    out = topic(1, "out")
    app, name = app_on(
        6_000, lifespan=lifespan, on_commit=committed.extend, on_assign=assigned.extend
    )

    @app.consume(name, value=Payload, concurrency=5, output=out)
    async def handle(record: weft.Record) -> Any:
        await asyncio.sleep(0.002)
        return {**app.state, "number": record.value.number}

    results = app.results()
    read: list[weft.Result] = []
    reader = threading.Thread(target=lambda: read.extend(results))
    reader.start()
    app.pause()  # or the first member could be done before the second one is there
    run = app.start(engine="spark", spark=spark, members=2, until="drained")
    shot = wait_until(lambda: _busy(app.snapshot()), 30, "both members at work")
    app.resume()
    report = run.wait(60)
    reader.join(10)
    assert (report.exit_code, report.reason, report.done) == (0, "drained", 6_000), report
    assert len(read) == 6_000
    assert all(one.returned["number"] == one.record.value.number for one in read)
    openings = {(one.returned["pid"], one.returned["opening"]) for one in read}
    assert len(openings) == 2
    assert all(one.outputs[0].topic == out for one in read)
    assert [(one["member"], one["state"]) for one in shot["members"]] == [(0, "up"), (1, "up")]
    assert {one["pid"] for one in shot["members"]} == {pid for pid, _ in openings}
    assert shot["handlers"]["handle"]["concurrency"] == 10
    assert json.dumps(shot)
    assert {where[0] for where in assigned} == {name}
    assert {type(one) for one in committed} == {weft.Committed}
    ends = {one.partition: one.frontier for one in committed}
    assert sum(ends.values()) == 6_000


def _busy(shot: dict[str, Any]) -> dict[str, Any] | None:
    owners = {row["member"] for row in shot["partitions"]}
    rows = len(shot["partitions"])
    return shot if owners == {0, 1} and rows == PARTITIONS else None


def test_on_result_and_parked_records(spark, app_on) -> None:
    """on_result runs on the driver; a drained group with parked records ends with exit code 3."""
    told: list[weft.Result] = []
    app, name = app_on(200, on_result=told.append)

    @app.consume(name, retry=weft.Retry(attempts=1))
    def handle(record: weft.Record) -> None:
        if record.key == b"k7":
            raise ValueError("never")

    report = app.run(engine="spark", spark=spark, members=2, until="drained")
    assert (report.exit_code, report.parked) == (3, 1), report
    wait_until(lambda: len(told) == 197, 10, "all results")  # 3 stay behind the parked one
    assert Counter(one.outcome for one in told) == {"done": 196, "parked": 1}


def test_worker_processes_and_batches_in_members(spark, app_on, topic) -> None:
    """executor="processes" works in a member, whose workers cannot import the app's module."""
    out = topic(1, "out")
    app, name = app_on(60, lifespan=plain_lifespan)

    @app.consume(name, executor="processes", concurrency=1, value=Payload, output=out)
    def handle(record: weft.Record) -> Any:
        return [os.getpid(), app.state, record.value.number]

    results = app.results()
    run = app.start(engine="spark", spark=spark, members=1, until="drained")
    member = app.snapshot()["members"][0]["pid"]
    returned = [one.returned for one in results]
    assert run.wait(40).done == 60
    workers = {pid for pid, _, _ in returned}
    assert len(workers) == 1
    assert member not in workers
    assert {state for _, state, _ in returned} == workers
    assert {number for _, _, number in returned} == {0, 1}


@contextmanager
def plain_lifespan(app: weft.App) -> Any:
    """The process that opened it."""
    yield os.getpid()


def test_stop_policy_ends_all_members(spark, app_on) -> None:
    """weft.Stop() in one member drains the others and ends the run with exit code 1."""
    app, name = app_on(400)

    @app.consume(name, retry=weft.Retry(attempts=1), on_exhausted=weft.Stop(), concurrency=2)
    async def handle(record: weft.Record) -> None:
        await asyncio.sleep(0.01)
        if record.value == b"3":
            raise ValueError("enough")

    report = app.run(engine="spark", spark=spark, members=2)
    assert report.exit_code == 1
    assert "member" in report.reason
    assert report.error is not None and report.error.message == "enough"


def test_app_stop_in_a_handler_ends_all_members(spark, app_on) -> None:
    """app.stop() called by a handler on an executor is a clean stop of the whole fleet."""
    app, name = app_on(4_000)

    @app.consume(name, concurrency=2)
    async def handle(record: weft.Record) -> None:
        await asyncio.sleep(0.005)
        if record.value == b"1":
            app.stop()

    report = app.run(engine="spark", spark=spark, members=2)
    assert (report.exit_code, report.reason) == (0, "stopped")
    assert report.done < 4_000


def test_pause_holds_for_all_members_and_those_to_come(spark, app_on) -> None:
    """What was paused before the start is not handled by any member until it is resumed."""
    app, name = app_on(100)

    @app.consume(name)
    def handle(record: weft.Record) -> None: ...

    app.pause()
    run = app.start(engine="spark", spark=spark, members=2, until="drained")
    wait_until(lambda: len(app.snapshot()["partitions"]) == PARTITIONS, 20, "assignment")
    assert app.snapshot()["handlers"]["handle"]["done"] == 0
    app.resume()
    assert run.wait(40).done == 100


def test_a_slow_reader_slows_all_members(spark, app_on) -> None:
    """With a reader that does not read, intake stops; when it reads on, nothing is missing."""
    app, name = app_on(12_000)

    @app.consume(name, concurrency=10, ordering="unordered")
    async def handle(record: weft.Record) -> None: ...

    results = app.results()
    run = app.start(engine="spark", spark=spark, members=2, until="drained")
    done = [-1]

    def still() -> bool:
        now = sum(one["done"] for one in app.snapshot()["members"])
        done.append(now)
        return len(done) > 6 and now == done[-6] > 0

    wait_until(still, 30, "a standstill")
    assert 2_000 <= done[-1] < 11_000
    read = {(one.record.partition, one.record.offset) for one in results}
    assert run.wait(30).done == 12_000
    assert len(read) == 12_000


def test_a_killed_member_is_back_though_spark_gives_up(spark, app_on, tmp_path) -> None:
    """local[2] retries no task: the member's own job is submitted again, the other runs on."""
    app, name = app_on(2_000, lifespan=lifespan, kafka={"session.timeout.ms": 30_000})
    log, scar = str(tmp_path / "log"), str(tmp_path / "scar")

    @app.consume(name, concurrency=5)
    async def handle(record: weft.Record) -> None:
        await asyncio.sleep(0.002)
        fatal = record.partition == 1 and record.value == b"5"
        note(log, scar, fatal, f"{record.partition} {record.offset} {app.state['opening']}")

    report = app.run(engine="spark", spark=spark, members=2, until="drained")
    calls = [line.split() for line in Path(log).read_text().splitlines()]
    assert (report.exit_code, report.reason) == (0, "drained")
    assert len({(p, o) for p, o, *_ in calls}) == 2_000
    assert len({opening for _, _, opening, _ in calls}) <= 3
    at = sorted(float(t) for p, _, _, t in calls if p == "1")
    # The session time-out is 30 s: only the static id can bring it back this soon.
    assert max(b - a for a, b in pairwise(at)) < 10


@pytest.mark.long
def test_exactly_once_survives_a_killed_member(
    spark, app_on, topic, tmp_path, kafka_broker
) -> None:
    """A member is killed in the middle of transactions: readers see each output once, in order."""
    out = topic(1, "once")
    app, name = app_on(2_000)
    log, scar = str(tmp_path / "log"), str(tmp_path / "scar")

    @app.consume(name, delivery="exactly_once", output=out, concurrency=5)
    async def handle(record: weft.Record) -> str:
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
    while (message := consumer.poll(20)) is not None and message.error() is None:
        partition, offset = bytes(message.value() or b"").split()
        seen.append((int(partition), int(offset)))
    consumer.close()
    return seen


def test_a_member_that_keeps_dying_ends_the_run(spark, app_on, monkeypatch, caplog) -> None:
    """After a number of deaths the run ends with exit code 1 and tells which member and how."""
    for module in (slots, roster):
        monkeypatch.setattr(module, "DEATHS_MAX", 3)
    app, name = app_on(100)

    @app.consume(name)
    def handle(record: weft.Record) -> None:
        if record.partition == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    report = app.run(engine="spark", spark=spark, members=2)
    assert report.exit_code == 1
    assert "died 3 times" in report.reason and "killed, or crashed" in report.reason
    assert sum("member died" in one.message for one in caplog.records) >= 3


def test_an_error_on_the_executors_is_one_line(spark, app_on) -> None:
    """What fails on every executor ends the start with its story, not with Spark's stacks."""

    @asynccontextmanager
    async def broken(app: weft.App) -> Any:
        raise RuntimeError("no database here")
        yield

    app, name = app_on(1, lifespan=broken)

    @app.consume(name)
    def handle(record: weft.Record) -> None: ...

    with pytest.raises(weft.FatalError, match=r"^member \d: .*RuntimeError: no database here$"):
        app.run(engine="spark", spark=spark, members=2)


def test_what_cannot_travel_is_named(spark, app_on) -> None:
    """An app that cannot be pickled is refused before any job starts, with the global's name."""
    app, name = app_on(1)

    @app.consume(name)
    def handle(record: weft.Record) -> None:
        with LOCK:
            pass

    with pytest.raises(weft.ConfigError, match=r"handle uses 'LOCK', a lock: .*lifespan="):
        app.run(engine="spark", spark=spark, members=2)


def test_more_members_than_slots(spark, app_on) -> None:
    """A session with fewer slots than members is told at once, with both numbers."""
    app, name = app_on(1)

    @app.consume(name)
    def handle(record: weft.Record) -> None: ...

    with pytest.raises(weft.ConfigError, match=r"runs 2 tasks at once and members=3"):
        app.run(engine="spark", spark=spark, members=3)
