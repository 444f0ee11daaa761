"""Exports by a button: what a browser gets, how much of it, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.unit.cli.test_parked import GROUP, TOPIC, kafka

from perkey.errors import ConfigError
from perkey.kafka.connect import connect
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe import exports as exporting
from perkey.observe.exports import Exports

__all__ = ["kafka"]  # a fixture


def check(topic: str) -> None:
    """As an app that reads one topic."""
    if topic != TOPIC:
        raise ConfigError(f"topic {topic!r} has no handler")


@pytest.fixture
def noted() -> list[tuple[str, str, bool]]:
    """Of each command its reason, outcome, and whether it was a dry run."""
    return []


@pytest.fixture
def exports(kafka, noted):
    """Those of a member of the group."""

    def connected(group: str) -> Any:
        given = {"bootstrap.servers": kafka.bootstrap}
        sizes = {"buffer_records": 1000, "buffer_bytes": 2**20}
        return connect(given, {}, group=group, delivery="at_least_once", **sizes)

    def note(order: Any, answer: Any) -> None:
        noted.append((order.reason, answer.outcome, order.dry_run))

    return Exports(connected, GROUP, lambda: "m1", check, note)


def asked(exports: Exports, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one answer, and the lines."""
    given = {"action": "export", "topic": TOPIC, "reason": "for support", **more}
    told = exports.answered(given)
    (answer,) = told["answers"]
    return answer, [json.loads(one) for one in told["lines"].splitlines()]


def test_all_that_is_parked_or_held_is_exported(exports, noted):
    """With keys and values; the dry run names the records and gives none of them."""
    answer, lines = asked(exports, dry_run=True)
    assert lines == []
    assert (answer["member"], answer["outcome"]) == ("m1", "would")
    assert answer["detail"] == "export 2 records with their values: orders[0] 5, orders[0] 8"
    answer, lines = asked(exports)
    assert answer["outcome"] == "done"
    assert [(one["offset"], one["value"], one.get("held")) for one in lines] == [
        (5, "v5", False), (8, "v8", True),
    ]  # fmt: skip
    assert noted == [("for support", "would", True), ("for support", "done", False)]


def test_a_key_and_single_records_are_exported(exports):
    """Of a key what is parked or held; a record by its place, parked or not."""
    assert [one["offset"] for one in asked(exports, key="k1")[1]] == [5]
    answer, lines = asked(exports, key='no "such"')
    assert (answer["outcome"], lines) == ("unchanged", [])
    assert "none of these is parked or held" in answer["detail"]
    assert [one["offset"] for one in asked(exports, records=[[1, 2]])[1]] == [2]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"records": [[1, 99]]}, r"not in the topic \(any more\): orders\[1\] 99"),
        ({"records": [[7, 0]]}, "has no partition 7"),
        ({"topic": "payroll"}, "topic 'payroll' has no handler"),
    ],
)
def test_what_cannot_be_exported_is_refused(exports, given, reason):
    """One line; a topic that the app does not read is none of its page's."""
    answer, lines = asked(exports, **given)
    assert (answer["outcome"], lines) == ("refused", [])
    assert re.search(reason, answer["detail"])


@pytest.mark.parametrize(
    "given",
    [
        {"topic": None}, {"handler": "h"}, {"key": "k", "records": [[0, 1]]}, {"where": "offset > 1"},
        {"action": "pause"}, {"reason": " "}, {"lines": 3},
    ],
)  # fmt: skip
def test_no_export_at_all(exports, noted, given):
    """What is no such command is an error, not an answer, and is not kept."""
    with pytest.raises(ConfigError):
        asked(exports, **given)
    assert noted == []


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_an_export_has_so_many_records(exports, monkeypatch, limit):
    """For more there is the command, which the answer names."""
    monkeypatch.setattr(exporting, "RECORDS_MAX", limit)
    answer, lines = asked(exports)
    if limit < 2:
        assert answer["outcome"] == "refused"
        assert f"use `perkey parked export {TOPIC} --group {GROUP}`" in answer["detail"]
    assert len(lines) == (2 if limit >= 2 else 0)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_an_export_has_so_many_bytes(exports, monkeypatch, by):
    """It is in memory as a whole."""
    text = exports.answered({"action": "export", "topic": TOPIC, "reason": "r"})["lines"]
    monkeypatch.setattr(exporting, "BYTES_MAX", len(text) + by)
    answer, lines = asked(exports)
    assert (answer["outcome"], len(lines)) == (("refused", 0) if by < 0 else ("done", 2))


def test_one_export_at_a_time(exports, monkeypatch):
    """A second one is refused while the first is read; then one may start again."""
    inside = []
    answer_of = exports._exported

    def slow(*given: Any) -> Any:
        inside.append(asked(exports)[0])
        return answer_of(*given)

    monkeypatch.setattr(exports, "_exported", slow)
    assert asked(exports)[0]["outcome"] == "done"
    assert inside[0]["outcome"] == "refused"
    assert "another export runs" in inside[0]["detail"]
    monkeypatch.undo()
    assert asked(exports)[0]["outcome"] == "done"


def test_brokers_that_are_away_are_an_answer(exports, monkeypatch):
    """One line; the next export is asked for anew."""

    def away(*_: Any) -> Any:
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(exports, "_exported", away)
    assert asked(exports)[0] == {
        "member": "m1", "outcome": "refused", "detail": "no broker answers", "until": None,
        "rows": (),
    }  # fmt: skip
