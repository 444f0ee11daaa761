"""A group's reports on a real broker: who is in it, what each holds, and who has gone silent."""

from __future__ import annotations

import json
import threading

import pytest
from tests.support.command import perkey as cli
from tests.support.waiting import wait_for

from perkey.cli.sources import Where
from perkey.cli.top import Asking
from perkey.kafka import following
from perkey.observe import reports
from perkey.observe.overview import overview

pytestmark = pytest.mark.broker


@pytest.mark.timeout(300)
def test_the_whole_group_is_seen_by_its_reports(kafka, monkeypatch):
    """Both members and their blockers; the topic is made compacted; who leaves is gone."""
    monkeypatch.setattr(reports, "EVERY_S", 0.2)
    # Each look ends at what the topic had when it began: two reports per second kept it for 15 s.
    monkeypatch.setattr(following, "READ_S", 600.0)
    source, group, topic = kafka.topic(2), kafka.name("g"), kafka.name("reports")
    gate = threading.Event()
    for _ in range(2):
        app = kafka.app(group=group, reports=topic)

        @app.consume(source)
        def handler(record):
            gate.wait(300)

        kafka.start(app)
    # Records come when each has its partition: a call that began before would hold its lane.
    wait_for(lambda: [len(app.snapshot()["partitions"]) for app in kafka.apps[-2:]] == [1, 1])
    for partition in (0, 1):
        kafka.fill(source, [{"value": b"x", "key": b"k", "partition": partition}] * 3)
    asked = ["--group", group, "--bootstrap-servers", kafka.bootstrap, "--reports", topic, "--json"]

    def members():
        done = cli("status", *asked)
        shots = json.loads(done.stdout) if done.returncode == 0 else []
        held = sorted(len(shot["partitions"]) for shot in shots)
        return shots if held == [1, 1] and all(s["blockers"] for s in shots) else None

    shots = wait_for(members)
    assert {shot["app"]["group"] for shot in shots} == {group}
    assert all(shot["silent_s"] == 0.0 for shot in shots)

    def said():
        told = json.loads(cli("why", f"{source}:1", *asked).stdout)
        texts = [one["text"] for answer in told for one in answer["sentences"]]
        return any("runs in member" in text for text in texts)

    wait_for(said)
    # What `perkey top --group` looks at every two seconds.
    ask = Asking(Where(None, None, group, kafka.bootstrap, topic).runs)
    looked = wait_for(lambda: (o := overview(ask()))["totals"]["remaining"] == 6 and o)
    assert looked["totals"]["members"] == 2
    assert {row["partition"] for row in looked["partitions"]} == {0, 1}
    found = kafka.admin.list_topics(topic, timeout=60).topics[topic]
    assert found.error is None
    gate.set()
    for run in kafka.runs:
        run.stop()
        run.wait(60)
    gone = cli("status", *asked)
    assert gone.returncode == 2
    assert f"no member of group {group} has reported to {topic}" in gone.stderr


def test_a_topic_of_reports_that_is_not_there(kafka):
    """One line that names the option."""
    done = cli("status", "--group", "g", "--bootstrap-servers", kafka.bootstrap,
               "--reports", "nowhere.at.all")  # fmt: skip
    assert done.returncode == 2
    assert "give --reports" in done.stderr
    assert done.stderr.count("\n") == 1
