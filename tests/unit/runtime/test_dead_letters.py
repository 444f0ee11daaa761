"""Dead letters: their headers, and what is sent in place of one that was refused."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.core.work import Work
from perkey.dlq.letters import letter_of as understood
from perkey.policies import DeadLetter
from perkey.runtime.member.outputs import Letters
from perkey.types import ErrorInfo, Produce, Record

ERROR = ErrorInfo("ValueError", "no")
NO_PARTITION = ErrorInfo("_UNKNOWN_PARTITION", "no such partition")
TOO_LARGE = ErrorInfo("MSG_SIZE_TOO_LARGE", "too large")


def letter_of(record: Record, letters: Letters | None = None):
    """Its dead letter, after one attempt."""
    handler = SimpleNamespace(spec=SimpleNamespace(name="h", on_exhausted=DeadLetter("t.dlq")))
    work = Work.one(record, 1, SimpleNamespace(handler=handler))
    return (letters or Letters("g")).of(work, "t.dlq", ERROR)


def replayed(letter, offset: int) -> Record:
    """What a member reads where the letter was written back to its topic."""
    return Record("t", 2, offset, 0, letter.key, letter.value, letter.headers)


def test_a_replayed_letter_has_one_set_of_headers():
    """Those of the earlier letter are replaced, the record's own stay, replays are counted."""
    letter = letter_of(Record("t", 0, 7, 0, b"k", b"v", (("h", b"1"),)))
    assert "__dlq.errors.replay.count" not in dict(letter.headers)
    for count in (1, 2):
        letter = letter_of(replayed(letter, 10 + count))
        names = [name for name, _ in letter.headers]
        assert len(names) == len(set(names)) == 9
        told = dict(letter.headers)
        assert (told["h"], told["__dlq.errors.offset"]) == (b"1", b"%d" % (10 + count))
        assert told["__dlq.errors.replay.count"] == b"%d" % count


def test_what_an_earlier_letter_gave_up_stays_marked():
    """A value that was too large for its topic is missing in every later letter, too."""
    letters = Letters("g")
    record = Record("t", 0, 7, 0, b"k", b"v" * 10)
    cut = letters.instead(record, letter_of(record), TOO_LARGE)
    again = letter_of(replayed(cut, 8))
    assert dict(again.headers)["__dlq.errors.value.omitted"] == b"too large"


def test_a_count_that_is_no_number_begins_again():
    """Headers are anybody's data."""
    for bad in (None, b"", b"x", b"9" * 5_000):
        headers = (("__dlq.errors.topic", b"t"), ("__dlq.errors.replay.count", bad))
        letter = letter_of(Record("t", 0, 7, 0, b"k", b"v", headers))
        assert dict(letter.headers)["__dlq.errors.replay.count"] == b"1"


def test_a_partition_that_is_missing_is_asked_for_once():
    """After one refusal its key decides; partitions below it are still kept."""
    letters = Letters("g")
    records = [Record("t", number, 0, 0, b"k", b"v") for number in (1, 4, 5)]
    first, fourth, fifth = (letter_of(record, letters) for record in records)
    assert [one.partition for one in (first, fourth, fifth)] == [1, 4, 5]
    other = letters.instead(records[1], fourth, NO_PARTITION)
    assert other == fourth._replace(partition=None)
    assert letters.instead(records[1], other, NO_PARTITION) is None
    assert [letter_of(record, letters).partition for record in records] == [1, None, None]


def shown(policy: DeadLetter, record: Record) -> Any:
    """The letter of a record under this policy."""
    handler = SimpleNamespace(spec=SimpleNamespace(name="h", on_exhausted=policy))
    partition: Any = SimpleNamespace(handler=handler)
    return Letters("g").of(Work.one(record, 1, partition), "t.dlq", ERROR)


SECRET = Record("t", 0, 7, 0, b"k", b"secret", (("h", b"secret"),))


def test_a_letter_without_a_copy_has_no_value():
    """It is marked, so that a replay takes the source's; headers and key stay."""
    letter = shown(DeadLetter("t.dlq", copy_value=False), SECRET)
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", None, ("h", b"secret"))
    assert dict(letter.headers)["__dlq.errors.value.omitted"] == b"copy_value=False"
    tombstone = shown(DeadLetter("t.dlq", copy_value=False), SECRET._replace(value=None))
    assert "__dlq.errors.value.omitted" not in dict(tombstone.headers)


def test_a_transform_decides_what_a_letter_shows():
    """Value and headers as it returns them; a letter that is not all of its record is marked."""
    redact = DeadLetter("t.dlq", transform=lambda r: r._replace(value=b"***", headers=()))
    letter = shown(redact, SECRET)
    told = dict(letter.headers)
    assert (letter.value, told["__dlq.errors.value.omitted"]) == (b"***", b"transformed")
    assert b"secret" not in (letter.value, *told.values())
    assert told["__dlq.errors.offset"] == b"7"
    assert understood(replayed(letter, 8)).is_cut
    same = shown(DeadLetter("t.dlq", transform=lambda r: r), SECRET)
    assert (same.value, "__dlq.errors.value.omitted" in dict(same.headers)) == (b"secret", False)


@pytest.mark.parametrize(
    "transform",
    [
        lambda _: 1 / 0,
        lambda _: None,
        lambda r: r._replace(value={"a": 1}),
        lambda _: sys.exit(3),
        lambda _: Produce(b"***"),
        lambda r: r._replace(key="k"),
        lambda r: r._replace(headers={"a": b"x"}),
        lambda r: r._replace(headers=[("a", 1)]),
        lambda r: r._replace(headers=[("a\0b", b"x")]),
        lambda r: r._replace(headers=[("\ud800", b"x")]),
    ],
    ids=[
        "raises",
        "no record",
        "no bytes",
        "exits",
        "an output",
        "a key of text",
        "headers by name",
        "a number",
        "a name with NUL",
        "a name that UTF-8 cannot encode",
    ],
)
def test_a_transform_that_fails_shows_nothing(transform, caplog):
    """The letter goes all the same, without value and headers, and the log says why."""
    letter = shown(DeadLetter("t.dlq", transform=transform), SECRET)
    told = dict(letter.headers)
    assert letter.value is None
    assert b"secret" not in told.values()
    assert told["__dlq.errors.value.omitted"] == b"transform failed"
    assert "transform=...) failed" in caplog.text


def test_where_a_replayed_record_was_first_survives_a_transform():
    """Its place in the order of its key is Perkey's own header."""
    place = ("__dlq.errors.replay.offset", b"3")
    redact = DeadLetter("t.dlq", transform=lambda r: r._replace(value=b"", headers=()))
    letter = shown(redact, SECRET._replace(headers=(place, ("__dlq.errors.replay.letter", b"d"))))
    told = dict(letter.headers)
    assert (told["__dlq.errors.replay.offset"], told["__dlq.errors.replay.count"]) == (b"3", b"1")
    assert "__dlq.errors.replay.letter" not in told
