"""The operator `process`: how fast it goes through records, and how slots share one partition.

    python benchmarks/spark_process.py [--records 1000000] [--rounds 5] [--json FILE]

1. Records of 100 bytes and 10,000 keys on 4 partitions with `local[2]`, each given to a handler
   that does nothing, results into the noop sink: once from a Parquet file, once read from a real
   broker by the source `weft`, whose time is then in the figure, too.
2. One partition's 200 keys and a handler that waits: once with one slot, once with two.

The first rounds warm up (the JVM compiles), medians are compared. Prints one JSON line for each;
exit code 1 where a target is missed: 400,000 records/s, and 1.8 times as fast with two slots as
with one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine
from weft.broker import LocalBroker

TOPIC, PARTITIONS, KEYS, VALUE = "spark-process", 4, 10_000, b"x" * 100
RECORDS_PER_S_MIN = 400_000
SLOTS_RATIO_MIN = 1.8
LANES, RECORDS_A_LANE, WAIT_S, CONCURRENCY = 200, 20, 0.05, 20
WARM_UP_ROUNDS = 3


async def nothing(record: Any) -> None:
    """The handler whose own cost is none."""


async def wait_a_little(record: Any) -> None:
    """A handler that calls something slow."""
    await asyncio.sleep(WAIT_S)


def main() -> int:
    """Run both; 0 where both targets are met."""
    asked = arguments()
    lines: list[dict[str, Any]] = [machine.facts()]
    with LocalBroker() as broker, spark_session() as spark:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        fill(broker.bootstrap, asked.records)
        reader = spark.read.format("weft").option("kafka.bootstrap.servers", broker.bootstrap)
        rows = reader.option("subscribe", TOPIC).load()
        with tempfile.TemporaryDirectory() as folder:
            rows.write.parquet(f"{folder}/rows")
            at_hand = spark.read.parquet(f"{folder}/rows")
            for name, df in (("from Parquet", at_hand), ("from the broker", rows)):
                lines.append(throughput(df, name, asked.records, asked.rounds))
        lines.append(two_slots(spark, asked.rounds))
    for line in lines:
        print(json.dumps(line))
    if asked.json:
        Path(asked.json).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0 if all(line.get("ok", True) for line in lines) else 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the lines to this file")
    return parser.parse_args()


def fill(bootstrap: str, records: int) -> None:
    """Write the records, round robin over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for i in range(records):
        while True:
            try:
                producer.produce(TOPIC, VALUE, key=b"%d" % (i % KEYS), partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0, "the broker did not take all records"


@contextmanager
def spark_session() -> Iterator[Any]:
    """A session on two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from weft.spark import KafkaSource

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KafkaSource)
    try:
        yield spark
    finally:
        spark.stop()


def timed(df: Any, rounds: int) -> list[float]:
    """Seconds of each round into the noop sink, without the first."""
    seconds = []
    for _ in range(WARM_UP_ROUNDS + rounds):
        began = time.perf_counter()
        df.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP_ROUNDS:]


def throughput(df: Any, name: str, records: int, rounds: int) -> dict[str, Any]:
    """All records through a handler that does nothing."""
    from weft.spark import process

    results = process(df, nothing)
    found = results.where("status = 'done'").count()
    assert found == records, f"{found} of {records} records are done"
    seconds = timed(results, rounds)
    per_s = round(records / statistics.median(seconds))
    return {
        "type": "run",
        "name": f"no-op handler, {name}",
        "records": records,
        "records_per_s": per_s,
        "target": RECORDS_PER_S_MIN,
        "runs_s": [round(s, 3) for s in seconds],
        "ok": per_s >= RECORDS_PER_S_MIN,
    }


def two_slots(spark: Any, rounds: int) -> dict[str, Any]:
    """One partition with many keys: a second slot must halve the time."""
    from weft.spark import process

    rows = spark.range(LANES * RECORDS_A_LANE).selectExpr(
        "'t' as topic",
        "0 as partition",
        "id as offset",
        f"cast(concat('vehicle-', id % {LANES}) as binary) as key",
        "cast('x' as binary) as value",
    )
    medians = {}
    for slots in (1, 2):
        results = process(rows, wait_a_little, concurrency=CONCURRENCY, slots=slots)
        medians[slots] = statistics.median(timed(results, min(rounds, 3)))
    ratio = medians[1] / medians[2]
    return {
        "type": "ratio",
        "name": "one partition's keys, two slots over one",
        "seconds": {str(slots): round(s, 3) for slots, s in medians.items()},
        "ratio": round(ratio, 3),
        "target": SLOTS_RATIO_MIN,
        "ok": ratio >= SLOTS_RATIO_MIN,
    }


if __name__ == "__main__":
    sys.exit(main())
