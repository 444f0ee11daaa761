"""A Connect server whose Python has no Perkey: each of the ways says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.spark.fleet_kit import (
    START_S,
    answers,
    fill,
    free_port,
    running,
    write_app,
)
from tests.integration.spark.test_fleet_connect import end, start_server
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

JOB = """
import sys
from pyspark.sql import SparkSession
from perkey.spark import KafkaSource, process

def told(name, action):
    try:
        action()
    except Exception as error:
        print(name, type(error).__name__, str(error).splitlines()[0])

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.dataSource.register(KafkaSource)
rows = spark.range(500).selectExpr("'t' as topic", "0 as partition", "id as offset",
    "cast(cast(id as string) as binary) as key", "cast(null as binary) as value")
there = {"kafka.bootstrap.servers": sys.argv[2], "topic": "t"}
read = spark.read.format("perkey").options(subscribe="t", **there)
told("source", lambda: read.load().count())
told("sink", lambda: rows.select("key", "value").write.format("perkey").options(**there)
    .mode("append").save())
told("process", lambda: process(rows, lambda record: None).count())
spark.stop()
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that Perkey needs and without Perkey."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = home / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    for path in Path(pytest.__file__).parent.parent.iterdir():
        if "perkey" not in path.name:
            (packages / path.name).symlink_to(path)
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, bare: Path) -> Iterator[str]:
    """The address of a Connect server of that Python, which tries a task 1,000 times."""
    port = free_port()
    folder = tmp_path_factory.mktemp("connect")
    process = start_server(folder, port, PYSPARK_PYTHON=str(bare))
    try:
        wait_for(lambda: answers(port), START_S, "the Connect server")
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(process)


def test_source_sink_and_process_report_what_is_missing(
    server, bare, kafka_broker, tmp_path
) -> None:
    """Each in its first line, which names the Python, before any task fails."""
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), server, kafka_broker.bootstrap],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ},
    )  # fmt: skip
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said.keys() >= {"source", "sink", "process"}, done.stdout + done.stderr[-3_000:]
    for line in said.values():
        assert str(bare) in line
        assert "has no module perkey: install perkey[spark]" in line


def test_a_fleet_needs_no_perkey_there(server, bare, kafka_broker, topic, tmp_path) -> None:
    """The app's sources travel with it: the members run, and the drain ends them."""
    name = topic(2, "bare")
    fill(kafka_broker.bootstrap, name, 100, 2)
    write_app(tmp_path, kafka_broker.bootstrap, name)
    arguments = ("--members", "1", "--master", server, "--until", "drained")
    with running(tmp_path, *arguments) as fleet:
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.done()) == 100
