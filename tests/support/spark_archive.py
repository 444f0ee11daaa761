"""The classes of Spark as its Java has them in memory: a JVM starts with half the processor time.

`make setup` runs this once; tests/conftest.py names the file to each JVM of Spark. A JVM that does
not fit the file (another Java, another Spark) ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

FILE = Path(sys.prefix) / "spark.jsa"


def options() -> str:
    """What a JVM is given; nothing where there is no file."""
    return f"-Xlog:disable -XX:SharedArchiveFile={FILE}" if FILE.exists() else ""


def write(folder: str) -> None:
    """A session that does a little of what tests do; its JVM writes the file when it ends."""
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    made = FILE.with_suffix(".new")  # one that is cut off is never used
    os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={made}"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    made.unlink(missing_ok=True)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", Path(folder).as_uri())
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.port", "0")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    assert spark.range(100).repartition(2).groupBy("id").count().count() == 100
    spark.stop()
    java = SparkContext._gateway.proc
    java.stdin.close()  # it ends then
    if java.wait() == 0:
        made.replace(FILE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as events:
        write(events)
