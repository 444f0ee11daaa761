"""From a topic into tables and back: Spark prepares, Perkey handles in order, nothing is lost.

    spark-submit pipeline.py run localhost:9092 ./tables         # topic -> join -> price -> tables
    spark-submit pipeline.py replay localhost:9092 ./tables      # failed rides again, in key order

The same handler live, with topics instead of tables:

    spark-submit pipeline.py prepare localhost:9092 ./tables     # rides -> rides.prepared
    perkey run pipeline:app                                        # rides.prepared -> rides.priced

`run` writes two tables below the folder: `priced` and `dead`, a folder for each batch, so that a
batch that is repeated after a crash replaces itself. `table()` reads the finished ones. With
`--delta` both go into one Delta table, `rides`, which recognises a repeated batch (README.md).
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import perkey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
TARIFFS = os.environ.get("TARIFFS", str(HERE / "tariffs.json"))
VEHICLES = os.environ.get("VEHICLES", str(HERE / "vehicles.csv"))
RIDE = "ride long, vehicle string, zone string, km double"


@contextmanager
def tariffs() -> Iterator[dict[str, float]]:
    """The price of a kilometre by zone; stands for the client of a service."""
    yield json.loads(Path(TARIFFS).read_text(encoding="utf-8"))


app = perkey.App(
    group="pricing",
    kafka={"bootstrap.servers": os.environ.get("BOOTSTRAP", "localhost:9092")},
    lifespan=tariffs,
)


@app.consume(
    "rides.prepared",
    value="json",
    concurrency=200,
    output="rides.priced",
    retry=perkey.Retry(attempts=2, delay_s=0.1),
    on_exhausted=perkey.DeadLetter("rides.dead"),
)
async def price(record: perkey.Record) -> dict[str, Any]:
    """What a ride costs; rides of one vehicle one after another."""
    ride = record.value
    if ride["ride"] is None:
        raise perkey.Reject("not a ride")
    await asyncio.sleep(0.02)
    if ride["zone"] not in app.state:
        raise LookupError(f"no tariff for zone {ride['zone']}")
    cost = round(ride["km"] * app.state[ride["zone"]], 2)
    return {"ride": ride["ride"], "vehicle": ride["vehicle"], "owner": ride["owner"], "cost": cost}


def prepared(spark: "SparkSession", bootstrap: str) -> "DataFrame":
    """Rides with the owner of their vehicle, as a stream."""
    raw = (
        spark.readStream.format("perkey")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "rides")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", os.environ.get("BATCH_RECORDS", "10000"))
        .load()
    )
    joined = with_owner(spark, raw)
    return joined.select("topic", "partition", "offset", "timestamp", "key", "value")


def with_owner(spark: "SparkSession", messages: "DataFrame") -> "DataFrame":
    """Parse and join, Spark's work. A vehicle without an owner is priced too, so nulls are kept.

    `raw` is the message as it came, in Base64: one that cannot be parsed is not lost, and a replay
    starts from it.
    """
    from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

    owners = spark.read.csv(VEHICLES, schema="vehicle string, owner string", header=True)
    rides = messages.withColumn("ride", F.from_json(F.col("value").cast("string"), RIDE))
    joined = rides.join(F.broadcast(owners), F.col("ride.vehicle") == owners.vehicle, "left")
    fields = F.struct("ride.*", "owner", F.base64("value").alias("raw"))
    value = F.to_json(fields, {"ignoreNullFields": "false"})
    return joined.select(*[c for c in messages.columns if c != "value"], value.alias("value"))


def run(spark: "SparkSession", bootstrap: str, folder: Path, *, delta: bool) -> None:
    """Price every ride there is, each into one of the two tables, exactly once."""
    from perkey.spark import once, process

    def write(rows: "DataFrame", batch_id: int) -> None:
        if delta:  # the checkpoint's query is `rides`: of it the table takes each batch once
            to_delta(rows, folder, {"txnAppId": "rides", "txnVersion": str(batch_id)})
            return
        done = rows.where("status = 'done'").selectExpr(*PRICED, "cast(null as long) overtaken_by")
        done.write.mode("overwrite").parquet(f"{folder}/priced/batch={batch_id}")
        dead = rows.where("status = 'failed'")
        dead.write.mode("overwrite").parquet(f"{folder}/dead/batch={batch_id}")

    rides, slots = prepared(spark, bootstrap), os.environ.get("SLOTS")
    how = {"on_exhausted": perkey.Skip(), "carry": "failed", "slots": slots and int(slots)}
    handled = process(rides, price, **how)
    query = handled.writeStream.foreachBatch(once(write)).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


COLUMNS = "ride long, vehicle string, owner string, cost double"
PRICED = (
    *("topic", "partition", "offset", "key", "status"),
    f"inline(array(from_json(cast(outputs[0].value as string), '{COLUMNS}')))",
)


def to_delta(rows: "DataFrame", folder: Path, options: dict[str, str]) -> None:
    """Add rows, done and failed, in one commit of a Delta table: `status` tells them apart."""
    from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

    price = F.from_json(F.get("outputs", F.lit(0))["value"].cast("string"), COLUMNS)
    if "overtaken_by" not in rows.columns:
        rows = rows.withColumn("overtaken_by", F.lit(None).cast("long"))
    rows = rows.withColumn("priced", price).select("*", "priced.*").drop("outputs", "priced")
    rows.write.format("delta").mode("append").options(**options).save(f"{folder}/rides")


def table(spark: "SparkSession", folder: Path) -> "DataFrame":
    """A table of batches, without one that is being written."""
    return spark.read.parquet(*(str(done.parent) for done in folder.glob("batch=*/_SUCCESS")))


def replay_dead(spark: "SparkSession", folder: Path, *, delta: bool) -> None:
    """Join and price failed rides again, a vehicle's in order; what fails again stays in `dead`."""
    from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it

    from perkey.spark import replay

    if delta:
        priced = spark.read.format("delta").load(f"{folder}/rides")
        dead = priced.drop("ride", "vehicle", "owner", "cost", "overtaken_by")
    else:
        dead, priced = table(spark, folder / "dead"), table(spark, folder / "priced")
    raw = F.unbase64(F.get_json_object(F.col("value").cast("string"), "$.raw"))
    again = replay(
        with_owner(spark, dead.withColumn("value", raw)),
        price,
        results=priced,
        on_exhausted=perkey.Skip(),
    )
    if delta:  # one commit: killed before it, nothing of this replay is there
        to_delta(again.where("status = 'done'"), folder, {})
        return
    done = again.where("status = 'done'").selectExpr(*PRICED, "overtaken_by")
    number = len(list(folder.glob("priced/batch=replay-*/_SUCCESS")))
    done.write.mode("overwrite").parquet(f"{folder}/priced/batch=replay-{number}")


def prepare(spark: "SparkSession", bootstrap: str, folder: Path) -> None:
    """Rides into the topic that the app consumes, each once."""
    writer = prepared(spark, bootstrap).select("key", "value").writeStream.format("perkey")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", "rides.prepared")
    writer = writer.option("transactional", "true").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder}/prepare").start().awaitTermination()


def main() -> None:
    """The program of `spark-submit`."""
    parser = argparse.ArgumentParser(description="Rides: a topic into tables and back.")
    parser.add_argument("step", choices=["run", "replay", "prepare"])
    parser.add_argument("bootstrap")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delta", action="store_true", help="run, replay: into one Delta table")
    asked = parser.parse_args()

    from pyspark.sql import SparkSession

    from perkey.spark import KafkaSource

    spark = SparkSession.builder.appName(f"rides-{asked.step}").getOrCreate()
    spark.dataSource.register(KafkaSource)
    if asked.step == "replay":
        replay_dead(spark, asked.folder, delta=asked.delta)
    elif asked.step == "run":
        run(spark, asked.bootstrap, asked.folder, delta=asked.delta)
    else:
        prepare(spark, asked.bootstrap, asked.folder)


if __name__ == "__main__":
    main()
