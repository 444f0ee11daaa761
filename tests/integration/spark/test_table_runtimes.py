"""Delta and Iceberg by `foreachBatch`, on the newest Spark that each has a runtime for."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.integration.spark.test_versions import ROOT, python_of

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(900)]

DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG = {
    "spark.jars.packages": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "spark.sql.extensions": ("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"),
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": "lake",
}
WRITE_DELTA = """
    rows = rows.write.format("delta").mode("append")
    rows.option("txnAppId", "rides").option("txnVersion", batch_id).save("table")
"""
WRITE_ICEBERG = """
    rows.createOrReplaceTempView("batch_rows")
    rows.sparkSession.sql(
        "CREATE TABLE IF NOT EXISTS lake.db.t (offset bigint, status string) USING iceberg")
    rows.sparkSession.sql(
        "MERGE INTO lake.db.t t USING batch_rows b ON t.offset = b.offset"
        " WHEN NOT MATCHED THEN INSERT *")
"""
JOB = """
from pyspark.sql import SparkSession
from perkey.spark import once, process

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name, value in {conf!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def handle(record):
    return None

crash = [True]

def write(rows, batch_id):
    rows = rows.select("offset", "status")
    {write}
    if crash:
        crash.clear()
        raise RuntimeError("behind the table's commit")

made = spark.range(100).selectExpr("'t' as topic", "0 as partition", "id as offset",
    "cast(concat('k', id % 5) as binary) as key", "cast(null as binary) as value")
made.write.parquet("in")
for run in range(2):
    stream = process(spark.readStream.schema(made.schema).parquet("in"), handle)
    query = stream.writeStream.foreachBatch(once(write)).option("checkpointLocation", "offsets")
    query = query.trigger(availableNow=True).start()
    try:
        query.awaitTermination(300)
    except Exception as error:
        print("ended", "behind the table's commit" in str(error))
table = {read}
print("ROWS", table.count(), table.select("offset").distinct().count())
"""


@pytest.mark.parametrize(
    ("version", "conf", "write", "read"),
    [
        ("4.2", DELTA, WRITE_DELTA, 'spark.read.format("delta").load("table")'),
        ("4.1", ICEBERG, WRITE_ICEBERG, 'spark.table("lake.db.t")'),
    ],
    ids=["delta", "iceberg"],
)
def test_a_batch_that_is_repeated_behind_its_commit_is_there_once(
    tmp_path, version, conf, write, read
):
    """A crash between the table's commit and Spark's: the second run adds no row."""
    python = python_of(version)
    (tmp_path / "job.py").write_text(JOB.format(conf=conf, write=write.strip(), read=read))
    env = os.environ | {
        "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": f"{ROOT / 'src'}"
    }  # fmt: skip
    done = subprocess.run(
        [python, "job.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert "ended True\nROWS 100 100" in done.stdout, done.stdout + done.stderr[-3000:]
