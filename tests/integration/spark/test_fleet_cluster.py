"""A fleet on clusters of processes: Spark's standalone master and workers, and local-cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.spark.fleet_kit import (
    END_S,
    START_S,
    all_gone,
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
    try:
        with (tmp_path / "cluster").open("wb") as log:
            for command in commands:
                processes.append(
                    subprocess.Popen(
                        [str(home / "bin" / "spark-class"), *command],
                        env=env, stdout=log, stderr=log,
                    )
                )  # fmt: skip
                if len(processes) == 1:
                    wait_for(lambda: answers(port), START_S, "the master")
        yield master
    finally:
        for process in processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                kill(child.pid)
            process.kill()
            process.wait(END_S)


def executors(master: str) -> list[psutil.Process]:
    """The executors' Java processes of that master's workers; other tests have theirs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "CoarseGrainedExecutorBackend" in line and "--worker-url" in line:
            found += [process] if any(master in one for one in _above(process)) else []
    return found


def _above(process: psutil.Process) -> list[str]:
    try:
        return [_command(one) for one in process.parents()]
    except psutil.Error:
        return []  # so have they


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has just ended


SMALL = ("--conf", "spark.executor.memory=512m")


@pytest.mark.long
def test_standalone_survives_the_loss_of_an_executor(
    standalone, tmp_path, topic, kafka_broker
) -> None:
    """An executor's Java is killed: its member comes back on another, and nothing is lost.

    Executors get Perkey and the app from the driver; no process stays.
    """
    name = topic(PARTITIONS, "standalone")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    # A session so long that its partitions wait for it, however long Java takes to start.
    kafka = {"session.timeout.ms": START_S * 1_000}
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=3, kafka=kafka, together=2)
    arguments = ("--members", "2", "--master", standalone, "--until", "drained", *SMALL)
    with running(tmp_path, *arguments) as fleet:
        before = at_work(fleet)
        victim = psutil.Process(min(before))
        java = next(one for one in victim.parents() if one.name() == "java")
        kin = [*fleet.descendants(), *java.children(recursive=True), *executors(standalone)]
        kill(java.pid)
        wait_for(lambda: fleet.handlers() - before, START_S, "a member elsewhere")
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert all_gone(kin, END_S) == []
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
        before = at_work(fleet)
        kill(min(before))
        wait_for(lambda: fleet.handlers() - before, START_S, "its return")
        kin = fleet.descendants()
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert all_gone(kin, END_S) == []


@pytest.mark.long
def test_too_few_slots_is_reported_with_both_numbers(
    standalone, tmp_path, topic, kafka_broker
) -> None:
    """More members than slots: after its time one line with both numbers, and all have left."""
    name = topic(PARTITIONS, "few")
    write_app(tmp_path, kafka_broker.bootstrap, name)
    with running(tmp_path, "--members", "4", "--master", standalone, *SMALL, wait_s=40) as fleet:
        wait_for(lambda: fleet.events("open"), START_S, "a member")
        kin = [*fleet.descendants(), *executors(standalone)]
        assert fleet.wait() == 2, fleet.text
        last = [line for line in fleet.text.splitlines() if line.startswith("perkey: ")]
        assert re.match(r"perkey: [12] of 4 members have dialled in after 40 s: ", last[-1]), (
            fleet.text
        )
        assert len(fleet.events("close")) == len(fleet.events("open"))
        assert all_gone(kin, END_S) == []


@pytest.mark.long
def test_members_get_executors_by_dynamic_allocation(
    standalone, tmp_path, topic, kafka_broker
) -> None:
    """None at the start: members ask for them, and none goes while a member is on it."""
    name = topic(PARTITIONS, "dynamic")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=3)
    wanted = {
        "enabled": "true", "shuffleTracking.enabled": "true", "initialExecutors": "0",
        "minExecutors": "0", "executorIdleTimeout": "2s",
    }  # fmt: skip
    conf = [
        part for k, v in wanted.items() for part in ("--conf", f"spark.dynamicAllocation.{k}={v}")
    ]
    arguments = ("--members", "2", "--master", standalone, "--until", "drained", *SMALL)
    with running(tmp_path, *arguments, *conf) as fleet:
        assert fleet.wait(START_S + 90) == 0, fleet.text
        assert len(fleet.events("end")) == len(fleet.done()) == RECORDS
        assert len(fleet.events("open")) == len(fleet.events("close")) == 2
        assert "member died" not in fleet.text
        assert order_breaks(fleet.events()) == []


@pytest.mark.long
def test_a_decommissioned_executor_hands_its_member_over_first(
    tmp_path, topic, kafka_broker
) -> None:
    """Spark is about to take an executor away: its member drains, leaves and goes on elsewhere."""
    name = topic(PARTITIONS, "decommission")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=3)
    conf = ("--conf", "spark.decommission.enabled=true", *SMALL)
    arguments = ("--members", "1", "--master", "local-cluster[2,1,1024]", "--until", "drained")
    with running(tmp_path, *arguments, *conf) as fleet:
        before = wait_for(fleet.members, START_S, "a member at work")
        java = next(p for p in psutil.Process(min(before)).parents() if p.name() == "java")
        assert "CoarseGrainedExecutorBackend" in " ".join(java.cmdline())
        java.send_signal(signal.SIGPWR)
        wait_for(lambda: fleet.handlers() - before, START_S, "a member elsewhere")
        assert fleet.wait() == 0, fleet.text
        # It closed its lifespan, and nothing was handled twice: it was not killed.
        assert {one["pid"] for one in fleet.events("close")} >= before
        assert len(fleet.events("end")) == len(fleet.done()) == RECORDS
        assert "member moves member=0" in fleet.text and "member died" not in fleet.text
        assert order_breaks(fleet.events()) == []
