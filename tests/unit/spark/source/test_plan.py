"""The plan of a stream: where each batch begins and ends, whatever happened to the topics."""

from __future__ import annotations

import pytest

from perkey.errors import ConfigError
from perkey.spark.source.bounds import Bound
from perkey.spark.source.cluster import Layout
from perkey.spark.source.errors import DataLoss
from perkey.spark.source.offsets import StreamOffset
from perkey.spark.source.plan import (
    batch_ranges,
    batch_start,
    check_all_named,
    inside_log,
    reporter,
    resumed,
)
from perkey.spark.source.ranges import OffsetRange

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
IDS = {"a": "id-1"}


class Losses(list):
    """Collects what is reported."""

    def __call__(self, what: str) -> None:
        self.append(what)


def earliest_of(**starts: int):
    """Where logs start: `a0=5`; 0 for the others."""
    return lambda tps: {tp: starts.get(f"{tp[0]}{tp[1]}", 0) for tp in tps}


def layout(*partitions, ids=IDS) -> Layout:
    return Layout(frozenset(partitions), ids)


def test_the_log_decides_where_the_first_batch_begins():
    """Spark asks for the starting offset twice; the one in the write-ahead log counts."""
    end = StreamOffset({A0: 9}, {A0: 2}, IDS)
    asked_again = StreamOffset({A0: 7}, None, IDS)
    assert batch_start(A0, asked_again, end) == 2


def test_a_later_batch_begins_where_the_one_before_ended():
    """An offset that carries first offsets is an end and is believed."""
    start, end = StreamOffset({A0: 7}, {A0: 2}, IDS), StreamOffset({A0: 9}, {A0: 2}, IDS)
    assert batch_start(A0, start, end) == 7


def test_first_offsets_are_carried_on():
    """Every end offset has the very first start of each partition."""
    latest = StreamOffset({A0: 9, A1: 4}, None, IDS)
    begin, first = resumed(StreamOffset({A0: 2}, None, IDS), latest, earliest_of(), Losses())
    assert (begin, first) == ({A0: 2, A1: 0}, {A0: 2, A1: 0})
    begin, first = resumed(
        StreamOffset({A0: 7, A1: 1}, first, IDS), latest, earliest_of(), Losses()
    )
    assert (begin, first) == ({A0: 7, A1: 1}, {A0: 2, A1: 0})


def test_a_partition_added_later_begins_at_its_start_and_stays_there():
    """The beginning of a new partition is pinned in the log, too."""
    end = StreamOffset({A0: 9, A1: 4}, {A0: 2, A1: 0}, IDS)
    assert batch_start(A1, StreamOffset({A0: 7}, {A0: 2}, IDS), end) == 0


def test_a_new_partition_that_lost_its_start_is_reported():
    """Its first records were never read."""
    losses = Losses()
    latest = StreamOffset({A0: 2, A1: 9}, None, IDS)
    begin, _ = resumed(StreamOffset({A0: 2}, {A0: 0}, IDS), latest, earliest_of(a1=5), losses)
    assert begin[A1] == 5
    assert losses == ["the new partition a-1 starts at 5, its first records are gone"]


def test_a_partition_that_is_gone_is_reported_and_left_out():
    """So is everything of a topic that was deleted."""
    losses = Losses()
    start = StreamOffset({A0: 2, B0: 3}, {A0: 0, B0: 0}, IDS)
    begin, first = resumed(start, StreamOffset({A0: 2}, None, IDS), earliest_of(), losses)
    assert (begin, first) == ({A0: 2}, {A0: 0})
    assert losses == ["partition b-0 is gone"]


def test_a_shorter_log_is_reported():
    """A log that ends before what was read was cut."""
    losses = Losses()
    start = StreamOffset({A0: 8}, {A0: 0}, IDS)
    resumed(start, StreamOffset({A0: 3}, None, IDS), earliest_of(), losses)
    assert losses == ["a-0 was read to 8, but its log ends at 3 now"]


def test_a_topic_recreated_is_read_from_its_start():
    """The same name with another id is another topic, even if it is longer than the old one."""
    losses = Losses()
    start = StreamOffset({A0: 8}, {A0: 6}, IDS)
    again = StreamOffset({A0: 20}, None, {"a": "id-2"})
    begin, first = resumed(start, again, earliest_of(a0=1), losses)
    assert (begin, first) == ({A0: 1}, {A0: 1})
    assert losses == ["topic a was deleted and recreated; its unread records are lost"]
    assert batch_start(A0, start, StreamOffset({A0: 20}, first, again.topic_ids)) == 1


def test_ranges_of_a_batch():
    """One range for each partition that has something."""
    start = StreamOffset({A0: 2, A1: 4}, {A0: 0, A1: 0}, IDS)
    end = StreamOffset({A0: 9, A1: 4}, {A0: 0, A1: 0}, IDS)
    found = batch_ranges(start, end, layout(A0, A1), earliest_of(), Losses())
    assert found == [OffsetRange("a", 0, 2, 9)]


@pytest.mark.parametrize(
    ("low", "left", "lost"),
    [(2, [(2, 9)], 0), (3, [(3, 9)], 1), (8, [(8, 9)], 1), (9, [], 1), (50, [], 1)],
)
def test_what_retention_took_is_reported_and_skipped(low, left, lost):
    """The start of the log at, just after and far after the start of the range."""
    losses = Losses()
    start, end = StreamOffset({A0: 2}, {A0: 0}, IDS), StreamOffset({A0: 9}, {A0: 0}, IDS)
    found = batch_ranges(start, end, layout(A0), earliest_of(a0=low), losses)
    assert [(r.start, r.end) for r in found] == left
    assert len(losses) == lost


def test_a_batch_of_a_topic_that_is_gone():
    """A batch that is repeated after a crash may find its topic deleted or made again."""
    start, end = StreamOffset({A0: 2}, {A0: 0}, IDS), StreamOffset({A0: 9}, {A0: 0}, IDS)
    for here in (layout(), layout(A0, ids={"a": "id-2"})):
        losses = Losses()
        assert batch_ranges(start, end, here, earliest_of(), losses) == []
        assert losses == ["a-0 was deleted or recreated before offset 9 was read"]


def test_an_empty_part_of_a_batch_needs_no_topic():
    """Nothing was to be read of it, so nothing is lost."""
    both = StreamOffset({A0: 9}, {A0: 0}, IDS)
    losses = Losses()
    assert batch_ranges(both, both, layout(), earliest_of(), losses) == []
    assert losses == []


def test_losses_raise_or_warn(caplog):
    """`failOnDataLoss` decides."""
    with pytest.raises(DataLoss, match="gone: set failOnDataLoss=false"):
        reporter(fail_on_data_loss=True)("gone")
    reporter(fail_on_data_loss=False)("gone")
    assert "continuing with the remaining records" in caplog.text


@pytest.mark.parametrize(
    ("named", "says"),
    [({A0: 1}, "leaves out a-1"), ({A0: 1, A1: 1, B0: 1}, "names b-0")],
)
def test_offsets_must_name_exactly_what_is_read(named, says):
    """A partition too few or too many is named."""
    with pytest.raises(ConfigError, match=f"startingOffsets {says}"):
        check_all_named(Bound("offsets", "startingOffsets", named), frozenset({A0, A1}))


def test_offsets_outside_the_log_are_brought_inside():
    """Each is reported; those at the limits are not."""
    losses = Losses()
    low, high = {A0: 5, A1: 5, B0: 5}, {A0: 9, A1: 9, B0: 9}
    found = inside_log("startingOffsets", {A0: 4, A1: 10, B0: 9}, low, high, losses)
    assert found == {A0: 5, A1: 9, B0: 9}
    assert len(losses) == 2
    assert "startingOffsets: a-0 has 4, but its log holds 5 to 9" in losses
