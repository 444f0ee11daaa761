"""The operator through Spark Connect: as many tasks as there are cores, not the shuffle's 200."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

pytest.importorskip("grpc")

JOB = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from weft.spark import process
from weft.spark.processing.operator import default_slots

def handle(record):
    return None

if __name__ == "__main__":
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    df = spark.range(500).selectExpr("'t' as topic", "0 as partition", "id as offset",
        "cast(cast(id as string) as binary) as key", "cast(null as binary) as value")
    rows = process(df, handle)
    tasks = rows.select(F.spark_partition_id().alias("task"), "status").distinct().collect()
    print("SLOTS", default_slots(spark), len(tasks), {row.status for row in tasks})
    spark.stop()
"""


def test_a_connect_session_has_a_task_for_each_core(tmp_path):
    """Without slots=: two tasks on local[2]."""
    (tmp_path / "job.py").write_text(JOB)
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert "SLOTS 2 2 {'done'}" in done.stdout, done.stdout[-500:] + done.stderr[-3000:]
