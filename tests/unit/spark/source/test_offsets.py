"""Offsets in the write-ahead log, limits of a trigger, and ranges."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perkey.spark.source.errors import SourceError
from perkey.spark.source.offsets import StreamOffset, limit_rows, stream_offset
from perkey.spark.source.ranges import OffsetRange, cut, split_ranges

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
PARTITIONS = st.tuples(st.sampled_from("abc"), st.integers(0, 20))
MAPS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1))


def test_offsets_look_like_those_of_sparks_connector():
    """Topics at the top, partitions as text; what Perkey adds begins with a dollar sign."""
    offset = StreamOffset({A1: 3, A0: 2, B0: 9}, {A0: 1, A1: 0, B0: 0}, {"b": "y", "a": "x"})
    assert json.dumps(offset.to_json()) == (
        '{"a": {"0": 2, "1": 3}, "b": {"0": 9}, '
        '"$first": {"a": {"0": 1, "1": 0}, "b": {"0": 0}}, "$topicIds": {"a": "x", "b": "y"}}'
    )


@given(MAPS, st.none() | MAPS, st.dictionaries(st.sampled_from("abc"), st.text(max_size=5)))
def test_an_offset_is_read_back_as_it_was(positions, first, topic_ids):
    """Writing and reading through JSON changes nothing."""
    offset = StreamOffset(positions, first, topic_ids)
    assert stream_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_partitions_are_sorted_as_numbers():
    """Spark compares offsets as text, so equal offsets must be written equally."""
    many = {("a", n): n for n in (10, 9, 2, 1)}
    assert list(StreamOffset(many).to_json()["a"]) == ["1", "2", "9", "10"]


def test_a_checkpoint_of_sparks_connector_is_read():
    """A job that changes one word goes on from where it was."""
    assert stream_offset({"a": {"0": 5}}) == StreamOffset({A0: 5})


@pytest.mark.parametrize(
    "stored", [{"a": 5}, {"a": {"x": 5}}, {"a": {"0": "5"}}, {"a": {"0": -1}}, {"a": None}]
)
def test_a_foreign_offset_is_one_line(stored):
    """A checkpoint of another source cannot be gone on from."""
    with pytest.raises(SourceError, match="new checkpointLocation"):
        stream_offset(stored)


def test_ids_differ_only_where_both_are_known():
    """A topic without an id on one side counts as the same."""
    one, two = StreamOffset({}, None, {"a": "x"}), StreamOffset({}, None, {"a": "y"})
    assert not one.same_topic(two, "a")
    assert one.same_topic(StreamOffset({}), "a")


@pytest.mark.parametrize("most", [9, 10, 11])
def test_a_limit_is_kept_around_what_is_there(most):
    """Ten rows with a limit of nine, ten and eleven."""
    end = limit_rows({A0: 0, A1: 0}, {A0: 5, A1: 5}, most)
    assert sum(end.values()) == {9: 8, 10: 10, 11: 10}[most]


def test_a_limit_is_shared_by_what_waits():
    """The fuller partition gets more; one that has anything gets at least one."""
    assert limit_rows({A0: 0, A1: 0, B0: 7}, {A0: 900, A1: 100, B0: 7}, 100) == {
        A0: 90,
        A1: 10,
        B0: 7,
    }
    assert limit_rows({A0: 0, A1: 0}, {A0: 10**6, A1: 1}, 10) == {A0: 9, A1: 1}


@given(MAPS, st.integers(1, 10**6))
def test_a_limited_end_stays_between_start_and_end(end, most):
    """Never before the start, never past the end, and always forward."""
    start = {tp: offset // 2 for tp, offset in end.items()}
    limited = limit_rows(start, end, most)
    for tp in end:
        assert start[tp] <= limited[tp] <= end[tp]
        assert limited[tp] > start[tp] or end[tp] == start[tp]
    assert sum(limited[tp] - start[tp] for tp in end) <= most + len(end)


def test_a_shorter_log_is_not_moved():
    """An end before its start is left for the plan to report."""
    assert limit_rows({A0: 10, A1: 0}, {A0: 5, A1: 100}, 10) == {A0: 5, A1: 10}


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 700),
)
def test_split_ranges_cover_exactly_what_was_asked(spans, least, most):
    """Whatever is cut, each offset is read once, in order."""
    ranges = [OffsetRange("t", i, low, low + size) for i, (low, size) in enumerate(spans)]
    pieces = split_ranges(ranges, least, most)
    for whole in ranges:
        parts = [p for p in pieces if p.partition == whole.partition]
        covered = [offset for p in parts for offset in (p.start, p.end)]
        joined = [whole.start, *[e for p in parts[:-1] for e in (p.end, p.end)], whole.end]
        assert covered == (joined if whole.size else [])
        assert all(p.size > 0 and (most is None or p.size <= most) for p in parts)


def test_min_partitions_cuts_the_large_ones():
    """A small partition stays whole, as in Spark's connector."""
    ranges = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 10)]
    assert [r.size for r in split_ranges(ranges, 4)] == [300, 300, 300, 10]
    assert split_ranges(ranges, 2) == ranges


def test_a_range_is_never_cut_into_nothing():
    """Two offsets make two pieces at most."""
    assert [r.size for r in cut(OffsetRange("t", 0, 0, 2), 5)] == [1, 1]


def test_a_range_carries_no_configuration():
    """Spark pickles partitions and shows them in plans and logs."""
    span = OffsetRange("t", 0, 1, 2)
    assert set(vars(pickle.loads(pickle.dumps(span)))) == {"topic", "partition", "start", "end"}
    assert str(span) == "t-0[1, 2)"
