"""What is said at a start: where a new group begins, what is missing, what was refused."""

from __future__ import annotations

import logging

import pytest

import perkey
from perkey.kafka.ports import KafkaUnavailable
from perkey.runtime.member.outputs import REPORTED_MAX, Refusals
from perkey.runtime.run import preflight
from perkey.testing import MemoryKafka
from perkey.testing.memory_connection import MemoryAdmin, MemoryConnection
from perkey.types import ErrorInfo


@pytest.fixture
def kafka():
    with MemoryKafka() as broker:
        broker.create_topic("orders", 2)
        broker.produce("orders", "1")
        yield broker


def app_on(kafka, **properties):
    return perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap, **properties})


def told(caplog, word):
    return [one for one in caplog.records if word in one.getMessage()]


def test_a_new_group_reports_where_it_starts(kafka, caplog):
    """Once, at the first start; a group that has committed says nothing."""
    caplog.set_level(logging.INFO, "perkey")
    app = app_on(kafka)
    app.consume("orders")(lambda record: None)
    app.run(until="drained")
    (line,) = told(caplog, "no commits yet")
    assert line.levelname == "INFO"
    assert line.getMessage() == (
        "no commits yet group=g topics=orders partitions=2 starts_at='earliest (auto.offset.reset)'"
    )
    caplog.clear()
    app.run(until="drained")
    assert told(caplog, "no commits yet") == []


@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "at_most_once"},
        {"delivery": "exactly_once"},
        {"ledger": perkey.SqlLedger("sqlite://")},
    ],
    ids=["at_most_once", "exactly_once", "ledger"],
)
def test_where_money_is_at_stake_a_default_is_a_warning(kafka, caplog, options):
    """The delivery that was chosen says that it matters; a start that was chosen, too, is fine."""
    for properties, level in (({}, "WARNING"), ({"auto.offset.reset": "earliest"}, "INFO")):
        caplog.clear()
        caplog.set_level(logging.INFO, "perkey")
        app = perkey.App(
            group=f"g-{level}", kafka={"bootstrap.servers": kafka.bootstrap, **properties}
        )
        handler = (lambda record, tx: None) if "ledger" in options else (lambda record: None)
        app.consume("orders", **options)(handler)
        app.run(until="drained")
        (line,) = told(caplog, "no commits yet")
        assert line.levelname == level
        assert ("set auto.offset.reset to choose the start" in line.getMessage()) == (
            level == "WARNING"
        )


def test_all_that_is_missing_is_one_line_with_the_command(kafka):
    """Topics to read, outputs and dead letters: one error, and the command that makes them."""
    app = app_on(kafka)
    on_exhausted = perkey.DeadLetter("{topic}.dlq")
    app.consume(["orders", "more"], output="out", on_exhausted=on_exhausted)(print)
    with pytest.raises(perkey.ConfigError) as caught:
        app.run(until="drained")
    message = str(caught.value)
    assert "\n" not in message
    for word in ("'more'", "'out' (output= of print)", "'orders.dlq' (DeadLetter of print)"):
        assert word in message
    assert "perkey topics create more more.dlq orders.dlq out" in message
    assert "@app.consume" in message
    assert 'on_missing="create"' in message


def test_dead_letter_topics_are_made_where_that_was_asked_for(kafka):
    """`on_missing="create"` makes the dead-letter topic, and no other."""
    app = app_on(kafka)
    app.consume("orders", on_exhausted=perkey.DeadLetter("dead", on_missing="create"))(print)
    app.run(until="drained")
    assert kafka.records("dead") == []
    wide = app_on(kafka)
    wide.consume("orders", on_exhausted=perkey.DeadLetter("wide", "create", partitions=7))(print)
    wide.run(until="drained")
    assert kafka.broker.partition_counts["wide"] == 7
    other = app_on(kafka)
    other.consume("none", on_exhausted=perkey.DeadLetter("none2", on_missing="create"))(print)
    with pytest.raises(perkey.ConfigError, match="'none' does not exist"):
        other.run(until="drained")


def test_a_topic_that_only_the_handler_names_is_reported_once(kafka, caplog):
    """`Produce(topic=...)` cannot be looked at before: the first refusal says what to do."""
    for _ in range(5):
        kafka.produce("orders", "1")
    app = app_on(kafka)

    @app.consume("orders", retry=perkey.Retry(attempts=2, delay_s=0), on_exhausted=perkey.Skip())
    def handle(record):
        return perkey.Produce(b"x", topic="nobody.made.it")

    report = app.run(until="drained")
    assert report.skipped == 6
    (line,) = told(caplog, "output refused")
    assert line.levelname == "ERROR"
    assert "nobody.made.it" in line.getMessage()
    assert "perkey topics create" in line.getMessage()


def test_refusals_are_reported_so_many_times_and_no_more(caplog):
    """A topic taken from each record cannot fill the log."""
    refusals = Refusals()
    for number in range(REPORTED_MAX + 10):
        refusals.report(ErrorInfo("UNKNOWN_TOPIC_OR_PART", f"output to t{number}: unknown"))
        refusals.report(ErrorInfo("_UNKNOWN_TOPIC", f"output to t{number}: so it is"))
    refusals.report(ErrorInfo("_MSG_TIMED_OUT", "output to t: late"))
    refusals.report(None)
    assert len(told(caplog, "output refused")) == REPORTED_MAX


def test_a_dead_letter_topic_is_made_like_its_source(kafka, monkeypatch):
    """The most partitions of its sources, 30 days of retention, and never compacted."""
    made = []
    kafka.create_topic("more", 5)
    create = MemoryAdmin.create_topic

    def seen(self, name, partitions, **more):
        made.append((name, partitions, more["config"]))
        return create(self, name, partitions, **more)

    monkeypatch.setattr(MemoryAdmin, "create_topic", seen)
    app = app_on(kafka)
    for source, topic in (("orders", "dead"), ("more", "dead"), ("^ord.*x", "{topic}.dlq")):
        letters = perkey.DeadLetter(topic, on_missing="create")
        app.consume(source, on_exhausted=letters)(lambda record: None)
    app.run(until="drained")
    config = {"cleanup.policy": "delete", "retention.ms": "2592000000"}
    assert made == [("dead", 5, config)]


def test_a_start_without_a_token_tries_again(kafka, caplog, monkeypatch):
    """A token callback that fails at first is waited for, as long as a start may take."""
    monkeypatch.setattr(preflight, "PAUSE_S", 0.0)
    make, tries = MemoryConnection.admin, []

    def admin(self):
        tries.append(1)
        if len(tries) < 3:
            raise KafkaUnavailable("oauth_cb returned no token")
        return make(self)

    monkeypatch.setattr(MemoryConnection, "admin", admin)
    app = app_on(kafka)
    app.consume("orders")(lambda record: None)
    assert app.run(until="drained").done == 1
    assert len(told(caplog, "oauth_cb returned no token")) == 2
