"""Alerts into a table: topic, streaming read, Parquet by date; exactly once across restarts.

python -m demo.table BOOTSTRAP TOPIC FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from perkey.spark import KafkaSource

ALERT = "vehicle string, seq int, at_ms long, lat double, lon double, event string, zone string"


def write_table(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
    """Bring the table up to date with the topic. Run again, it adds what is new, nothing twice."""
    spark.dataSource.register(KafkaSource)
    alerts = (
        spark.readStream.format("perkey")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = (
        alerts.withColumn("alert", f.from_json(f.col("value").cast("string"), ALERT))
        .select("alert.*", "partition", "offset")
        .withColumn("at", f.timestamp_millis("at_ms"))
        .withColumn("date", f.to_date("at"))
    )
    query = (
        rows.writeStream.format("parquet")
        .partitionBy("date")
        .option("path", str(folder / "alerts"))
        .option("checkpointLocation", str(folder / "alerts-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Run it on a Spark of its own."""
    spark = (
        SparkSession.builder.appName("perkey demo: alerts into a table")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        # For a JVM that lives some seconds, C2 and parallel collectors cost more than they bring.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    try:
        write_table(spark, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
