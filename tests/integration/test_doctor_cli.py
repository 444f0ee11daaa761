"""`perkey doctor MODULE:APP` on a real broker: what is missing, what is refused, what is odd."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType
from tests.support.rights import ANYBODY, set_rights
from tests.support.waiting import wait_for

import perkey
from perkey.cli.doctor import Finding, of_app

pytestmark = pytest.mark.broker


def app_of(bootstrap: str, topic: str, **more: str) -> perkey.App:
    """An app that reads this topic and writes `….out` and `….dlq`."""
    app = perkey.App(topic, {"bootstrap.servers": bootstrap}, **more)
    letters = perkey.DeadLetter("{topic}.dlq")
    app.consume(topic, output=f"{topic}.out", on_exhausted=letters, timeout_s=9)(
        lambda record: None
    )
    return app


def failures(app: perkey.App) -> list[Finding]:
    """The checks of the app that fail."""
    return [one for one in of_app(app) if one.state == "failure"]


@pytest.fixture
def name() -> str:
    """For a topic, and the group that reads it."""
    return f"doctor-{uuid.uuid4().hex[:12]}"


def test_missing_topics_fail_with_the_command_that_makes_them(kafka_broker, name):
    """The source, the output and the dead letters; none of them is made."""
    app = app_of(kafka_broker.bootstrap, name)
    found = failures(app)
    assert [one.text.partition(",")[0] for one in found] == [name, f"{name}.out", f"{name}.dlq"]
    where = f" --bootstrap-servers {kafka_broker.bootstrap}"
    assert f"perkey topics create {name}{where}" in found[0].next
    assert failures(app) == found


def test_what_perkey_makes_itself_is_no_failure(kafka_broker, name):
    """Topics of reports and control; they are not made by the check."""
    for topic in (name, f"{name}.out", f"{name}.dlq"):
        kafka_broker.create_topic(topic)
    app = app_of(kafka_broker.bootstrap, name, reports=f"{name}.reports")
    for _ in range(2):
        (made,) = [one for one in of_app(app) if "Perkey creates it" in one.text]
        assert (made.state, failures(app)) == ("ok", [])


def test_a_group_that_starts_is_said_to_read_from_the_start(kafka_broker, name):
    """Its partitions have no commit yet; with a commit in each the note is gone."""
    for topic in (name, f"{name}.out", f"{name}.dlq"):
        kafka_broker.create_topic(topic)
    app = app_of(kafka_broker.bootstrap, name)
    notes = [one for one in of_app(app) if one.state == "note"]
    assert [one.text for one in notes] == ["partitions without a commit are read from their start"]
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(name, b"1")
    assert producer.flush(60) == 0
    app.run(until="drained")
    *_, group = of_app(app)
    assert group.text == f"group {name}: no members; commits in 1 of 1 partition"


def test_dead_letters_that_would_lose_something_are_a_warning(kafka_broker, name):
    """Fewer partitions lose the number, a smaller limit the value."""
    kafka_broker.create_topic(name, partitions=3)
    kafka_broker.create_topic(f"{name}.out")
    kafka_broker.create_topic(f"{name}.dlq", config={"max.message.bytes": "1000"})
    texts = [one.text for one in of_app(app_of(kafka_broker.bootstrap, name))
             if one.state == "warning"]  # fmt: skip
    assert len(texts) == 2
    assert "lose their partition number" in texts[0]
    assert f"{name}.dlq takes 1000 bytes" in texts[1]


def test_a_broker_that_does_not_answer_fails(name):
    """In one line, after the handlers."""
    (found,) = failures(app_of("127.0.0.1:1", name))
    assert "is it running" in found.text


@pytest.mark.long
def test_missing_rights_fail_with_the_right_to_grant(rights_broker, name):
    """READ on the source, WRITE on the output, READ on the group."""
    broker = rights_broker.broker
    for topic in (name, f"{name}.out", f"{name}.dlq"):
        broker.create_topic(topic)
    app = app_of(broker.bootstrap, name)
    assert failures(app) == []
    describe, read = AclOperation.DESCRIBE, AclOperation.READ
    allow(broker.bootstrap, ResourceType.TOPIC, name, [describe])
    allow(broker.bootstrap, ResourceType.TOPIC, f"{name}.out", [describe, read])
    allow(broker.bootstrap, ResourceType.TOPIC, f"{name}.dlq", [])
    found = wait_for(lambda: len(rows := failures(app)) == 3 and rows, 60)
    assert "lacks READ" in found[0].text
    assert "lacks WRITE" in found[1].text
    assert "hidden from this login" in found[2].text
    allow(broker.bootstrap, ResourceType.GROUP, name, [])
    found = wait_for(lambda: len(rows := failures(app)) == 4 and rows, 60)
    assert name in found[3].text


def allow(
    bootstrap: str, kind: ResourceType, name: str, operations: Sequence[AclOperation]
) -> None:
    """Everybody may do only this with it; Bob alone may do all."""
    set_rights(bootstrap, kind, name, AclOperation.ALL)
    if operations:
        set_rights(bootstrap, kind, name, *operations, who=ANYBODY)
