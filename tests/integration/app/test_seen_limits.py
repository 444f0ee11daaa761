"""What is seen at the edges: no rights, nothing committed, hostile records, very many partitions."""

from __future__ import annotations

import json
import threading

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
)
from tests.integration.app.conftest import Kafka
from tests.support.rights import set_rights
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.cli import main
from perkey.cli.top_lines import PARTITIONS_MAX, Wanted, lines
from perkey.observe.overview import overview

LINE_MAX = 500
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\x00\u202e<script>"


@pytest.fixture(autouse=True)
def own_sockets(tmp_path, monkeypatch):
    """Runs of this test alone, and they serve."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PERKEY_SOCKET", "1")


@pytest.fixture
def said(capsys):
    """Runs a command; its exit code, and what it printed on both."""

    def run(*arguments):
        capsys.readouterr()
        code = main.run(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def one_line(told):
    """The exit code and the line of a refusal."""
    code, out, err = told
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("perkey: ")
    assert len(err) < LINE_MAX
    return code, err


# -- rights ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(rights_broker):
    """A broker where topic `secret` and group `theirs` are somebody else's."""
    broker = rights_broker.broker
    kafka = Kafka(broker.bootstrap)
    for topic in ("open", "secret"):
        kafka.topic(name=topic)
        kafka.fill(topic, [b"x"] * 3)
    for topic in ("open", "secret"):
        app = kafka.app(group="ours")
        app.consume(topic)(lambda record: None)
        assert kafka.drain(app).exit_code == 0
    for kind, name in ((ResourceType.TOPIC, "secret"), (ResourceType.GROUP, "theirs")):
        set_rights(broker.bootstrap, kind, name, AclOperation.ALL)
    return kafka


def test_a_group_that_we_may_not_see(guarded, said):
    """Of `perkey lag` one line, with what is refused."""
    servers = ["--bootstrap-servers", guarded.bootstrap]
    code, line = one_line(said("lag", "--group", "theirs", *servers))
    assert code in (1, 2)
    assert "theirs" in line
    assert "authorization" in line.lower()


def test_a_topic_that_we_may_not_see(guarded, said):
    """The group's other topics are told; this one is not there for us."""
    servers = ["--bootstrap-servers", guarded.bootstrap]

    def told():
        code, out, _ = said("lag", "--group", "ours", *servers, "--json")
        return json.loads(out) if code == 0 else None

    rows = wait_for(told)["partitions"]
    assert [(row["topic"], row["remaining"]) for row in rows if row["problem"] is None] == [
        ("open", 0)
    ]
    assert all("may not be read" in row["problem"] for row in rows if row["topic"] == "secret")


def test_reports_that_we_may_not_read(guarded, said):
    """One line that names the topic."""
    where = ["--group", "ours", "--bootstrap-servers", guarded.bootstrap, "--reports", "secret"]
    code, line = one_line(said("status", *where))
    assert code in (1, 2)
    assert "topic secret cannot be read" in line


# -- what is not there -----------------------------------------------------------------------------


@pytest.mark.broker
def test_a_group_that_has_committed_nothing(kafka, said):
    """It exists: it has a member; `perkey lag` says what is missing."""
    group = kafka.name("g")
    member = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        member.subscribe([kafka.topic()])
        wait_for(lambda: [member.poll(0.1)] and member.assignment())
        code, line = one_line(said("lag", "--group", group, "--bootstrap-servers", kafka.bootstrap))
    finally:
        member.close()
    told = f"perkey: group {group} has committed nothing yet at {kafka.bootstrap}\n"
    assert (code, line) == (2, told)


# -- hostile records -------------------------------------------------------------------------------


@pytest.mark.broker
def test_hostile_keys_and_errors_are_short_and_harmless(kafka, said):
    """Control characters and a megabyte of text: nothing of it reaches the terminal as it is."""
    topic, app = kafka.topic(), kafka.app()
    kafka.fill(topic, [{"key": HOSTILE + "k" * 1000, "value": b"bad"}] * 2)

    @app.consume(topic, retry=perkey.Retry(attempts=1))
    def check(record):
        raise ValueError(HOSTILE + "e" * 1_000_000)

    kafka.start(app)
    wait_for(lambda: [p for p in app.snapshot()["partitions"] if p["parked"]])
    for command in (["why"], ["why", f"{topic}:0:0"], ["status"], ["why", "--json"]):
        code, out, err = said(*command)
        assert (code, err) == (0, "")
        assert not [c for c in out if ord(c) < 32 and c != "\n"], command
        assert "\u202e" not in out
        assert len(out) < 20_000, command
    assert "ValueError" in said("why")[1]
    assert len(json.dumps(app.snapshot())) < 100_000


# -- very many partitions --------------------------------------------------------------------------


LONG = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.long
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=LONG)])
def test_very_many_partitions(count, said):
    """They are counted and paged through: by status, lag, why, top, and the page's events."""
    with LocalBroker() as broker:
        kafka = Kafka(broker.bootstrap)
        topic, group = "many", "many"
        broker.create_topic(topic, count // 2)
        kafka.grow(topic, count)  # a controller takes less than 10,000 new ones at once
        gate = threading.Event()
        numbers = range(0, count, max(1, count // 100))
        kafka.fill(topic, [{"key": "k", "value": b"x", "partition": n} for n in numbers] * 2)
        app = kafka.app(group=group)

        @app.consume(topic, concurrency=10)
        def check(record):
            gate.wait(300)

        kafka.start(app)
        try:
            wait_for(lambda: len(app.snapshot()["partitions"]) == count, 120)
            left = 2 * len(numbers)
            wait_for(lambda: total(app) == left, 120)
            code, out, _ = said("status")
            assert code == 0
            assert f"{left} remaining in {count:,} partitions" in " ".join(out.split())
            assert f"well: {count:,}" in " ".join(out.split())
            assert out.count("\n") < 100
            assert len(json.loads(said("status", "--json")[1])[0]["partitions"]) == count
            assert said("why", f"{topic}:{numbers[-1]}")[0] == 0
            servers = ["--bootstrap-servers", broker.bootstrap]
            wait_for(lambda: said("lag", "--group", group, *servers)[0] == 0, 120)
            code, out, _ = said("lag", "--group", group, *servers, "--json")
            told = json.loads(out)
            assert (code, told["remaining"], len(told["partitions"])) == (0, left, count)
            view = overview([app.snapshot()])
            shown, of = lines(view, Wanted(start=PARTITIONS_MAX))
            assert of == count
            assert len(shown) <= PARTITIONS_MAX + 1
        finally:
            gate.set()
            kafka.end_all()


def total(app):
    """What is left of all partitions."""
    return sum(part["remaining"] for part in app.snapshot()["partitions"])
