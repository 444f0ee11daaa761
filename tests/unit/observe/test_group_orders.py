"""Commands to a group as records: what is read of a control topic, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perkey.errors import ConfigError
from perkey.observe.group_orders import (
    FRESH_S,
    TOPIC_CONFIG,
    answer_of,
    command_key,
    key_of,
    kind_of,
    lasts,
    left_s,
    packed,
    tombstoned,
    unpacked,
)
from perkey.observe.orders import FOR_MAX_S, Answer, Order


def order(action: str = "pause", **given: Any) -> Order:
    """A command of the group g."""
    return Order(action, "a test", "id1", **given)


PAUSE = order(topic="t", for_s=60.0)
LASTING = [
    PAUSE, order(), order("resume", topic="t"), order("set", settings={"concurrency": 2}),
    order("hold", topic="t", key="k"), order("release", topic="t", key="k"),
]  # fmt: skip
FOR_NOW = [
    order("retry", topic="t", key="k"), order("skip", topic="t", records=((0, 1),)),
    order("release", topic="t", records=((0, 1),)), order(dry_run=True),
    order("hold", topic="t", where='key == "k"'),
]  # fmt: skip


@pytest.mark.parametrize("given", LASTING + FOR_NOW, ids=lambda one: one.action)
def test_what_is_written_is_read(given):
    """Each command as it was."""
    assert unpacked("g", command_key("g", given), packed(given)) == given


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (PAUSE, order("resume", topic="t"), True),
        (PAUSE, order("resume"), False),
        (PAUSE, order(topic="u"), False),
        (order("hold", topic="t", key="k"), order("release", topic="t", key="k"), True),
        (order("hold", topic="t", key="k"), order("retry", topic="t", key="k"), True),
        (order("hold", topic="t", key="k"), order("hold", topic="t", key="l"), False),
        (order("set", settings={"concurrency": 2}), order(), False),
        (PAUSE, order(topic="t", dry_run=True), False),
    ],
)
def test_what_ends_a_command_has_its_key(one, other, same):
    """So compaction keeps the last word on each target, and a dry run replaces nothing."""
    assert (command_key("g", one) == command_key("g", other)) is same
    assert command_key("g", one) != command_key("h", one)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a command is a JSON object"),
        (packed(PAUSE).replace(b'"reason":"a test"', b'"reason":""'), "reason is required"),
        (packed(PAUSE).replace(b'"id1"', b'""'), "has an id"),
        (packed(PAUSE).replace(b"60.0", b"1e9"), "for_s"),
        (packed(order(topic="u")), "its key is of another command"),
        (packed(order("stop")), "stop is not given by a topic"),
        (packed(order("skip", topic="t", key="k")), "a skip by a topic names records"),
    ],
)
def test_what_is_no_command_is_refused_in_one_line(value, reason):
    """Whatever a client with write access wrote."""
    with pytest.raises(ConfigError, match=reason) as caught:
        unpacked("g", command_key("g", PAUSE), value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("age_s", "over"), [(59.9, False), (60.0, True), (60.1, True)])
def test_a_pause_is_over_when_its_time_is(age_s, over):
    """By its age alone."""
    assert (left_s(PAUSE, age_s) <= 0) is over


@pytest.mark.parametrize("given", FOR_NOW, ids=lambda one: one.action)
def test_what_is_for_now_is_soon_too_old(given):
    """Members that start later do not retry or skip."""
    assert not lasts(given)
    assert left_s(given, FRESH_S - 0.1) > 0 >= left_s(given, FRESH_S)


def test_what_ends_a_command_lasts_as_long_as_any():
    """Else the resume of everything would expire before the pause of one topic."""
    assert left_s(order("resume", for_s=1.0), FOR_MAX_S - 1) > 0
    assert int(TOPIC_CONFIG["retention.ms"]) > FOR_MAX_S * 1000


def test_a_tombstone_ends_what_it_replaces():
    """A pause is resumed, a hold released, a setting as declared; what ended stays ended."""
    found = [tombstoned(one) for one in (*LASTING, *FOR_NOW)]
    assert [None if one is None else one.action for one in found] == [
        "resume", "resume", None, "set", "release", None, None, None, None, None, None,
    ]  # fmt: skip
    assert found[0] is not None
    assert found[0].topic == "t"
    assert found[3] is not None
    assert found[3].settings == {"concurrency": None}


@pytest.mark.parametrize(
    "key", [b"", b"x", b"\xff", b"{}", b"7", b'["else","g"]', b"[[],1]", b'["command",7]', b"[" * 9_999]
)  # fmt: skip
def test_a_key_of_something_else_has_no_kind(key):
    """It is counted, never an error."""
    assert kind_of(key) is None


def test_a_key_says_what_it_is_of():
    """Kind, group and the rest."""
    assert kind_of(key_of("answer", "g", "id", "m")) == ("answer", "g", ("id", "m"))


ROW = {"topic": "t", "partition": 0, "offset": 5, "outcome": "held", "detail": ""}


def test_an_answer_is_read_as_it_was():
    """With its records."""
    answer = Answer("m", "done", "paused", 5.0, [ROW])
    assert answer_of(json.dumps(answer.row()).encode()) == answer


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "boom"}, {"outcome": []}, {"member": 7}, {"detail": None}, {"rows": None},
        {"rows": [{**ROW, "offset": "x"}]}, {"rows": [7]}, {"rows": [{}]},
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(change):
    """Anyone may write one."""
    given = {**Answer("m", "done", "paused", None, [ROW]).row(), **change}
    with pytest.raises(ConfigError, match="no answer"):
        answer_of(json.dumps(given).encode())


def test_an_answer_is_printed_in_one_line():
    """No escape sequences reach a terminal."""
    text = json.dumps(Answer("m\x1b[2J", "done", "a\nb", None, []).row()).encode()
    assert "\x1b" not in answer_of(text).member
    assert "\n" not in answer_of(text).detail
