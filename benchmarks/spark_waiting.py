"""A service that takes 50 ms, called for each record on Spark: `process` beside Spark's own ways.

    python benchmarks/spark_waiting.py [--records 4000] [--keys 2000] [--rounds 3] [--json FILE]

The same records on `local[2]`, 20 calls at once in each of two tasks, by

- `process`: Perkey's operator, a key's records one after another;
- `arrow-concurrency`: an Arrow UDF with `spark.sql.execution.pythonUDF.arrow.concurrency.level`;
- `mapInPandas`: with a pool of threads in each task;
- `applyInPandas`: a group for each key. One call at a time in each task, so it is given a
  twentieth of the records.

Every call writes down its key, offset, begin and end. A record whose call begins before the call of
the record before it, of the same key, has ended breaks the order. Prints one JSON line for each
way: records/s (median) and order breaks (of all rounds but the first), then `process` beside each
other way. Exit code 1 where `process` breaks the order.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine
from benchmarks.spark_kit import told

WORK_S, CALLS, SLOTS = 0.05, 20, 2


def service(folder: str) -> Callable[[bytes, int], None]:
    """A function that takes 50 ms and writes down when it ran; travels by value."""
    work_s = WORK_S

    def call(key: bytes, offset: int) -> None:
        began = time.monotonic()
        time.sleep(work_s)
        line = f"{key.decode()} {offset} {began} {time.monotonic()}\n"
        with Path(f"{folder}/{os.getpid()}").open("a") as file:
            file.write(line)

    return call


def by_process(spark: Any, place: str, call: Callable[[bytes, int], None]) -> None:
    """Perkey's operator."""
    from perkey.spark import process

    rows = process(
        spark.read.parquet(place),
        lambda record: call(record.key, record.offset),
        concurrency=CALLS,
        slots=SLOTS,
    )
    rows.write.format("noop").mode("overwrite").save()


def by_arrow_concurrency(spark: Any, place: str, call: Callable[[bytes, int], None]) -> None:
    """Spark's own setting for UDFs that wait."""
    from pyspark.sql.functions import udf

    spark.conf.set("spark.sql.execution.pythonUDF.arrow.concurrency.level", str(CALLS))
    asked = udf(lambda key, offset: call(bytes(key), offset), "string", useArrow=True)
    df = spark.read.parquet(place).repartition(SLOTS, "key").sortWithinPartitions("offset")
    df.select(asked("key", "offset")).write.format("noop").mode("overwrite").save()
    spark.conf.unset("spark.sql.execution.pythonUDF.arrow.concurrency.level")


def by_map_in_pandas(spark: Any, place: str, call: Callable[[bytes, int], None]) -> None:
    """What people write: a pool of threads in each task."""
    calls = CALLS

    def pooled(frames: Iterator[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(calls) as pool:
            for frame in frames:
                list(pool.map(call, frame["key"], frame["offset"]))
                yield frame[["offset"]]

    rows = spark.read.parquet(place).repartition(SLOTS, "key").sortWithinPartitions("offset")
    rows.mapInPandas(pooled, "offset long").write.format("noop").mode("overwrite").save()


def by_apply_in_pandas(spark: Any, place: str, call: Callable[[bytes, int], None]) -> None:
    """A group for each key, which keeps the order: Spark calls for one group at a time."""

    def each(frame: Any) -> Any:
        frame = frame.sort_values("offset")  # a shuffle keeps no order
        for key, offset in zip(frame["key"], frame["offset"], strict=True):
            call(key, offset)
        return frame[["offset"]]

    groups = spark.read.parquet(place).groupBy("key")
    done = groups.applyInPandas(each, "offset long")
    done.write.format("noop").mode("overwrite").save()


class Way(NamedTuple):
    """One way, and the part of the records that it is given: one that is slow gets fewer."""

    run: Callable[[Any, str, Callable[[bytes, int], None]], None]
    part: int = 1


WAYS = {
    "process": Way(by_process),
    "arrow-concurrency": Way(by_arrow_concurrency),
    "mapInPandas": Way(by_map_in_pandas),
    "applyInPandas": Way(by_apply_in_pandas, 20),
}


def main() -> int:
    """Run all ways in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=4_000)
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the lines to this file")
    asked = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    breaks: dict[str, list[int]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        spark = session()
        for part in {way.part for way in WAYS.values()}:
            fill(spark, f"{folder}/records-{part}", asked.records // part, asked.keys)
        for number in range(asked.rounds + 1):  # the first one warms up
            for name, way in WAYS.items():
                calls = Path(folder) / f"{name}-{number}"
                calls.mkdir()
                began = time.perf_counter()
                way.run(spark, f"{folder}/records-{way.part}", service(str(calls)))
                if number:
                    seconds[name].append(time.perf_counter() - began)
                    breaks[name].append(order_breaks(calls, asked.records // way.part))
        spark.stop()
    lines = [machine.facts(), *report(seconds, breaks, asked.records)]
    return max(told(lines, asked.json), int(any(breaks["process"])))


def session() -> Any:
    """Two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{SLOTS}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def fill(spark: Any, place: str, records: int, keys: int) -> None:
    """Records as a Kafka source gives them."""
    spark.range(0, records, 1, SLOTS).selectExpr(
        "'t' as topic", "0 as partition", "id as offset",
        f"cast(concat('k', pmod(hash(id), {keys})) as binary) as key",
        "cast(null as binary) as value",
    ).write.parquet(place)  # fmt: skip


def order_breaks(folder: Path, records: int) -> int:
    """How many calls began before the one before them, of the same key, had ended."""
    calls: dict[str, list[tuple[int, float, float]]] = {}
    count = 0
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            key, offset, began, ended = line.split()
            calls.setdefault(key, []).append((int(offset), float(began), float(ended)))
            count += 1
    assert count == records, f"{count} calls for {records} records"
    return sum(
        after[1] < before[2]
        for of_key in calls.values()
        for before, after in pairwise(sorted(of_key))
    )


def report(
    seconds: dict[str, list[float]], breaks: dict[str, list[int]], records: int
) -> list[dict[str, Any]]:
    """A line for each way."""
    lines: list[dict[str, Any]] = []
    for name, times in seconds.items():
        median = statistics.median(times)
        lines.append(
            {
                "type": "way", "name": name, "calls_at_once": CALLS * SLOTS,
                "records_per_s": round(records / WAYS[name].part / median),
                "order_breaks": breaks[name], "rounds_s": [round(one, 3) for one in times],
            }
        )  # fmt: skip
    rates = {line["name"]: line["records_per_s"] for line in lines}
    for name in [name for name in rates if name != "process"]:
        ratio = round(rates["process"] / rates[name], 3)
        lines.append({"type": "ratio", "name": f"process / {name}", "ratio": ratio})
    return lines


if __name__ == "__main__":
    sys.exit(main())
