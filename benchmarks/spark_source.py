"""The Kafka source `perkey` beside Spark's own connector, on one broker, in one Spark session.

    python benchmarks/spark_source.py [--records 1000000] [--rounds 5] [--json FILE]

Reads a topic of 100-byte records on 4 partitions with `local[2]` into the noop sink, all columns,
by three readers in turn: `perkey` as it comes, the JVM connector as it comes, and the JVM connector
with `kafka.fetch.max.wait.ms=10`, which takes away the half second that it otherwise waits at the
end of the log. Rounds are interleaved, the first ten warm up (the JVM compiles for about as many),
and medians are compared: of the time, which counts, and of the processor time, which a busy machine
changes least. Prints one JSON line for each reader and one for each ratio; exit code 1 where a
ratio misses its limit.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # Run as a file: its own folder is on the path, not the one above.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine
from benchmarks.spark_kit import PARTITIONS, arguments, fill, spark_session, timed, told
from perkey.broker import LocalBroker
from perkey.broker.jars import cache_dir

TOPIC = "spark-source"
MAVEN_LIMIT_S = 300
WARM_UP_ROUNDS = 10

#: The connector that runs on PySpark 4.3 where its own version cannot be had: 4.2.0 with the
#: token provider of 4.0.0, each without what Spark brings itself.
CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)

#: Reader -> (format, options).
READERS: dict[str, tuple[str, dict[str, str]]] = {
    "perkey": ("perkey", {}),
    "jvm": ("kafka", {}),
    "jvm-tuned": ("kafka", {"kafka.fetch.max.wait.ms": "10"}),
}
#: Other reader -> how many times its time `perkey` may take.
LIMITS = {"jvm": 0.5, "jvm-tuned": 0.9}


def main() -> int:
    """Run the comparison; 0 where both ratios hold."""
    asked = arguments(__doc__)
    if shutil.which("mvn") is None:
        print("mvn is not on the PATH: install Maven to fetch Spark's connector", file=sys.stderr)
        return 2
    jars = connector_jars()
    with LocalBroker() as broker:
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        fill(broker.bootstrap, TOPIC, asked.records)
        with spark_session(jars) as spark:
            taken = timed_rounds(spark, broker.bootstrap, asked.rounds, asked.records)
    lines = [machine.facts(), *report(taken, asked.records)]
    return told(lines, asked.json)


def connector_jars() -> list[Path]:
    """Spark's Kafka connector and what it needs, fetched by Maven once into Perkey's cache."""
    folder = cache_dir() / "spark-kafka-connector-4.2.0"
    names = [f"{artifact}-{version}.jar" for _, artifact, version in CONNECTOR]
    if not all((folder / name).exists() for name in names):
        fetch(folder)
    return [folder / name for name in names]


def fetch(folder: Path) -> None:
    """Let Maven bring the jars: it knows the registry, or a company's mirror of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        pom = Path(work) / "pom.xml"
        pom.write_text(pom_text())
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
             f"-DoutputDirectory={folder}"],
            check=True, timeout=MAVEN_LIMIT_S,
        )  # fmt: skip


def pom_text() -> str:
    """A Maven project that needs exactly these jars and nothing behind them."""
    star = "<groupId>*</groupId><artifactId>*</artifactId>"
    alone = f"<exclusions><exclusion>{star}</exclusion></exclusions>"
    needs = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{alone}</dependency>"
        for group, artifact, version in CONNECTOR
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>perkey</groupId>"
        "<artifactId>connector</artifactId><version>1</version>"
        f"<dependencies>{needs}</dependencies></project>"
    )


def timed_rounds(
    spark: Any, bootstrap: str, rounds: int, records: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds and processor seconds of each reader; the first rounds are not counted."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in READERS}
    for name in READERS:
        assert read(spark, name, bootstrap).count() == records, f"{name} did not read all records"
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, rounds_s in taken.items():
            writer = read(spark, name, bootstrap).write.format("noop").mode("overwrite")
            both = timed(writer.save)
            if number >= WARM_UP_ROUNDS:
                rounds_s.append(both)
    return taken


def read(spark: Any, name: str, bootstrap: str) -> Any:
    """The topic as a DataFrame of one reader."""
    form, options = READERS[name]
    reader = spark.read.format(form).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", TOPIC).options(**options).load()


def report(taken: dict[str, list[tuple[float, float]]], records: int) -> Iterator[dict[str, Any]]:
    """One line for each reader, one for each ratio."""
    seconds = {name: [wall for wall, _ in both] for name, both in taken.items()}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    spent = {name: statistics.median(cpu for _, cpu in both) for name, both in taken.items()}
    for name, median in medians.items():
        yield {
            "type": "run",
            "reader": name,
            "records": records,
            "median_s": round(median, 3),
            "records_per_s": round(records / median),
            "processor_s": round(spent[name], 3),
            "runs_s": [round(second, 3) for second in seconds[name]],
        }
    for other, limit in LIMITS.items():
        ratio = medians["perkey"] / medians[other]
        yield {
            "type": "ratio",
            "name": f"perkey / {other}",
            "ratio": round(ratio, 3),
            "of_processor_time": round(spent["perkey"] / spent[other], 3),
            "limit": limit,
            "ok": ratio <= limit,
        }


if __name__ == "__main__":
    sys.exit(main())
