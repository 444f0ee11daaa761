"""The operator `process`: how fast it goes through records, and how slots share one partition.

    python benchmarks/spark_process.py [--records 1000000] [--rounds 5] [--json FILE]

1. Records of 100 bytes and 10,000 keys on 4 partitions with `local[2]`, each given to a handler
   that does nothing, results into the noop sink: once from a Parquet file, once read from a real
   broker by the source `perkey`, whose time is then in the figure, too.
   The first also beside a function in Python that gives its Arrow batches back as they are
   (`mapInArrow`), in turn.
2. One partition's 800 keys and a handler that waits: once with one slot, once with two.

The first rounds warm up (the JVM compiles), medians are compared. Prints one JSON line for each;
exit code 1 where a target is missed: 600,000 records/s from Parquet, at most 1.6 times what the
function takes that does nothing, and 1.9 times as fast with two slots as with one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine
from benchmarks.spark_kit import PARTITIONS, arguments, fill, spark_session, timed, told
from perkey.broker import LocalBroker

TOPIC = "spark-process"
RECORDS_PER_S_MIN = 600_000
SLOTS_RATIO_MIN = 1.9
IDENTITY_RATIO_MAX = 1.6
#: So many lanes that hashing splits them evenly: 403 to 397. Of 200 one slot gets 108, and then
#: the other cannot make it more than 1.85 times as fast.
LANES, RECORDS_A_LANE, WAIT_S, CONCURRENCY = 800, 5, 0.05, 20
#: The JVM compiles for so long: the rounds before are a tenth to a third slower.
WARM_UP_ROUNDS = 12


async def nothing(record: Any) -> None:
    """The handler whose own cost is none."""


async def wait_a_little(record: Any) -> None:
    """A handler that calls something slow."""
    await asyncio.sleep(WAIT_S)


def main() -> int:
    """Run both; 0 where both targets are met."""
    asked = arguments(__doc__)
    lines: list[dict[str, Any]] = [machine.facts()]
    with LocalBroker() as broker, spark_session() as spark:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        fill(broker.bootstrap, TOPIC, asked.records)
        reader = spark.read.format("perkey").option("kafka.bootstrap.servers", broker.bootstrap)
        rows = reader.option("subscribe", TOPIC).load()
        with tempfile.TemporaryDirectory() as folder:
            rows.write.parquet(f"{folder}/rows")
            at_hand = spark.read.parquet(f"{folder}/rows")
            lines.append(throughput(at_hand, "from Parquet", asked, RECORDS_PER_S_MIN))
            lines.append(beside_identity(at_hand, asked.rounds))
            lines.append(throughput(rows, "from the broker", asked, 0))
        lines.append(two_slots(spark, asked.rounds))
    return told(lines, asked.json)


def save(df: Any) -> tuple[float, float]:
    """Seconds and processor seconds of one round into the noop sink."""
    return timed(df.write.format("noop").mode("overwrite").save)


def timed_rounds(df: Any, rounds: int) -> list[float]:
    """Seconds of each round, without the first."""
    return [save(df)[0] for _ in range(WARM_UP_ROUNDS + rounds)][WARM_UP_ROUNDS:]


def throughput(df: Any, name: str, asked: Any, target: int) -> dict[str, Any]:
    """All records through a handler that does nothing."""
    from perkey.spark import process

    records, rounds = asked.records, asked.rounds
    results = process(df, nothing)
    found = results.where("status = 'done'").count()
    assert found == records, f"{found} of {records} records are done"
    seconds = timed_rounds(results, rounds)
    per_s = round(records / statistics.median(seconds))
    return {
        "type": "run",
        "name": f"no-op handler, {name}",
        "records": records,
        "records_per_s": per_s,
        "target": target,
        "runs_s": [round(s, 3) for s in seconds],
        "ok": per_s >= target,
    }


def as_they_are(batches: Any) -> Any:
    """What Arrow to Python and back costs alone."""
    yield from batches


def beside_identity(df: Any, rounds: int) -> dict[str, Any]:
    """The operator and a function that does nothing, one after the other in each round."""
    from perkey.spark import process

    frames = {"identity": df.mapInArrow(as_they_are, df.schema), "process": process(df, nothing)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in frames}
    for _ in range(WARM_UP_ROUNDS + rounds):
        for name, frame in frames.items():
            taken[name].append(save(frame))
    kept = {name: [wall for wall, _ in both[WARM_UP_ROUNDS:]] for name, both in taken.items()}
    spent = {
        name: statistics.median(cpu for _, cpu in both[WARM_UP_ROUNDS:])
        for name, both in taken.items()
    }
    ratio = statistics.median(kept["process"]) / statistics.median(kept["identity"])
    return {
        "type": "ratio",
        "name": "process beside an identity function in Python",
        "runs_s": {name: [round(s, 3) for s in times] for name, times in kept.items()},
        "ratio": round(ratio, 3),
        "of_processor_time": round(spent["process"] / spent["identity"], 3),
        "target": IDENTITY_RATIO_MAX,
        "ok": ratio <= IDENTITY_RATIO_MAX,
    }


def two_slots(spark: Any, rounds: int) -> dict[str, Any]:
    """One partition with many keys: a second slot must halve the time."""
    from perkey.spark import process

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
        medians[slots] = statistics.median(timed_rounds(results, min(rounds, 3)))
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
