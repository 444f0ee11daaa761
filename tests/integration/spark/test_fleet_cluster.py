"""A fleet on clusters of processes: Spark's standalone master and workers, and local-cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.spark.fleet_kit import (
    START_S,
    all_gone,
    fill,
    kill,
    order_breaks,
    running,
    wait_until,
    write_app,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

RECORDS, PARTITIONS = 6_000, 4


def free_port() -> int:
    """A port that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of one core each, started from PySpark's own spark-class."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    env = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    # Executors find the driver's Python by PYSPARK_PYTHON, not by an environment of their own.
    env.pop("PYTHONPATH", None)
    deploy = "org.apache.spark.deploy"
    ui = ["--webui-port", "0"]
    one = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", *ui, master]
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), *ui],
        *([f"{deploy}.worker.Worker", "--work-dir", str(tmp_path / f"w{n}"), *one] for n in (1, 2)),
    ]
    processes = []
    with (tmp_path / "cluster").open("wb") as log:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *command], env=env, stdout=log, stderr=log
                )
            )
            if len(processes) == 1:
                wait_until(lambda: _answers(port), 30, "the master")
    try:
        yield master
    finally:
        for process in processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                kill(child.pid)
            process.kill()
            process.wait(10)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def executors(master: str) -> list[psutil.Process]:
    """The executors' Java processes of the application on that master."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "CoarseGrainedExecutorBackend" in line and "--worker-url" in line:
            found.append(process)
    return found


SMALL = ("--conf", "spark.executor.memory=512m")


def test_standalone_survives_the_loss_of_an_executor(
    standalone, tmp_path, topic, kafka_broker
) -> None:
    """An executor's Java is killed: its member comes back on another, and nothing is lost.

    Executors get Weft and the app from the driver; no process stays.
    """
    name = topic(PARTITIONS, "standalone")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=3)
    arguments = ("--members", "2", "--master", standalone, "--until", "drained", *SMALL)
    with running(tmp_path, *arguments) as fleet:
        before = wait_until(
            lambda: len(fleet.members()) == 2 and fleet.members(), START_S, "two at work"
        )
        victim = psutil.Process(min(before))
        java = next(one for one in victim.parents() if one.name() == "java")
        kin = [*fleet.descendants(), *java.children(recursive=True), *executors(standalone)]
        at = time.time()
        kill(java.pid)
        wait_until(lambda: fleet.members() - before, 40, "a member elsewhere")
        assert time.time() - at < 40
        assert fleet.wait(90) == 0, fleet.text
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert all_gone(kin, 10) == []
    assert "reason=drained" in fleet.text


@pytest.mark.long
def test_local_cluster_and_the_new_group_protocol(tmp_path, topic, kafka_broker) -> None:
    """With KIP-848 a killed member is back within the broker's session time-out."""
    name = topic(PARTITIONS, "kip848")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(
        tmp_path,
        kafka_broker.bootstrap,
        name,
        concurrency=1,
        kafka={"group.protocol": "consumer"},
        own_times=False,
    )
    arguments = ("--members", "2", "--master", "local-cluster[2,1,1024]", "--until", "drained")
    with running(tmp_path, *arguments, *SMALL) as fleet:
        before = wait_until(
            lambda: len(fleet.members()) == 2 and fleet.members(), START_S, "two at work"
        )
        kill(min(before))
        wait_until(lambda: fleet.members() - before, 90, "its return")
        kin = fleet.descendants()
        assert fleet.wait(120) == 0, fleet.text
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert all_gone(kin, 10) == []


def test_too_few_slots_is_said_with_both_numbers(standalone, tmp_path, topic, kafka_broker) -> None:
    """More members than slots: after its time one line with both numbers, and all have left."""
    name = topic(PARTITIONS, "few")
    write_app(tmp_path, kafka_broker.bootstrap, name)
    with running(tmp_path, "--members", "4", "--master", standalone, *SMALL, wait_s=20) as fleet:
        wait_until(lambda: fleet.events("open"), START_S, "a member")
        kin = [*fleet.descendants(), *executors(standalone)]
        assert fleet.wait(90) == 2, fleet.text
        last = [line for line in fleet.text.splitlines() if line.startswith("weft: ")]
        assert re.match(r"weft: [12] of 4 members have dialled in after 20 s: ", last[-1]), (
            fleet.text
        )
        assert len(fleet.events("close")) == len(fleet.events("open"))
        assert all_gone(kin, 10) == []
