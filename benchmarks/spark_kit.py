"""What the Spark benchmarks share: the command line, a session, a full topic, what they print."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

PARTITIONS, KEYS, VALUE = 4, 10_000, b"x" * 100


def arguments(about: str | None) -> argparse.Namespace:
    """The command line; `about` is the docstring of the benchmark."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="also write the lines to this file")
    return parser.parse_args()


def told(lines: Sequence[dict[str, Any]], json_file: str | None) -> int:
    """Print the lines, write them down if asked; the exit code, 0 where every limit holds."""
    for line in lines:
        print(json.dumps(line))
    if json_file:
        Path(json_file).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return 0 if all(line.get("ok", True) for line in lines) else 1


class CallLog:
    """What the handlers of a fleet on this machine note of their calls, each in a line of a file.

    A line is the partition and a number.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perkey-calls-")
        self._path = Path(self._folder.name) / "calls"
        self._path.touch()
        self._at, self._numbers = 0, defaultdict[int, list[float]](list)

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()

    def noting(self) -> Callable[[int, float], None]:
        """The function with which a handler notes a call; it goes with the app to the members."""
        path = str(self._path)

        def note(partition: int, number: float) -> None:
            with open(path, "ab", buffering=0) as file:  # noqa: PTH123  # one write a line
                file.write(b"%d %f\n" % (partition, number))

        return note

    def numbers(self) -> dict[int, list[float]]:
        """Partition -> the numbers so far."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._at += len(whole + end)
        for line in whole.splitlines():
            partition, number = line.split()
            self._numbers[int(partition)].append(float(number))
        return self._numbers


def timed(step: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a step, and processor seconds: also of Spark, its workers and the broker.

    The second hold on a busy machine, too.
    """
    began, spent = time.perf_counter(), processor_s()
    step()
    return time.perf_counter() - began, processor_s() - spent


def processor_s() -> float:
    """Processor seconds so far of this process and of all that it started."""
    me, total = psutil.Process(), 0.0
    for one in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            total += sum(one.cpu_times()[:4])  # its own, and those of its ended children
    return total


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the records, round robin over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for i in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, key=b"%d" % (i % KEYS), partition=i % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0, "the broker did not take all records"


@contextmanager
def spark_session(jars: Sequence[Path] = ()) -> Iterator[Any]:
    """A session on two cores with Perkey's source and sink in it, and what the jars bring."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from perkey.spark import KafkaSource

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(KafkaSource)
    try:
        yield spark
    finally:
        spark.stop()
