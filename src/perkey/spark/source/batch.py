"""Batch reads: the ranges of a DataFrame are decided at its first action.

Spark keeps the plan of a Python source with the DataFrame, so a second action on it reads the same
records; another `load()` reads the ends of the logs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader, InputPartition

from perkey.errors import ConfigError
from perkey.spark.source.arrow import batch_builder
from perkey.spark.source.bounds import Bound, PartitionMap
from perkey.spark.source.cluster import Cluster, require_topics
from perkey.spark.source.fetch import FetchSettings, RangeFetch, open_fetch
from perkey.spark.source.options import SourceOptions
from perkey.spark.source.plan import inside_logs, named, reporter, resolve
from perkey.spark.source.ranges import OffsetRange, split_ranges
from perkey.spark.source.worker import one_line_errors, settle_in, without_collection

#: Spark creates one task if a source returns no partition, and passes it this one.
NOTHING = OffsetRange("", 0, 0, 0)


class BatchReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, options: SourceOptions, settings: FetchSettings) -> None:
        self._options = options
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """One partition per task."""
        with one_line_errors():
            options, cluster = self._options, Cluster(self._options)
            layout = cluster.layout()
            require_topics(options.subscription, layout)
            report = reporter(fail_on_data_loss=options.fail_on_data_loss)
            ends: list[tuple[Bound, PartitionMap]] = []
            for bound, starting in ((options.starting, True), (options.ending, False)):
                assert bound is not None, "for_batch() fills both"
                no_time = options.on_no_timestamp
                offsets = resolve(
                    bound, layout, cluster, starting=starting, on_no_timestamp=no_time
                )
                ends.append((bound, offsets))
            ranges = ordered_ranges(*inside_logs(ends, cluster, report))
            pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
            return list[InputPartition](pieces) or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one of them; runs in a task."""
        return read_range(partition, self._settings, self._options.columns)


def ordered_ranges(starts: PartitionMap, ends: PartitionMap) -> list[OffsetRange]:
    """A range for each partition that has a start and an end."""
    ranges = [OffsetRange(*tp, starts[tp], ends[tp]) for tp in sorted(starts) if tp in ends]
    for r in ranges:
        if r.start > r.end:
            raise ConfigError(
                f"{named((r.topic, r.partition))}: the start {r.start} is after the end {r.end}:"
                " correct the starting and ending options"
            )
    return ranges


def read_range(
    partition: InputPartition, settings: FetchSettings, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows of one range. Runs in a task."""
    assert isinstance(partition, OffsetRange), "the readers plan nothing else"
    if partition.size == 0:
        return
    settle_in()
    build = batch_builder(columns, partition)
    with one_line_errors(), open_fetch(partition, settings) as range_fetch:
        while (batch := next_rows(range_fetch, build)) is not None:
            yield batch


def next_rows(
    range_fetch: RangeFetch, build: Callable[[list[Message]], pa.RecordBatch]
) -> pa.RecordBatch | None:
    """The next batch of rows, None at the end.

    Ten thousand short-lived messages make Python's garbage collector run repeatedly: half the time
    of a read. They have no cycles, so it is disabled meanwhile.
    """
    with without_collection():
        messages = range_fetch.next_batch()
        return build(messages) if messages else None
