"""What is read next: pure functions from offsets to offsets, and from offsets to ranges.

`report` is called for every loss of records; with `failOnDataLoss` it raises DataLoss, otherwise it
logs a warning, and the plan continues with the remaining records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from perkey.errors import ConfigError
from perkey.spark.source.bounds import EARLIEST, LATEST, Bound, PartitionMap
from perkey.spark.source.cluster import Cluster, Layout
from perkey.spark.source.errors import DataLoss
from perkey.spark.source.offsets import StreamOffset
from perkey.spark.source.ranges import OffsetRange
from perkey.types import TopicPartition

#: kinds of bounds with explicit offsets
WRITTEN_DOWN = frozenset({"offsets", "group"})

log = logging.getLogger("perkey.spark.source")

Report = Callable[[str], None]
Earliest = Callable[[Iterable[TopicPartition]], PartitionMap]


def reporter(*, fail_on_data_loss: bool) -> Report:
    """The function for lost records: raises DataLoss, or warns."""

    def report(what: str) -> None:
        if fail_on_data_loss:
            raise DataLoss(
                f"{what}: set failOnDataLoss=false to continue with the remaining records"
            )
        log.warning("%s; continuing with the remaining records (failOnDataLoss=false)", what)

    return report


def resolve(
    bound: Bound, layout: Layout, cluster: Cluster, *, starting: bool, on_no_timestamp: str
) -> dict[TopicPartition, int]:
    """The offset of every partition for a bound."""

    def found_at(times: PartitionMap) -> dict[TopicPartition, int]:
        return at_times(bound, times, cluster, starting=starting, on_no_timestamp=on_no_timestamp)

    partitions = layout.partitions
    if bound.kind == "earliest":
        return cluster.earliest(partitions)
    if bound.kind == "latest":
        return cluster.latest(partitions)
    if bound.kind == "group":
        return {**cluster.earliest(partitions), **cluster.committed(bound.group, partitions)}
    if bound.kind == "timestamp":
        return found_at(dict.fromkeys(partitions, bound.timestamp_ms))
    check_all_named(bound, partitions)
    if bound.kind == "timestamps":
        return found_at(bound.by_partition)
    # The user's offsets with -1 and -2 replaced by the ends and starts of the logs.
    offsets = bound.by_partition
    ends = cluster.latest(tp for tp, offset in offsets.items() if offset == LATEST)
    starts = cluster.earliest(tp for tp, offset in offsets.items() if offset == EARLIEST)
    return {**offsets, **ends, **starts}


def check_all_named(bound: Bound, partitions: frozenset[TopicPartition]) -> None:
    """ConfigError unless the user's JSON names exactly the partitions that are read."""
    named = frozenset(bound.by_partition)
    for wrong, what in ((partitions - named, "leaves out"), (named - partitions, "names")):
        if wrong:
            listed = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(wrong)[:10])
            end = "which are read too" if what == "leaves out" else "which are not read"
            raise ConfigError(
                f"{bound.option} {what} {listed}, {end}: name exactly the partitions that are"
                " read (offsets: -1 is latest, -2 earliest)"
            )


def at_times(
    bound: Bound, times: PartitionMap, cluster: Cluster, *, starting: bool, on_no_timestamp: str
) -> dict[TopicPartition, int]:
    """The first offsets at or after times.

    A start after the last record is an error unless the strategy is latest; an end after it
    is the end of the log.
    """
    found = cluster.at_times(times)
    beyond = sorted(tp for tp, offset in found.items() if offset < 0)
    if beyond and starting and on_no_timestamp == "error":
        topic, partition = beyond[0]
        raise ConfigError(
            f"{bound.option}: {topic}-{partition} has no record at or after"
            f" {times[topic, partition]}: choose an earlier time or set"
            " startingOffsetsByTimestampStrategy=latest"
        )
    return {**found, **cluster.latest(beyond)}


def inside_logs(
    ends: Sequence[tuple[Bound, PartitionMap]], cluster: Cluster, report: Report
) -> list[PartitionMap]:
    """The offsets for these bounds, moved into their logs.

    Only stored offsets can be outside; for others the log may just have moved on.
    """
    if not any(bound.kind in WRITTEN_DOWN for bound, _ in ends):
        return [offsets for _, offsets in ends]
    where = {tp for _, offsets in ends for tp in offsets}
    low, high = cluster.earliest(where), cluster.latest(where)
    return [
        inside_log(bound.option, offsets, low, high, report)
        if bound.kind in WRITTEN_DOWN
        else offsets
        for bound, offsets in ends
    ]


def inside_log(
    option: str, offsets: PartitionMap, low: PartitionMap, high: PartitionMap, report: Report
) -> dict[TopicPartition, int]:
    """`offsets` moved into their logs; each one outside is reported."""
    result: dict[TopicPartition, int] = {}
    for tp, offset in sorted(offsets.items()):
        start, end = low.get(tp, offset), high.get(tp, offset)
        if not start <= offset <= end:
            report(f"{option}: {named(tp)} has {offset}, but its log holds {start} to {end}")
        result[tp] = min(max(offset, start), end)
    return result


def resumed(
    start: StreamOffset, latest: StreamOffset, earliest: Earliest, report: Report
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where each partition of `latest` is read from next, and where each was first read from.

    Partitions that were added after `start`, and those of a recreated topic, start at the start of
    their log; that start is kept in the second map and so in the write-ahead log.
    """
    # Recreated topics: their id has changed.
    remade = {topic for topic, _ in start.positions if not start.same_topic(latest, topic)}
    for topic in sorted(remade):
        report(f"topic {topic} was deleted and recreated; its unread records are lost")
    known = {
        tp: offset
        for tp, offset in start.positions.items()
        if tp in latest.positions and tp[0] not in remade
    }
    for tp, offset in sorted(start.positions.items()):
        if tp in known and latest.positions[tp] < offset:
            end = latest.positions[tp]
            report(f"{named(tp)} was read to {offset}, but its log ends at {end} now")
        elif tp not in known and tp[0] not in remade:
            report(f"partition {named(tp)} is gone")
    begun = dict(earliest(tp for tp in latest.positions if tp not in known))
    for tp, offset in sorted(begun.items()):
        if offset > 0 and tp[0] not in remade:
            report(f"the new partition {named(tp)} starts at {offset}, its first records are gone")
    before = start.first if start.first is not None else start.positions
    first = {tp: before[tp] for tp in known if tp in before}
    return {**known, **begun}, {**first, **begun}


def batch_start(tp: TopicPartition, start: StreamOffset, end: StreamOffset) -> int | None:
    """The start of one partition's part of the batch (start, end); None if unknown.

    A `start` without first offsets is Spark's second request for the starting offset: the first
    offsets in `end`, which are in the write-ahead log, are valid.
    """
    first = end.first or {}
    if start.first is None:
        return first.get(tp, start.positions.get(tp))
    if tp in start.positions and start.same_topic(end, tp[0]):
        return start.positions[tp]
    return first.get(tp)


def batch_ranges(
    start: StreamOffset, end: StreamOffset, layout: Layout, earliest: Earliest, report: Report
) -> list[OffsetRange]:
    """The ranges of one batch, as far as their records still exist."""
    here = StreamOffset({}, topic_ids=layout.topic_ids)
    ranges: list[OffsetRange] = []
    lows = earliest(tp for tp in end.positions if tp in layout.partitions)
    for tp, stop in sorted(end.positions.items()):
        begin = batch_start(tp, start, end)
        if tp in lows and here.same_topic(end, tp[0]):
            begin = lows[tp] if begin is None else begin
            low = lows[tp]
            if begin < low and begin < stop:
                gone = f"{begin} to {min(low, stop) - 1}"
                report(f"{named(tp)}: offsets {gone} are gone from the log")
            if max(begin, low) < stop:
                ranges.append(OffsetRange(*tp, max(begin, low), stop))
        elif begin is None or begin < stop:
            report(f"{named(tp)} was deleted or recreated before offset {stop} was read")
    return ranges


def named(tp: TopicPartition) -> str:
    """A partition as text."""
    return f"{tp[0]}-{tp[1]}"
