"""The range of offsets of one partition that one task reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """Records `start` up to but not including `end`.

    It contains no configuration: Spark shows, logs and pickles partitions, so nothing secret may be
    in one.
    """

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it has; gaps count, so there may be fewer records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut large ranges for `maxRecordsPerPartition` and `minPartitions`; drop empty ones."""
    kept = [r for r in ranges if r.size > 0]
    if max_records is not None:
        kept = [piece for r in kept for piece in cut(r, -(-r.size // max_records))]
    if min_partitions is None or len(kept) >= min_partitions:
        return kept
    return split_large(kept, min_partitions)


def split_large(ranges: list[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """About `min_partitions` pieces of similar size, divided as in Spark's connector.

    Ranges too small to be cut are left out first, so that the large ones are cut into as many
    pieces as remain.
    """
    total = sum(r.size for r in ranges)
    small = [r.size for r in ranges if pieces(r.size, total, min_partitions) == 1]
    large_total = total - sum(small)
    large_pieces = max(min_partitions - len(small), 1)
    result: list[OffsetRange] = []
    for r in ranges:
        is_small = pieces(r.size, total, min_partitions) == 1
        result += cut(r, 1 if is_small else pieces(r.size, large_total, large_pieces))
    return result


def pieces(size: int, total: int, min_partitions: int) -> int:
    """The share of a range, rounded half up, at least one."""
    return max((2 * size * min_partitions + total) // (2 * total), 1)


def cut(r: OffsetRange, count: int) -> list[OffsetRange]:
    """`r` in `count` pieces whose sizes differ by one at most; never an empty piece."""
    count = min(count, r.size)
    edges = [r.start + r.size * i // count for i in range(count + 1)]
    return [OffsetRange(r.topic, r.partition, low, high) for low, high in itertools.pairwise(edges)]
