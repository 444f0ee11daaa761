"""Results of a Perkey app into a Parquet table by date, each exactly once, restarts included.

    python examples/results_to_parquet.py localhost:9092 geofence.alerts ./alerts-table
    python examples/results_to_parquet.py localhost:9092 geofence.alerts ./alerts-table --once

With --once it writes what there is and ends; without, it goes on. Read it with Spark:
spark.read.parquet("./alerts-table").
"""

import argparse

from pyspark.sql import SparkSession

from perkey.spark import KafkaSource


def main() -> None:
    """Topic in, table out."""
    parser = argparse.ArgumentParser(description="A results topic into a Parquet table by date.")
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("table")
    parser.add_argument(
        "--once", action="store_true", help="end when all there is has been written"
    )
    parser.add_argument("--batch-records", type=int, default=100_000, help="at most in one batch")
    asked = parser.parse_args()

    spark = SparkSession.builder.appName("results-to-parquet").getOrCreate()
    spark.dataSource.register(KafkaSource)
    results = (
        spark.readStream.format("perkey")
        .option("kafka.bootstrap.servers", asked.bootstrap)
        .option("subscribe", asked.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", asked.batch_records)
        .load()
        .selectExpr("*", "to_date(timestamp) as date")
    )
    table = results.writeStream.format("parquet").partitionBy("date")
    table = table.option("checkpointLocation", f"{asked.table}-checkpoint")
    table = table.trigger(availableNow=True) if asked.once else table
    table.start(asked.table).awaitTermination()


if __name__ == "__main__":
    main()
