"""Sizes: many partitions of large records stay in budget; apps beside each other in one process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.integration.app.conftest import Kafka
from tests.support.waiting import wait_for

import perkey

ROOT = Path(__file__).parents[3]
MB = 2**20
PARTITIONS = 64
EACH = 6
BUFFER_BYTES = 64 * MB
OVER_MB = 150

#: Its own process, so that the peak is Perkey's alone; prints MB before, at the peak, and counts.
MEASURE = """
import asyncio, json, sys
import perkey

bootstrap, topic, group, records, budget, options = json.loads(sys.argv[1])
app = perkey.App(group, {"bootstrap.servers": bootstrap}, buffer_bytes=budget)
sizes = []

@app.consume(topic, concurrency=16, **options)
async def handler(record):
    await asyncio.sleep(0.005)
    sizes.append(len(record.value))

import confluent_kafka
before = int(open("/proc/self/statm").read().split()[1]) * 4096
report = app.run(until="drained")
# Not getrusage: its peak is that of whoever started this process, too.
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
print(json.dumps([before / 2**20, peak / 2**20, report.done, sum(sizes) / 2**20]))
raise SystemExit(report.exit_code)
"""


def measure(kafka: Kafka, topic: str, records: int, budget: int, **options: Any) -> list[float]:
    given = json.dumps([kafka.bootstrap, topic, kafka.name("g"), records, budget, options])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, given],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize(
    "delivery",
    [
        "at_least_once",
        *(pytest.param(d, marks=pytest.mark.long) for d in ("at_most_once", "exactly_once")),
    ],
)
@pytest.mark.timeout(300)
def test_64_partitions_of_1_mb_records_stay_in_budget(kafka: Kafka, delivery: str) -> None:
    """The whole process peaks below buffer_bytes + 150 MB, with six times that to read."""
    topic = kafka.topic(PARTITIONS, max_message_bytes=2 * MB)
    value = os.urandom(999_000)
    for partition in range(PARTITIONS):
        kafka.fill(topic, [value] * EACH, partition=partition)
    records = PARTITIONS * EACH
    before, peak, done, megabytes = measure(kafka, topic, records, BUFFER_BYTES, delivery=delivery)
    print(f"{delivery}: {before:.0f} MB before, {peak:.0f} MB at the peak, {megabytes:.0f} MB read")
    assert done == records
    assert peak < BUFFER_BYTES / MB + OVER_MB


@pytest.mark.broker
def test_a_record_larger_than_the_whole_budget_passes_alone(kafka: Kafka) -> None:
    """Each of 3 MB, with a budget of 1 MB: all are handled, never two at once."""
    topic = kafka.topic(2, max_message_bytes=4 * MB)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 5 * MB, "log_level": 0}
    )
    for number in range(6):
        producer.produce(topic, os.urandom(3 * MB), key=b"%d" % number)
    assert producer.flush(60) == 0
    app, seen = kafka.app(buffer_bytes=MB), []

    @app.consume(topic, concurrency=8)
    async def handler(record: perkey.Record) -> None:
        await asyncio.sleep(0.02)
        seen.append(len(record.value))

    report = kafka.drain(app, 60)
    assert (report.done, set(seen)) == (6, {3 * MB})


@pytest.mark.parametrize("where", ["threads", "one loop"])
@pytest.mark.timeout(180)
def test_several_apps_in_one_process_do_not_disturb_each_other(kafka: Kafka, where: str) -> None:
    """Four ways of delivery side by side; one fails at every record, and one blocks its handlers."""
    topic, output = kafka.topic(2), kafka.topic()
    count = 400
    kafka.fill(topic, [{"value": b"%d" % n, "key": b"%d" % (n % 40)} for n in range(count)])
    seen: dict[str, Counter[int]] = {}
    apps = {name: kafka.app() for name in ("plain", "exact", "once", "batch", "failing")}
    release = threading.Event()
    blocked = kafka.app()

    def note(name: str, record: perkey.Record) -> None:
        seen.setdefault(name, Counter())[int(record.value)] += 1

    @apps["plain"].consume(topic)
    async def plain(record: perkey.Record) -> None:
        await asyncio.sleep(0.001)
        note("plain", record)

    @apps["exact"].consume(topic, delivery="exactly_once", output=output)
    async def exact(record: perkey.Record) -> bytes:
        note("exact", record)
        return record.value

    @apps["once"].consume(topic, delivery="at_most_once")
    def once(record: perkey.Record) -> None:
        note("once", record)

    @apps["batch"].consume(topic, batch=perkey.Batch(50))
    async def batch(batch: perkey.RecordBatch) -> None:
        for record in batch:
            note("batch", record)

    @apps["failing"].consume(topic, retry=perkey.Retry(2, 0.01), on_exhausted=perkey.Skip())
    async def failing(record: perkey.Record) -> None:
        raise ValueError("always")

    @blocked.consume(topic, concurrency=4)
    def stuck(record: perkey.Record) -> None:
        release.wait(60)

    hung = kafka.start(blocked)
    wait_for(lambda: blocked.snapshot()["partitions"])
    try:
        if where == "threads":
            for app in apps.values():
                kafka.start(app, until="drained")
            reports = [run.wait(60) for run in kafka.runs if run is not hung]
        else:
            reports = asyncio.run(serve_together(list(apps.values()), seen, count))
    finally:
        release.set()
        hung.stop("now")
    assert {report.exit_code for report in reports} == {0}
    expected = Counter(range(count))
    assert {name: counts == expected for name, counts in seen.items()} == dict.fromkeys(
        ("plain", "exact", "once", "batch"), True
    )
    assert sorted(report.done for report in reports) == [0, count, count, count, count]


async def serve_together(
    apps: list[perkey.App], seen: dict[str, Counter[int]], count: int
) -> list[perkey.RunReport]:
    """All of them on this loop until everything is handled."""
    tasks = [asyncio.create_task(app.serve()) for app in apps]
    deadline = time.monotonic() + 60
    while (
        len(seen) < 4
        or any(sum(c.values()) < count for c in seen.values())
        or skipped(apps) < count
    ):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    for app in apps:
        app.stop()
    return await asyncio.gather(*tasks)


def skipped(apps: list[perkey.App]) -> int:
    """Records that the failing app has given up."""
    return sum(row["skipped"] for app in apps for row in app.snapshot()["handlers"].values())
