"""A fleet whose members follow the control topic: on a real broker, by the command line."""

from __future__ import annotations

import json
import uuid

import pytest
from tests.integration.app.conftest import WAIT_S
from tests.support.plain_fleet import PlainSession
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.cli import control_group
from perkey.cli.main import run as command

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


async def handle(record: perkey.Record) -> None:
    """Nothing to do."""


@pytest.mark.long
def test_the_members_of_a_fleet_obey_the_control_topic(
    kafka_broker: LocalBroker, monkeypatch, capsys
) -> None:
    """Each member answers for itself; a pause stops both, and a resume ends that."""
    monkeypatch.setattr(control_group, "ANSWERS_S", WAIT_S)  # a busy machine is patient
    monkeypatch.setattr("perkey.spark.fleet.run.open_session", PlainSession().open)
    name = f"steered-{uuid.uuid4().hex[:12]}"
    kafka_broker.create_topic(name, partitions=2)
    servers = kafka_broker.bootstrap
    app = perkey.App(group=name, kafka={"bootstrap.servers": servers}, control=f"{name}.control")
    app.consume(name)(handle)
    at = ["--control", f"{name}.control", "--group", name, "--bootstrap-servers", servers]

    def asked(*words: str) -> tuple[int, list[str], str]:
        """The exit code, the outcome of each answer, and all that was printed."""
        capsys.readouterr()
        code = command([*words, "--reason", "a test", *at, "--json"])
        out, err = capsys.readouterr()
        rows = json.loads(out)["answers"] if out else []
        assert len({row["member"] for row in rows}) == len(rows)
        return code, [row["outcome"] for row in rows], out + err

    def paused() -> list[bool]:
        """Of each partition."""
        return ["command" in row["paused_by"] for row in app.snapshot()["partitions"]]

    fleet = app.start(engine="spark", members=2)
    try:
        wait_for(lambda: {row.get("member") for row in app.snapshot()["partitions"]} == {0, 1})
        code, outcomes, did = asked("pause", "--topic", name, "--for", "10m")
        assert (code, outcomes) == (0, ["done", "done"]), did
        wait_for(lambda: paused() == [True, True])
        code, outcomes, did = asked("resume", "--topic", name)
        assert (code, outcomes) == (0, ["done", "done"]), did
        wait_for(lambda: paused() == [False, False])
    finally:
        fleet.stop()
        fleet.wait(120)
