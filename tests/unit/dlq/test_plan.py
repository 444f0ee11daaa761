"""Which letters go, and which would run after newer records of their key."""

from __future__ import annotations

import random
from itertools import count

import pytest

from perkey.codec import decode
from perkey.dlq.letters import LETTER, POSITION, Letter, Place, letter_of
from perkey.dlq.plan import Guard, Plan, Progress, Rules, make_plan
from perkey.errors import ConfigError
from perkey.types import Record

DLQ = ("t.dlq", 0)
PLAIN = Rules()


def letter(at: int, offset: int, key: bytes | None = b"k", *more, replays: int = 0) -> Letter:
    """Letter `at` of a record at `offset`."""
    headers = (
        ("__dlq.errors.topic", b"t"),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", str(offset).encode()),
        ("__dlq.errors.replay.count", str(replays).encode()),
        *more,
    )
    return letter_of(Record(*DLQ, at, 0, key, b"v", headers))


def record(
    offset: int, key: bytes | None = b"k", *, of: int | None = None, first: int = 0
) -> Record:
    """A record of the source; `of`: replayed from this letter."""
    provenance = (LETTER, f"t.dlq:0:{of}".encode()), (POSITION, str(first).encode())
    return Record("t", 0, offset, 0, key, b"v", () if of is None else provenance)


def planned(letters, records, rules=PLAIN, done=(), meant=None) -> Plan:
    progress = Progress(DLQ, 0, 1000)
    for one in letters:
        progress.seen(one.at.offset)
    for offset in done:
        progress.done(offset)
    guard = Guard([one for one in letters if one.source and one.at.offset not in done])
    guard.look(records)
    places = {str(one.at) for one in letters} if meant is None else meant
    return make_plan(letters, places, {DLQ: progress}, guard, rules)


def offsets(plan: Plan) -> list[int]:
    return [one.source.offset for one in plan.going if one.source]


def test_letters_go_in_the_order_of_their_records():
    """Not in that of the dead-letter topic."""
    plan = planned([letter(0, 7), letter(1, 3, b"a"), letter(2, 5)], [])
    assert (offsets(plan), plan.stale) == ([3, 5, 7], 0)


def test_a_key_with_a_newer_record_is_stale():
    """Whatever came after it in the source, and ran; another key's records do not count."""
    letters = [letter(0, 3), letter(1, 5, b"other")]
    records = [record(3), record(4), record(5, b"other"), record(6, b"third")]
    assert planned(letters, records).stale == 1
    assert offsets(planned(letters, records, Rules("skip"))) == [5]
    assert offsets(planned(letters, records, Rules("replay"))) == [3, 5]


def test_records_that_wait_as_letters_are_not_newer():
    """They never ran; they go after it."""
    plan = planned([letter(0, 3), letter(1, 4)], [record(3), record(4)])
    assert (offsets(plan), plan.stale) == ([3, 4], 0)


def test_a_letter_that_went_back_is_newer():
    """It has run since, at another offset."""
    plan = planned([letter(0, 3), letter(1, 4)], [record(3), record(4), record(9, of=1, first=4)])
    assert (offsets(plan), plan.stale, plan.brought) == ([3], 1, 1)


def test_what_went_back_and_was_older_is_not_newer():
    """The replay of 3 is behind 4 in the log, not in the key's order."""
    plan = planned([letter(0, 3), letter(1, 4)], [record(3), record(4), record(9, of=0, first=3)])
    assert (offsets(plan), plan.stale) == ([4], 0)


def test_a_record_that_failed_again_keeps_its_first_place():
    """Its letter names offset 9, where its replay was; at first it was at 3: 4 is newer."""
    again = letter(1, 9, b"k", (POSITION, b"3"))
    records = [record(3), record(4), record(9, of=0, first=3)]
    plan = planned([letter(0, 3), again], records, done=[0])
    assert (offsets(plan), plan.stale) == ([9], 1)
    without_newer = [one for one in records if one.offset != 4]
    assert planned([letter(0, 3), again], without_newer, done=[0]).stale == 0


def test_a_null_key_orders_with_nothing():
    """It is never stale."""
    assert planned([letter(0, 3, None)], [record(3, None), record(4, None)]).stale == 0


def test_the_key_of_a_cut_letter_comes_from_the_source():
    """KIP-1191 without copies: the record itself says which key it has."""
    cut = letter_of(Record(*DLQ, 0, 0, None, None, letter(0, 3).headers))
    assert planned([cut], [record(3), record(4, b"other")]).stale == 0
    assert planned([cut], [record(3), record(4)]).stale == 1


def test_only_if_newest_takes_the_last_of_each_key():
    """Where only the last state counts; records without a key are each their own."""
    letters = [
        letter(0, 3),
        letter(1, 5),
        letter(2, 6, b"s"),
        letter(3, 7, None),
        letter(4, 8, None),
    ]
    plan = planned(letters, [record(9, b"s")], Rules("only-if-newest"))
    assert offsets(plan) == [5, 7, 8]
    assert plan.left_out == {
        "older than another letter of their key": 1,
        "older than newer records of their key": 1,
    }


def test_what_is_left_out_is_counted_by_its_reason():
    """Filtered, replayed too often, no headers, twice there, beyond the limit."""
    strange = letter_of(Record(*DLQ, 4, 0, b"k", b"v", ()))
    letters = [
        letter(0, 3),
        letter(1, 4, replays=2),
        letter(2, 5, replays=3),
        letter(3, 3),
        strange,
    ]
    letters += [letter(5, 6), letter(6, 7)]
    meant = {f"t.dlq:0:{at}" for at in range(6)}
    plan = planned(letters, [], Rules(replays_max=3, limit=2), meant=meant)
    assert offsets(plan) == [3, 4]
    assert plan.going[0].at == Place("t.dlq", 0, 3)  # the last of the two
    assert [one.at.offset for one in plan.twins["t", 0, 3]] == [0]
    assert plan.left_out == {
        "not selected by --where": 1,
        "replayed 3 times already (--max-replays)": 1,
        "without the headers of a dead letter": 1,
        "twice in the topic": 1,
        "beyond --limit": 1,
    }


def progress_of(offsets: list[int], end: int, done=()) -> Progress:
    made = Progress(DLQ, 0, end)
    for offset in offsets:
        made.seen(offset)
    for offset in done:
        made.done(offset)
    return made


def test_progress_survives_in_a_commit():
    """Frontier and map; offsets without a record, as markers have, are no holes."""
    commit, whole = progress_of([0, 1, 2, 5, 6, 9], 11, done=[0, 1, 5]).commit()
    assert (commit.topic, commit.partition, commit.offset, whole) == (*DLQ, 2, True)
    assert decode(2, commit.metadata).not_done == (2,)
    later = progress_of([0, 1, 2, 5, 6, 9, 11], 12)
    later.restore("g", commit.offset, commit.metadata)
    assert [offset for offset in (0, 1, 2, 5, 6, 9, 11) if later.has(offset)] == [0, 1, 5]


def test_progress_over_everything_is_the_end():
    """Then lag is 0, markers behind the last record included."""
    commit, _ = progress_of([0, 1], 7, done=[0, 1]).commit()
    assert (commit.offset, commit.metadata) == (7, "")


def test_progress_that_kafka_does_not_store_is_cut():
    """The frontier and a part of the map are kept; what is cut is reported as not whole."""
    bits = random.Random(7)
    done = [offset for offset in range(1, 60_000) if bits.random() < 0.5]
    commit, whole = progress_of(list(range(60_000)), 60_000, done=done).commit()
    assert not whole
    assert 0 < len(commit.metadata) <= 4096


def test_progress_of_another_topic_is_refused():
    """A commit past the end is that of a topic that was deleted and made again."""
    progress = progress_of([0], 5)
    progress.restore("g", 5, "")
    with pytest.raises(ConfigError, match="recreated"):
        progress.restore("g", 6, "")


def test_a_stranger_s_metadata_counts_as_none():
    """The frontier alone is believed."""
    progress = progress_of([0, 1, 2], 3)
    progress.restore("g", 1, '{"json": true}')
    assert [progress.has(offset) for offset in range(3)] == [True, False, False]


@pytest.mark.push
def test_a_plan_of_many_letters_is_quick():
    """40,000 letters of 5,000 keys, with as many newer records."""
    numbers = count()
    letters = [letter(next(numbers), at, b"%d" % (at % 5000)) for at in range(0, 80_000, 2)]
    records = [record(at, b"%d" % (at % 5000)) for at in range(80_000)]
    assert planned(letters, records).stale == 0  # even keys have letters, odd ones records
