"""Spark Connect: a fleet, whose members run in the tasks of queries, and `process`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.spark.fleet_kit import (
    END_S,
    START_S,
    answers,
    at_work,
    fill,
    free_port,
    kill,
    order_breaks,
    running,
    write_app,
)
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS, PARTITIONS = 6_000, 4


def start_server(folder: Path, port: int, *conf: str, **env: str) -> subprocess.Popen[bytes]:
    """A Connect server on loopback with two slots, as an operator starts one."""
    import pyspark

    home = Path(pyspark.__file__).parent
    settings = ["spark.ui.enabled=false", f"spark.connect.grpc.binding.port={port}", *conf]
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[2,1000]",
        *(part for one in settings for part in ("--conf", one)),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    environment = {
        **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable, **env,
    }  # fmt: skip
    # Perkey is not on its path: what the executors run comes from the client.
    environment.pop("PYTHONPATH", None)
    with (folder / "server").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of a Connect server."""
    port = free_port()
    process = start_server(tmp_path_factory.mktemp("connect"), port)
    try:
        wait_for(lambda: answers(port), START_S, "the Connect server")
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its workers."""
    for child in psutil.Process(process.pid).children(recursive=True):
        kill(child.pid)
    process.kill()
    process.wait(END_S)


@pytest.fixture
def folder(tmp_path, topic, kafka_broker) -> Any:
    """A folder with an app for a topic with records in it."""
    name = topic(PARTITIONS, "connect")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=5, together=2)
    return tmp_path


@pytest.mark.long
def test_a_fleet_over_connect_survives_a_killed_member(
    server, tmp_path, topic, kafka_broker
) -> None:
    """Two members at work, one killed: it comes back, nothing is lost, keys stay in order."""
    name, folder = topic(PARTITIONS, "connect"), tmp_path
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(folder, kafka_broker.bootstrap, name, concurrency=5, together=2)
    with running(folder, "--members", "2", "--master", server, "--until", "drained") as fleet:
        before = at_work(fleet)
        assert {one.pid for one in fleet.descendants()}.isdisjoint(before)
        kill(min(before))
        assert fleet.wait() == 0, fleet.text
        assert {one["pid"] for one in fleet.events("open")} - before
        # The server's Python has Perkey too; what ran came from us.
        assert all("perkey-app-" in one["perkey"] for one in fleet.events("open"))
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert f"reason=drained done={RECORDS} " in fleet.text


def test_connect_need_not_be_named(server, folder) -> None:
    """SPARK_REMOTE says that this process works over Connect: members run there; Ctrl-C drains."""
    with running(folder, "--members", "2", env={"SPARK_REMOTE": server}) as fleet:
        at_work(fleet)
        fleet.ctrl_c()
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.events("open")) == len(fleet.events("close")) == 2
        begun = {(one["p"], one["o"]) for one in fleet.events("begin")}
        assert begun == fleet.done()


PROCESS = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from perkey.spark import process
from perkey.spark.processing.operator import default_slots

def handle(record):
    return None

if __name__ == "__main__":
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    df = spark.range(500).selectExpr("'t' as topic", "0 as partition", "id as offset",
        "cast(cast(id as string) as binary) as key", "cast(null as binary) as value")
    rows = process(df, handle)
    tasks = rows.select(F.spark_partition_id().alias("task"), "status").distinct().collect()
    print("SLOTS", default_slots(spark), len(tasks), {row.status for row in tasks})
    spark.stop()
"""


def test_a_connect_session_has_a_task_for_each_core(server, tmp_path) -> None:
    """`process` without slots=: two tasks on a server of local[2], not the shuffle's 200."""
    (tmp_path / "job.py").write_text(PROCESS)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), server],
        cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert "SLOTS 2 2 {'done'}" in done.stdout, done.stdout[-500:] + done.stderr[-3000:]


def test_a_master_beside_connect_is_refused(folder) -> None:
    """One process cannot have both; the line says which to leave out."""
    arguments = ("--members", "1", "--master", "local[1]")
    with running(folder, *arguments, env={"SPARK_REMOTE": "sc://127.0.0.1:1"}) as fleet:
        assert fleet.wait() == 2
        assert "leave master= out to run the fleet there" in fleet.text.splitlines()[-1]


@pytest.mark.long
def test_a_server_that_is_not_there_is_one_line(folder) -> None:
    """No Connect server at the address: exit code 2 and a line with the cure."""
    nowhere = f"sc://127.0.0.1:{free_port()}"
    with running(folder, "--members", "1", "--master", nowhere) as fleet:
        assert fleet.wait() == 2, fleet.text
        assert "no Spark Connect server answers at sc://127.0.0.1" in fleet.text.splitlines()[-1]


SPARK_SESSION = """
import sys, threading
from pyspark.sql import SparkSession
import fleetapp

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
run = fleetapp.app.start(engine="spark", spark=spark, members=2, conf={"perkey.control.wait_s": 150})
threading.Timer(3.0, run.stop).start()
report = run.wait()
print("ended", report.exit_code, report.reason, spark.range(3).count())
"""


@pytest.mark.long
def test_a_given_connect_session_stays_open(server, folder) -> None:
    """A session of a notebook: the fleet ends, the session goes on."""
    (folder / "notebook.py").write_text(SPARK_SESSION)
    done = subprocess.run(
        [sys.executable, "notebook.py", server], cwd=folder, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert "ended 0 stopped 3" in done.stdout, done.stderr[-2000:]


#: A Python that says it is another one.
OTHER = """#!/bin/sh
PYTHONPATH={folder}:$PYTHONPATH exec {python} "$@"
"""
SITE = """
import collections, sys
Version = collections.namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, 9, 1, "final", 0)
"""


@pytest.mark.long
def test_another_python_on_the_executors_is_one_line(folder, tmp_path_factory) -> None:
    """Executors of another minor version: one line with both, exit code 2."""
    place = tmp_path_factory.mktemp("other")
    (place / "sitecustomize.py").write_text(SITE)
    python = place / "python3"
    python.write_text(OTHER.format(folder=place, python=sys.executable))
    python.chmod(0o755)
    with running(folder, "--members", "1", env={"PYSPARK_PYTHON": str(python)}) as fleet:
        assert fleet.wait() == 2, fleet.text
        line = fleet.text.splitlines()[-1]
        assert "the executors run Python 3.9 and the driver 3.1" in line
        assert "give them the driver's minor version" in line
