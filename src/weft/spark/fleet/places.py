"""Positions of members in each partition, to count what a killed one did not report.

Members report counts a few times per second. What a member finished after the last one is in the
group's commit, with which its successor begins: the offsets between the two are what it did not
report, or, if it reported uncommitted records, what is handled and counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from weft.core.epochs import Found, OffsetLost, resolve
from weft.core.partition import Partition
from weft.types import OnLost, TopicPartition


def place_of(partition: Partition) -> int:
    """How many offsets of a partition are finished with, or were never records."""
    offsets = partition.offsets
    return max(offsets.position, offsets.restored_top + 1) - len(offsets.incomplete)


def places_at_start(found: Mapping[TopicPartition, Found], on_lost: OnLost) -> list[list[Any]]:
    """[topic, partition, place] from the group's commits."""
    starts = {where: resolve(one, on_lost) for where, one in found.items()}
    return [
        [*where, max(start.offset, _top(start.restored_top) + 1) - len(start.restored_not_done)]
        for where, start in starts.items()
        if not isinstance(start, OffsetLost)
    ]


def _top(restored: int | None) -> int:
    return -1 if restored is None else restored


def read(rows: Iterable[Any]) -> dict[TopicPartition, int]:
    """[topic, partition, place] as they come over the line."""
    return {(str(topic), int(number)): int(place) for topic, number, place in rows}
