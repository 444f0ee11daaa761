"""The Kafka sink `perkey` beside Spark's own connector, on one broker, in one Spark session.

    python benchmarks/spark_sink.py [--records 1000000] [--rounds 5] [--json FILE]

Writes rows of a key and 100 bytes from 2 tasks to a topic of 4 partitions with `local[2]`: by
`perkey` as it comes, by the JVM connector as it comes, and by `perkey` with `transactional=true`.
Rounds are interleaved, the first ten warm up, and medians are compared: of the time, which counts,
and of the processor time, which a busy machine changes least. What every round wrote is counted.
Prints one JSON line for each writer and one for each ratio to the JVM connector; exit code 1 where
a ratio misses its limit.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine
from benchmarks.spark_kit import KEYS, PARTITIONS, arguments, spark_session, timed, told
from benchmarks.spark_source import WARM_UP_ROUNDS, connector_jars
from perkey.broker import LocalBroker

#: Writer -> (format, options).
WRITERS: dict[str, tuple[str, dict[str, str]]] = {
    "perkey": ("perkey", {}),
    "jvm": ("kafka", {}),
    "perkey-transactional": ("perkey", {"transactional": "true"}),
}
#: Writer -> how many times the time of the JVM connector it may take.
LIMITS = {"perkey": 0.95, "perkey-transactional": 1.0}


def main() -> int:
    """Run the comparison; 0 where the ratio holds."""
    asked = arguments(__doc__)
    if shutil.which("mvn") is None:
        print("mvn is not on the PATH: install Maven to fetch Spark's connector", file=sys.stderr)
        return 2
    jars = connector_jars()
    with LocalBroker() as broker, spark_session(jars) as spark:
        taken = timed_rounds(spark, broker, asked.rounds, asked.records)
    lines = [machine.facts(), *report(taken, asked.records)]
    return told(lines, asked.json)


def timed_rounds(
    spark: Any, broker: LocalBroker, rounds: int, records: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds and processor seconds of every counted round, by writer; their order changes.

    Each writer has one topic for all rounds, as in life: librdkafka looks for a topic by its name
    among all that it has ever written to.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in WRITERS}
    ends: dict[str, list[int]] = {name: [0] * PARTITIONS for name in WRITERS}
    for name in WRITERS:
        broker.create_topic(name, partitions=PARTITIONS)
    for number in range(rounds + WARM_UP_ROUNDS):
        names = sorted(WRITERS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            both = timed_write(spark, name, broker.bootstrap, name, records)
            written, ends[name] = count(broker.bootstrap, name, ends[name])
            assert written == records, f"{name} wrote {written} of {records}"
            if number >= WARM_UP_ROUNDS:
                taken[name].append(both)
    return taken


def timed_write(
    spark: Any, name: str, bootstrap: str, topic: str, records: int
) -> tuple[float, float]:
    """One write of all records."""
    kind, options = WRITERS[name]
    rows = spark.range(0, records, 1, 2).selectExpr(
        f"cast(id % {KEYS} as string) as key", "repeat('x', 100) as value"
    )
    writer = rows.write.format(kind).option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).options(**options).mode("append")
    return timed(writer.save)


def count(bootstrap: str, topic: str, starts: list[int]) -> tuple[int, list[int]]:
    """How many records a read_committed reader finds from these offsets on, and where it ends.

    Without the markers of transactions.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "count", "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, *start) for start in enumerate(starts)])
    found, ends = 0, dict[int, int]()
    while len(ends) < PARTITIONS:
        for message in consumer.consume(10_000, 0.1):
            if message.error() is None:
                found += 1
            else:
                ends[message.partition() or 0] = message.offset() or 0
    consumer.close()
    return found, [ends[number] for number in range(PARTITIONS)]


def report(taken: dict[str, list[tuple[float, float]]], records: int) -> list[dict[str, Any]]:
    """A line for each writer and for each ratio to the JVM connector."""
    medians = {name: statistics.median(wall for wall, _ in both) for name, both in taken.items()}
    spent = {name: statistics.median(cpu for _, cpu in both) for name, both in taken.items()}
    lines: list[dict[str, Any]] = [
        {
            "type": "writer", "name": name, "median_s": round(medians[name], 3),
            "records_per_s": round(records / medians[name]),
            "processor_s": round(spent[name], 3),
            "rounds_s": [round(wall, 3) for wall, _ in both],
        }
        for name, both in taken.items()
    ]  # fmt: skip
    for name, limit in LIMITS.items():
        ratio = medians[name] / medians["jvm"]
        lines.append(
            {
                "type": "ratio", "of": name, "to": "jvm", "ratio": round(ratio, 3),
                "of_processor_time": round(spent[name] / spent["jvm"], 3),
                "limit": limit, "ok": ratio <= limit,
            }
        )  # fmt: skip
    return lines


if __name__ == "__main__":
    sys.exit(main())
