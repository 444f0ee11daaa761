"""Streaming reads: micro-batches between offsets that Spark keeps in its write-ahead log.

Spark runs the driver's half of this in one process for the duration of a query run, calling
`initialOffset`, `latestOffset`, `partitions`; `read` runs in the tasks, on a copy that was pickled
once, and knows only its partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from perkey.errors import ConfigError
from perkey.spark.source.batch import read_range
from perkey.spark.source.bounds import PartitionMap
from perkey.spark.source.cluster import Cluster, missing_topics, require_topics
from perkey.spark.source.fetch import FetchSettings
from perkey.spark.source.offsets import StreamOffset, limit_rows, stream_offset, with_lag
from perkey.spark.source.options import SourceOptions
from perkey.spark.source.plan import batch_ranges, inside_logs, reporter, resolve, resumed
from perkey.spark.source.ranges import split_ranges
from perkey.spark.source.worker import one_line_errors

# -- progress --------------------------------------------------------------------------------------
# A query's progress as a consumer group's offsets, where every tool for Kafka sees it.
#
# The checkpoint decides where a query continues; these offsets are for display, and for another
# query that starts with `startingGroup`.


log = logging.getLogger("perkey.spark.source")

#: time limit of an answer that must be awaited; the next batch does not wait for one
ANSWER_S = 10.0
LOOK_S = 0.05


class GroupProgress:
    """Commits a query's progress; one commit at a time."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._group = group
        self._consumer = cluster.group_consumer(group, self._on_commit)
        self._last: PartitionMap | None = None
        self._waiting = False
        self._error: KafkaError | None = None

    def reached(self, positions: PartitionMap, *, wait: bool) -> None:
        """Everything below these offsets is finished.

        Raises ConfigError if the group belongs to living consumers; any other failure is only
        logged, since the query does not depend on it.
        """
        first = self._last is None
        # The answer first: a commit that failed late is repeated even if nothing new comes.
        if not self._settled(ANSWER_S if wait else 0) or positions == self._last:
            return
        self._last, self._waiting = dict(positions), True
        offsets = [TopicPartition(*tp, offset) for tp, offset in positions.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])
        self._settled(ANSWER_S if first or wait else 0)

    def _settled(self, timeout_s: float) -> bool:
        """Whether the previous commit was answered; waits so long for that."""
        deadline = time.monotonic() + timeout_s
        while self._waiting:
            self._consumer.poll(min(LOOK_S, timeout_s))
            if time.monotonic() >= deadline:
                break
        error, self._error = self._error, None
        if error is not None:
            if error.code() in LIVING_MEMBERS:
                raise ConfigError(
                    f"commitGroup={self._group}: the group has living members, whose offsets they"
                    " are: give the query a separate group"
                )
            self._last = None  # committed again at Spark's next call
            log.warning("offsets of group %s were not committed: %s", self._group, error.str())
        return not self._waiting

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        refused = [offset.error for offset in offsets if offset.error is not None]
        self._error = error or (refused[0] if refused else None)
        self._waiting = False


LIVING_MEMBERS = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.NON_EMPTY_GROUP}
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before PySpark 4.2: no admission control, each batch is all there is
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]  # a mixin without methods

#: Spark asks again 10 ms after an answer without news; waiting here instead saves most of those
#: requests and delays a record by no more than this.
IDLE_WAIT_S = 0.025


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One run of one query."""

    def __init__(self, options: SourceOptions, settings: FetchSettings) -> None:
        self._options = options
        self._settings = settings
        self._cluster: Cluster | None = None
        self._initial: StreamOffset | None = None
        self._latest: StreamOffset | None = None
        #: the end of the last batch that was returned to Spark, or planned
        self._answered: StreamOffset | None = None
        #: the end of the last batch that was admitted
        self._ended: PartitionMap = {}
        self._available_now = False
        #: When a batch was last admitted; `minOffsetsPerTrigger` counts from there.
        self._triggered_at: float | None = None
        self._group: GroupProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need; connections and the driver's data are not pickled."""
        return {
            **self.__dict__,
            "_cluster": None,
            "_initial": None,
            "_latest": None,
            "_answered": None,
            "_group": None,
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a new query starts; decided once in this process (see `offsets`)."""
        with one_line_errors():
            if self._initial is None:
                options, cluster = self._options, self._connected()
                layout = cluster.layout()
                require_topics(options.subscription, layout)
                bound, no_time = options.starting, options.on_no_timestamp
                assert bound is not None, "for_stream() fills it"
                offsets = resolve(bound, layout, cluster, starting=True, on_no_timestamp=no_time)
                report = reporter(fail_on_data_loss=options.fail_on_data_loss)
                (kept,) = inside_logs([(bound, offsets)], cluster, report)
                self._initial = StreamOffset(kept, topic_ids=layout.topic_ids)
            return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The limit that Spark passes to `latestOffset`, except in a trigger that reads all."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Read to the ends that the logs have at the next call, and no further."""
        self._available_now = True

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """The end of the next batch; equal to `start` if nothing has come.

        Before PySpark 4.2 Spark passes neither: the batch starts at the last answer.
        """
        with one_line_errors():
            known = self._answered or self._initial if start is None else self._own(start)
            self._answered = self._somewhere() if known is None else self._next_end(known, limit)
            return self._answered.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The ends of the logs: `latestOffset` in the query's progress."""
        if self._latest is None:
            return None
        return with_lag(self._latest.positions, self._ended)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of one batch; the same for a batch that is repeated after a crash."""
        with one_line_errors():
            options, cluster = self._options, self._connected()
            begin, stop = stream_offset(start), self._own(end)
            report = reporter(fail_on_data_loss=options.fail_on_data_loss)
            if stop.first == {}:  # `_somewhere`: only now the start is known, and any loss
                resumed(self._own(start), stop, cluster.earliest, report)
            self._answered = stop  # also for a repeated batch
            ranges = batch_ranges(begin, stop, cluster.layout(), cluster.earliest, report)
            return list[InputPartition](
                split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in a task."""
        return read_range(partition, self._settings, self._options.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the offsets are in the checkpoint, and no consumer group is kept."""

    def stop(self) -> None:
        """Close the connections. Spark kills the process more often than it calls this."""
        self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster

    def _own(self, stored: dict[str, Any]) -> StreamOffset:
        """An offset of the checkpoint; ConfigError if it is of a query on other topics."""
        offset, subscription = stream_offset(stored), self._options.subscription
        known = {topic for topic, _ in offset.positions}
        wanted = {*subscription.topics, *(topic for topic, _ in subscription.assigned)}
        if self._options.fail_on_data_loss and known and wanted and not known & wanted:
            raise ConfigError(
                f"the checkpoint is of another query, which read {', '.join(sorted(known))} and not"
                f" {', '.join(sorted(wanted))}: give this query a separate checkpointLocation"
            )
        return offset

    def _somewhere(self) -> StreamOffset:
        """The ends of the logs, for a restart on a PySpark that does not report where it was."""
        latest = self._log_ends(StreamOffset({}))
        self._ended = latest.positions
        return StreamOffset(latest.positions, {}, latest.topic_ids)

    def _next_end(self, start: StreamOffset, limit: ReadLimit | None) -> StreamOffset:
        name = self._options.commit_group
        if name is not None:
            # Spark requests the end of a batch once the previous one is in its commit log.
            self._group = self._group or GroupProgress(self._connected(), name)
            # With this trigger the process may be killed right after the last call.
            self._group.reached(start.positions, wait=self._available_now)
        latest = self._log_ends(start)
        if latest.positions == start.positions and start.first is not None:
            # With this trigger Spark ends the query at such an answer: no reason to wait.
            self._ended = start.positions
            if self._available_now:
                return start
            time.sleep(IDLE_WAIT_S)
            latest = self._log_ends(start)
        report = reporter(fail_on_data_loss=self._options.fail_on_data_loss)
        begin, first = resumed(start, latest, self._connected().earliest, report)
        end = self._ended = self._admitted(begin, latest.positions, limit)
        return StreamOffset(end, first, latest.topic_ids)

    def _admitted(
        self, begin: PartitionMap, end: PartitionMap, limit: ReadLimit | None
    ) -> PartitionMap:
        """How far this batch may go, by `minOffsetsPerTrigger` and `maxOffsetsPerTrigger`."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            return end
        least, most, now = self._options.min_offsets, self._options.max_offsets, time.monotonic()
        # The first batch of a run is never delayed, and `availableNow` reads everything.
        if least is not None and not self._available_now:
            waiting = sum(max(0, end[tp] - begin[tp]) for tp in end if tp in begin)
            last, delay_s = self._triggered_at, self._options.max_trigger_delay_s
            if last is not None and now - last < delay_s and waiting < least:
                return {tp: begin.get(tp, offset) for tp, offset in end.items()}
            self._triggered_at = now
        return end if most is None else limit_rows(begin, end, most)

    def _log_ends(self, known: StreamOffset) -> StreamOffset:
        """The current ends of the logs; under `availableNow` their ends at the first call.

        Repeated while something is missing that existed: brokers that have just started, or a
        metadata cache that lags, answer so for a moment.
        """
        if self._latest is not None and self._available_now:
            return self._latest
        cluster = self._connected()
        for attempt in range(self._options.offset_attempts):
            if attempt:
                cluster.retry_pause()
            layout = cluster.layout()
            ends = StreamOffset(cluster.latest(layout.partitions), topic_ids=layout.topic_ids)
            less = missing_topics(self._options.subscription, layout) or any(
                ends.positions.get(tp, -1) < offset and ends.same_topic(known, tp[0])
                for tp, offset in known.positions.items()
            )
            if not less:
                break
        self._latest = ends
        return ends


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Replaces a reader whose options are wrong, and raises the error at its first call.

    PySpark 4.3 hides an exception of `streamReader` itself behind an UnboundLocalError.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def _refused(self, *_: Any, **__: Any) -> Any:
        with one_line_errors():
            raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = _refused  # noqa: N815  # Spark's names
    prepareForTriggerAvailableNow = partitions = read = _refused  # noqa: N815  # Spark's names
