"""A group's true lag, from a commit with its map and the ends of the log."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from perkey.codec import encode_fitting
from perkey.kafka import clib
from perkey.kafka.clib_offsets import Bounds
from perkey.kafka.group_lag import (
    OPEN_TOO_LONG_S,
    GroupLag,
    PartitionLag,
    behind_transaction,
    lag_of,
)
from perkey.kafka.ports import CommittedOffset

CONTRACT = [
    "topic", "partition", "end", "committed", "done_beyond", "remaining", "oldest_not_done",
    "oldest_age_s", "map_chars", "problem",
]  # fmt: skip


def committed(offset, metadata="", error=0):
    """What the broker holds for one partition."""
    return CommittedOffset("t", 3, offset, metadata, error)


def test_what_is_done_beyond_does_not_count():
    """358 behind by the committed offset, 11 really left."""
    holes = [100, *range(200, 210)]
    text, _ = encode_fitting(100, 457, holes, limit_chars=4096)
    row = lag_of(committed(100, text), Bounds(0, 458)).row()
    assert list(row) == CONTRACT
    assert row == {
        "topic": "t", "partition": 3, "end": 458, "committed": 100, "done_beyond": 347,
        "remaining": 11, "oldest_not_done": 100, "oldest_age_s": None, "map_chars": len(text),
        "problem": None,
    }  # fmt: skip


@pytest.mark.parametrize(("runs", "full"), [(286, False), (287, True)])
def test_a_full_map_is_reported_by_its_runs(runs, full):
    """However few characters it takes compressed: what has started may end in any order."""
    text, _ = encode_fitting(0, 2 * runs, list(range(0, 2 * runs, 2)), limit_chars=4096)
    row = lag_of(committed(0, text), Bounds(0, 10_000))
    assert row.full == full
    assert "full" not in row.row()


@pytest.mark.parametrize(
    ("offset", "metadata", "log", "remaining", "oldest", "problem"),
    [
        (10, "", Bounds(0, 10), 0, None, None),
        (10, "", Bounds(0, 25), 15, 10, None),
        (None, "", Bounds(5, 25), 20, 5, "no commit:"),
        (None, "", Bounds(5, 5), 0, None, None),
        (30, "", Bounds(5, 25), 20, 5, "beyond the end of the log"),
        (10, "", Bounds(20, 25), 5, 20, "retention deleted 10 to 19, 10 of them unhandled"),
        (10, "somebody's own", Bounds(0, 25), 15, 10, "not an offset map"),
    ],
)
def test_each_kind_of_commit(offset, metadata, log, remaining, oldest, problem):
    """None, past the log, before it, or with foreign metadata: a figure, and what is odd."""
    row = lag_of(committed(offset, metadata), log)
    assert (row.remaining, row.oldest_not_done) == (remaining, oldest)
    assert (problem is None and row.problem is None) or problem in row.problem


def test_retention_inside_of_a_map():
    """The log begins between the holes: those before it are gone, the others left."""
    text, _ = encode_fitting(10, 40, [10, 20, 30], limit_chars=4096)
    row = lag_of(committed(10, text), Bounds(25, 45))
    assert (row.oldest_not_done, row.remaining, row.done_beyond) == (30, 5, 10)
    assert row.problem == "retention deleted 10 to 24, 2 of them unhandled"


def test_what_cannot_be_read_is_a_problem_of_its_row():
    """A topic without rights, and one without a leader, leave the others alone."""
    row = lag_of(committed(None, error=29), None)
    assert (row.remaining, row.end) == (None, None)
    assert "authorization" in row.problem.lower()
    row = lag_of(committed(7), None)
    assert (row.committed, row.remaining) == (7, None)
    assert "leader" in row.problem


@pytest.mark.parametrize(
    ("stable_end", "age_s", "said"),
    [
        (10, OPEN_TOO_LONG_S + 0.1, True),
        (9, OPEN_TOO_LONG_S + 0.1, True),  # a log compacted from 9 to 10
        (11, OPEN_TOO_LONG_S + 0.1, False),  # offset 10 may be read: the group is merely behind
        (10, OPEN_TOO_LONG_S, False),  # as any transactional producer's, for a moment
        (10, None, False),
        (-1, OPEN_TOO_LONG_S + 0.1, False),  # not asked, or not answered
    ],
)
def test_an_open_transaction_is_reported_where_it_holds_the_oldest(stable_end, age_s, said):
    """Only where nothing left may be read, and has not been for longer than usual."""
    lag = PartitionLag("t", 0, end=20, oldest_not_done=10, oldest_age_s=age_s)
    found = behind_transaction(lag, Bounds(0, 20, stable_end))
    assert (found.problem is not None) is said
    assert not said or found.problem.startswith(
        f"records from offset {stable_end} wait behind an open"
    )


def test_a_coordinator_that_moves_is_asked_again(monkeypatch):
    """Its answer passes by itself; the measurement need not fail for it."""
    answers = [KafkaException(KafkaError(KafkaError.NOT_COORDINATOR)), [committed(10)]]

    def answer(*_):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(clib, "committed", answer)
    with GroupLag("127.0.0.1:1", "g", {}) as lag:
        assert lag.committed([("t", 3)]) == [committed(10)]
