"""Dead letters: their headers, and what is sent in place of one that was refused."""

from __future__ import annotations

from weft.core.work import Work
from weft.runtime.member.dead_letters import Letters
from weft.types import ErrorInfo, Record

ERROR = ErrorInfo("ValueError", "no")
NO_PARTITION = ErrorInfo("_UNKNOWN_PARTITION", "no such partition")
TOO_LARGE = ErrorInfo("MSG_SIZE_TOO_LARGE", "too large")


def letter_of(record: Record, letters: Letters | None = None):
    """Its dead letter, after one attempt."""
    work = Work(record, None, 1)
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
        assert len(names) == len(set(names)) == 8
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


def test_a_count_that_is_no_number_begins_anew():
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
