"""The example of a declarative pipeline, run by Spark's own command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.integration.spark.example_kit import EXAMPLES

from perkey.broker import LocalBroker

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

#: Spark Connect's client and the pipelines' command need these.
pytest.importorskip("grpc")
pytest.importorskip("yaml")


def test_a_pipeline_fills_a_table_through_a_handler(tmp_path):
    """Every ride with its cost, once; what cannot be read is a failed row."""
    project = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/rides-pipeline", f"file://{tmp_path}/s"))
    programs = Path(sys.executable).parent
    with LocalBroker() as broker:
        broker.create_topic("rides", partitions=2)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(40):
            text = json.dumps({"ride": number, "km": number})
            producer.produce("rides", text if number != 7 else "{", b"k%d" % (number % 5))
        assert producer.flush(60) == 0
        env = os.environ | {
            "BOOTSTRAP": broker.bootstrap,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [programs / "spark-pipelines", "run", "--conf", "spark.ui.enabled=false"],
            cwd=project, env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    said = done.stdout + done.stderr  # which of them has the error is Spark's launcher's choice
    assert "Run is COMPLETED" in said, said[-3000:]
    # PySpark 4.3.0's command does not know the answer it gets after any Python data source, and
    # ends with 1 behind the completed run.
    assert done.returncode == 0 or "UNKNOWN_RESPONSE" in said, said[:3000]
    files = project.glob("spark-warehouse/costs/*.parquet")
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    costs = [row["results"][0] for row in rows if row["status"] == "done"]
    good = [number for number in range(40) if number != 7]
    assert sorted(costs, key=lambda row: row["ride"]) == [
        {"ride": number, "cost": number * 1.5} for number in good
    ]
    (failed,) = [row for row in rows if row["status"] == "failed"]
    assert failed["error"].startswith("JSONDecodeError")
