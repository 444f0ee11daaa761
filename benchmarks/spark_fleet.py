"""A fleet of two members on Spark beside one process, and fast records beside slow ones.

    python benchmarks/spark_fleet.py [--rounds 3] [--seconds 20] [--json FILE]

Throughput: a topic of 8 partitions is drained with handlers of 0 to 5 ms and of 10 ms by one
process with concurrency 200 and by two members with 100 each, in turn; the clock runs from the
resume of a paused app that holds all its partitions to the end of the last call. Latency: 400
records a second for so many seconds, a handler of 20 ms, from the record's timestamp to the end of
its call, without and with 1 % of the records taking 3 s; only the others count. Kills: a member is
killed with SIGKILL; how long its partitions stand still. Prints one JSON line for each; exit code
1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import perkey
from benchmarks import machine
from benchmarks.sleeps import table_s
from benchmarks.spark_kit import CallLog
from benchmarks.topics import TopicSpec, create, fill
from perkey.broker import LocalBroker

PARTITIONS, KEYS, CONCURRENCY = 8, 10_000, 200
#: handler -> how many records
THROUGHPUT = {"0-5 ms": 200_000, "10 ms": 100_000}
RATE_PER_S, SLOW_EVERY, SLOW_S, WORK_S = 400, 100, 3.0, 0.02
RATIO_MIN, LATENCY_MAX, BACK_MAX_S = 0.95, 1.05, 1.0
KILLS = 3


def main() -> int:
    """Run everything; 0 where every limit holds."""
    asked = arguments()
    lines = [machine.facts()]
    with LocalBroker() as broker, session() as spark:
        for line in measured(broker.bootstrap, spark, asked):
            print(json.dumps(line), flush=True)
            lines.append(line)
    if asked.json:
        Path(asked.json).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0 if all(line.get("ok", True) for line in lines) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--only", choices=("throughput", "latency", "kills"))
    parser.add_argument("--json", help="also write the lines to this file")
    return parser.parse_args()


def measured(bootstrap: str, spark: Any, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All lines."""
    if asked.only in (None, "throughput"):
        yield from throughput(bootstrap, spark, asked.rounds)
    if asked.only in (None, "latency"):
        yield from latency(bootstrap, spark, asked.rounds, asked.seconds)
    if asked.only in (None, "kills"):
        yield kills(bootstrap, spark)


class session:  # noqa: N801  # used like a function
    """A session on two cores, of four tasks so that a restarted member finds a slot."""

    def __enter__(self) -> Any:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2,100]").config("spark.ui.enabled", "false")
        self.spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        self.spark.sparkContext.setLogLevel("OFF")
        return self.spark

    def __exit__(self, *_: object) -> None:
        self.spark.stop()


# -- throughput ------------------------------------------------------------------------------------


def throughput(bootstrap: str, spark: Any, rounds: int) -> Iterator[dict[str, Any]]:
    """Records a second of both, and their ratio, for each handler."""
    for name, records in THROUGHPUT.items():
        spec = TopicSpec(records, KEYS, PARTITIONS, 100)
        topic = create(bootstrap, spec)
        fill(bootstrap, topic, spec, lambda _: None)
        rates: dict[str, list[float]] = {"process": [], "fleet": []}
        for _ in range(rounds):
            for side, taken in rates.items():
                how = {"engine": "spark", "spark": spark, "members": 2} if side == "fleet" else {}
                each = CONCURRENCY // 2 if side == "fleet" else CONCURRENCY
                taken.append(records / drained_s(bootstrap, topic, name, each, how))
        medians = {side: statistics.median(taken) for side, taken in rates.items()}
        ratio = medians["fleet"] / medians["process"]
        yield {
            "type": "throughput",
            "handler": name,
            "records": records,
            "records_per_s": {side: round(median) for side, median in medians.items()},
            "runs": {side: [round(rate) for rate in taken] for side, taken in rates.items()},
            "ratio": round(ratio, 3),
            "limit": RATIO_MIN,
            "ok": ratio >= RATIO_MIN,
        }


def drained_s(bootstrap: str, topic: str, name: str, each: int, how: dict[str, Any]) -> float:
    """Seconds from the resume to the end of the last call."""
    app = perkey.App(group=f"b-{uuid.uuid4().hex[:8]}", kafka={"bootstrap.servers": bootstrap})

    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(table_s(record.offset) if name == "0-5 ms" else 0.01)

    app.consume(topic, concurrency=each)(handle)
    app.pause()
    run = app.start(until="drained", **how)
    wait_until(lambda: spread(app.snapshot(), how.get("members", 1)))
    records = THROUGHPUT[name]
    began = time.perf_counter()
    app.resume()
    while count(app.snapshot()) < records:
        # A look costs the fleet something: few are enough.
        time.sleep(0.05)
    taken = time.perf_counter() - began
    run.wait(60)
    return taken


def spread(shot: dict[str, Any], members: int) -> bool:
    """All partitions are held, by all members."""
    rows = shot["partitions"]
    owners = {row.get("member", 0) for row in rows}
    return len(rows) == PARTITIONS and len(owners) == members


def count(shot: dict[str, Any]) -> int:
    """How many records are done."""
    return sum(row["done"] for row in shot["handlers"].values())


# -- latency ---------------------------------------------------------------------------------------


def latency(bootstrap: str, spark: Any, rounds: int, seconds: int) -> Iterator[dict[str, Any]]:
    """p50 and p99 of the fast records without and with slow ones among them."""
    p99: dict[bool, list[float]] = {False: [], True: []}
    p50: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for slow in (False, True):
            taken = sorted(latencies_ms(bootstrap, spark, slow, seconds))
            p50[slow].append(taken[len(taken) // 2])
            p99[slow].append(taken[int(len(taken) * 0.99)])
    ratio = statistics.median(p99[True]) / statistics.median(p99[False])
    yield {
        "type": "latency",
        "records_per_s": RATE_PER_S,
        "p50_ms": {str(slow): [round(one, 1) for one in runs] for slow, runs in p50.items()},
        "p99_ms": {str(slow): [round(one, 1) for one in runs] for slow, runs in p99.items()},
        "ratio": round(ratio, 3),
        "limit": LATENCY_MAX,
        "ok": ratio <= LATENCY_MAX,
    }


def latencies_ms(bootstrap: str, spark: Any, slow: bool, seconds: int) -> list[float]:  # noqa: FBT001  # one of the two cases
    """From a fast record's timestamp to the end of its call."""
    topic = create(bootstrap, TopicSpec(0, KEYS, 4, 0))
    app = perkey.App(group=f"b-{topic}", kafka={"bootstrap.servers": bootstrap})
    with closing(CallLog()) as log:
        note = log.noting()

        async def handle(record: perkey.Record) -> None:
            await asyncio.sleep(SLOW_S if record.value == b"slow" else WORK_S)
            if record.value == b"fast":
                note(record.partition, time.time() * 1e3 - record.timestamp_ms)

        app.consume(topic, concurrency=64)(handle)
        run = app.start(engine="spark", spark=spark, members=2)
        wait_until(lambda: len({row["member"] for row in app.snapshot()["partitions"]}) == 2)
        produce(bootstrap, topic, slow, seconds)
        wait_until(lambda: count(app.snapshot()) >= (WARM_S + seconds) * RATE_PER_S)
        run.stop()
        run.wait(60)
        return [took_ms for numbers in log.numbers().values() for took_ms in numbers]


WARM_S = 2


def produce(bootstrap: str, topic: str, slow: bool, seconds: int) -> None:  # noqa: FBT001  # one of the two cases
    """400 records a second, evenly; the first two seconds only warm up."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    began = time.perf_counter()
    for number in range((WARM_S + seconds) * RATE_PER_S):
        warm = number >= WARM_S * RATE_PER_S
        value = b"slow" if slow and number % SLOW_EVERY == 0 else b"fast" if warm else b"warm"
        producer.produce(topic, value, b"%d" % (number * 7919 % KEYS), number % 4)
        producer.poll(0)
        left = began + number / RATE_PER_S - time.perf_counter()
        if left > 0:
            time.sleep(left)
    producer.flush(30)


# -- kills -----------------------------------------------------------------------------------------


def kills(bootstrap: str, spark: Any) -> dict[str, Any]:
    """How long the partitions of a killed member stand still."""
    topic = create(bootstrap, TopicSpec(0, KEYS, 4, 0))
    app = perkey.App(group=f"b-{topic}", kafka={"bootstrap.servers": bootstrap})
    with closing(CallLog()) as log:
        note = log.noting()

        async def handle(record: perkey.Record) -> None:
            note(record.partition, time.time())
            await asyncio.sleep(WORK_S)

        app.consume(topic, concurrency=64)(handle)
        run = app.start(engine="spark", spark=spark, members=2)
        wait_until(lambda: len({row["member"] for row in app.snapshot()["partitions"]}) == 2)
        feeding = threading.Thread(target=produce, args=(bootstrap, topic, False, 8 * KILLS))
        feeding.start()
        gaps = [killed_gap_s(app, log) for _ in range(KILLS)]
        feeding.join()
        run.stop()
        run.wait(60)
    median = statistics.median(gaps)
    return {
        "type": "kill",
        "back_s": [round(gap, 3) for gap in gaps],
        "limit": BACK_MAX_S,
        "ok": median <= BACK_MAX_S,
    }


def killed_gap_s(app: perkey.App, log: CallLog) -> float:
    """Kill member 0; from the kill to the first call for one of its partitions after it."""
    shot = app.snapshot()
    held = [row["partition"] for row in shot["partitions"] if row["member"] == 0]
    pid = next(one["pid"] for one in shot["members"] if one["member"] == 0)
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    # A call that began in the moment of the kill was the dead one's.
    wait_until(lambda: all(log.numbers()[number][-1:] > [at + 0.05] for number in held))
    calls = log.numbers()
    first = min(one for number in held for one in calls[number] if one > at + 0.05)
    wait_until(lambda: time.time() - first > 5)
    return first - at


def wait_until(true: Callable[[], Any], seconds: float = 120) -> None:
    """Wait for it, with a limit."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the fleet did not get there")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
