"""The offset of a stream: what Spark writes to its write-ahead log for every batch.

    {"gps": {"0": 42, "1": 7}, "$first": {"gps": {"0": 10, "1": 0}}, "$topicIds": {"gps": "JJFR…"}}

The topics are at the top as in the offsets of Spark's own connector, so a reader of the
progress computes the lag the same way. `$` cannot be in a topic's name.

- `$first` is where each partition was first read from. Spark gives a Python source no place to keep
  its starting offset, and requests it twice (and again after a crash in the first batch); a later
  answer that differs would lose records. So every end offset contains the start, and the plan of
  the first batch uses the log and not the second answer. An offset without `$first` is a starting
  offset.
- `$topicIds` distinguishes a recreated topic from the one that the query was reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perkey.numeric import is_whole
from perkey.spark.source.bounds import LONG_MAX, PartitionMap
from perkey.spark.source.errors import SourceError
from perkey.types import TopicPartition

FIRST, TOPIC_IDS, LAG = "$first", "$topicIds", "$lag"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read of each partition, where each was first read from, topic ids."""

    positions: PartitionMap
    #: None in a starting offset; else one entry for each partition of `positions`.
    first: PartitionMap | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The value that Spark stores. Sorted: Spark compares offsets as strings."""
        result: dict[str, Any] = nested(self.positions)
        if self.first is not None:
            result[FIRST] = nested(self.first)
        if self.topic_ids:
            result[TOPIC_IDS] = dict(sorted(self.topic_ids.items()))
        return result

    def same_topic(self, other: StreamOffset, topic: str) -> bool:
        """False only if both know the topic's id and the ids differ."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs


def stream_offset(stored: Mapping[str, Any]) -> StreamOffset:
    """Parse a stored offset; also one of Spark's own connector."""
    try:
        first = flat(stored[FIRST]) if FIRST in stored else None
        topic_ids = {str(name): str(value) for name, value in stored.get(TOPIC_IDS, {}).items()}
        topics = {name: value for name, value in stored.items() if not name.startswith("$")}
        return StreamOffset(flat(topics), first, topic_ids)
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(
            f"the checkpoint holds an offset that is not one of this source ({error}):"
            " start with a new checkpointLocation"
        ) from None


def with_lag(latest: PartitionMap, end: PartitionMap) -> dict[str, Any]:
    """The ends of the logs, and for each topic how many offsets the batch leaves behind them.

    For display: Spark shows it as `latestOffset` in a query's progress, and uses it nowhere.
    """
    lag: dict[str, int] = {}
    for (topic, number), offset in sorted(latest.items()):
        left = max(0, offset - end.get((topic, number), offset))
        lag[topic] = lag.get(topic, 0) + left
    return {**nested(latest), LAG: lag}


def nested(offsets: PartitionMap) -> dict[str, Any]:
    """`{(topic, partition): n}` as `{"topic": {"partition": n}}`, in order."""
    result: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The inverse of `nested`; ValueError for an invalid offset."""
    result: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        for partition, offset in partitions.items():
            if not is_whole(offset, 0, LONG_MAX):
                raise ValueError(f"{topic}-{partition} has {offset!r}")
            result[topic, int(partition)] = offset
    return result


def limit_rows(start: PartitionMap, end: PartitionMap, max_rows: int) -> dict[TopicPartition, int]:
    """Reduce `end` so that about `max_rows` offsets are between `start` and it.

    The rows are divided in proportion to each partition's size, at least one for each that has any,
    as in Spark's connector. A partition without an entry in `start` keeps its `end`.
    """
    waiting = {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}
    total = sum(waiting.values())
    if total <= max_rows:
        return dict(end)
    # Whole-number arithmetic: a float would round offsets beyond 2**53.
    return {
        tp: min(end[tp], start[tp] + max(1, max_rows * waiting[tp] // total))
        if tp in waiting
        else end[tp]
        for tp in end
    }
