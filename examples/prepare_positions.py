"""The fast part on Spark: parse, filter, join with a table, and write to a topic.

    python examples/prepare_positions.py localhost:9092 vehicles.csv ./prepare-checkpoint [--once]

Reads `gps.raw`, writes `gps.prepared`; the slow part is examples/check_positions.py. A batch that
is run again after a crash is written again: at least once, in the order of each vehicle.
"""

import sys
from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

from perkey.spark import KafkaSource


def prepared(raw: DataFrame, vehicles: DataFrame) -> DataFrame:
    """Positions that can be read, of vehicles that are watched, with the vehicle's owner."""
    fields = F.from_json(F.col("value").cast("string"), "vehicle string, lat double, lon double")
    positions = raw.select("key", fields.alias("p")).select("key", "p.*")
    known = positions.where("lat between -90 and 90 and lon between -180 and 180")
    # A broadcast join moves no row: each vehicle's records stay in one task, in order.
    watched = known.join(F.broadcast(vehicles), "vehicle").where("watched")
    return watched.select("key", F.to_json(F.struct("vehicle", "owner", "lat", "lon")).alias("v"))


def send(bootstrap: str, rows: Iterator[Row]) -> None:
    """Write rows to the topic and wait until the brokers have them. Runs in the tasks."""
    from confluent_kafka import Producer  # a global would have to be pickled

    answers: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for row in rows:
        key = None if row.key is None else bytes(row.key)
        producer.produce("gps.prepared", row.v, key, on_delivery=lambda e, _: answers.append(e))
        producer.poll(1 if len(producer) > 50_000 else 0)  # a full queue waits for the brokers
    if producer.flush(60) or any(error is not None for error in answers):
        raise RuntimeError("gps.prepared did not take all records")


def main() -> None:
    """Raw topic in, prepared topic out."""
    bootstrap, vehicles_csv, checkpoint, *flags = sys.argv[1:]
    spark = SparkSession.builder.appName("prepare-positions").getOrCreate()
    spark.dataSource.register(KafkaSource)
    columns = "vehicle string, owner string, watched boolean"
    vehicles = spark.read.csv(vehicles_csv, columns, header=True)
    source = spark.readStream.format("perkey").option("kafka.bootstrap.servers", bootstrap)
    raw = source.option("subscribe", "gps.raw").option("startingOffsets", "earliest").load()
    query = prepared(raw, vehicles).writeStream.option("checkpointLocation", checkpoint)
    query = query.foreachBatch(lambda batch, _: batch.foreachPartition(partial(send, bootstrap)))
    (query.trigger(availableNow=True) if "--once" in flags else query).start().awaitTermination()


if __name__ == "__main__":
    main()
