"""A table of a declarative pipeline, fed by the source and a handler of Perkey's.

Functions under `@dp.table` may not look at a DataFrame's columns, and `process` does: the
DataFrame is made outside of them.
"""

import json
import os
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import perkey
from perkey.spark import KafkaSource, process

spark = SparkSession.active()
spark.dataSource.register(KafkaSource)

rides = (
    spark.readStream.format("perkey")
    .option("kafka.bootstrap.servers", os.environ.get("BOOTSTRAP", "localhost:9092"))
    .option("subscribe", "rides")
    .option("startingOffsets", "earliest")
    .load()
)


def cost(record: perkey.Record) -> dict[str, Any]:
    """Stands for the slow part; rides of one key one after another."""
    ride = json.loads(record.value)
    return {"ride": ride["ride"], "cost": ride["km"] * 1.5}


handled = process(rides, cost, slots=2, schema="ride long, cost double")


@dp.table
def costs() -> DataFrame:
    """What each ride costs; rides that failed have no results."""
    return handled.select("partition", "offset", "status", "error", "results")
