"""A group that is commanded by its control topic: on a real broker, by the command line."""

from __future__ import annotations

import json

import pytest
from tests.integration.app.conftest import WAIT_S
from tests.support.waiting import wait_for

from perkey.cli import control_group
from perkey.cli.main import run as command

pytestmark = pytest.mark.broker
BECAUSE = ("--reason", "a test")


@pytest.mark.timeout(300)
def test_a_group_obeys_its_control_topic(kafka, capsys, monkeypatch):
    """A pause stops two members and one that starts later; a resume ends it for all."""
    monkeypatch.setattr(control_group, "ANSWERS_S", WAIT_S)  # a busy machine is patient
    source, group, topic = kafka.topic(3), kafka.name("g"), kafka.name("control")
    done: list[bytes] = []

    def member():
        app = kafka.app(group=group, control=topic)

        @app.consume(source)
        def handler(record):
            done.append(record.value)

        kafka.start(app)
        return app

    apps = [member(), member()]
    wait_for(lambda: all(app.snapshot()["partitions"] for app in apps))
    at = ["--control", topic, "--group", group, "--bootstrap-servers", kafka.bootstrap, "--json"]

    def asked(*words):
        """The exit code, and each answer by its member."""
        capsys.readouterr()
        code = command([*words, *BECAUSE, *at])
        out, err = capsys.readouterr()
        rows = json.loads(out)["answers"]
        return code, {row["member"]: row["outcome"] for row in rows}, out + err

    code, answers, did = asked("pause", "--for", "10m")
    assert code == 0, did
    assert answers == {app.snapshot()["app"]["member"]: "done" for app in apps}
    assert asked("pause", "--topic", "none.such")[:2] == (1, dict.fromkeys(answers, "refused"))
    apps.append(member())
    wait_for(lambda: "command" in [halt["cause"] for halt in apps[2].snapshot()["halts"]])
    wait_for(lambda: all(app.snapshot()["partitions"] for app in apps))
    for partition in range(3):
        kafka.fill(source, [{"value": b"%d" % partition, "partition": partition}])
    wait_for(lambda: sum(p["buffered"] for a in apps for p in a.snapshot()["partitions"]) == 3)
    assert done == []
    code, answers, did = asked("resume")
    assert (code, len(answers)) == (0, 3), did
    wait_for(lambda: sorted(done) == [b"0", b"1", b"2"])
