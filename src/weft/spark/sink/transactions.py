"""Each batch once: one transaction for each task and batch, with a marker inside it.

The transaction of a task holds its rows and, as the offset of a consumer group of its own, the
number of the batch. A batch that Spark repeats, after a crash or because a task's success was not
heard of, finds the marker and adds nothing. Group and transactional id are the same text, made of
query and task: whoever comes later with it fences what an earlier attempt left behind, and its
open transaction is aborted before the marker is read.

What it rests on: a repeated batch gives each task the same rows. Offsets are in the checkpoint, so
that holds for plans without chance in them; the marker carries the count of the rows and a sum of
their keys, and a repeat that differs ends with a line instead of losing rows in silence.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from weft.spark.sink.columns import Rows, rows_of
from weft.spark.sink.options import SinkOptions
from weft.spark.sink.plain import Sending, SinkError, until
from weft.spark.source.cluster import accepted, error_text, may_come_back

log = logging.getLogger("weft.spark.sink")

#: How long one task tries to reach the brokers for one step.
STEP_S = 300.0
PAUSE_S = 0.5
#: The broker aborts a transaction that is open for longer; a task may take its time.
TRANSACTION_TIMEOUT_MS = 300_000
SUM_MASK = 2**63 - 1


class Place(NamedTuple):
    """Which task of which batch this is."""

    #: the transactional id, and the name of the group that holds the marker
    id: str
    batch: int


class Counted:
    """Passes the rows on and sums them up, in whatever order they come."""

    def __init__(self, batches: Iterable[pa.RecordBatch], topic: str | None) -> None:
        self._batches = iter(batches)
        self._topic = topic
        self.count = 0
        self._sum = 0
        #: where the rows go; a marker needs the name of a topic that exists
        self.topics: set[str] = set()

    def __iter__(self) -> Iterator[Rows]:
        for batch in self._batches:
            if batch.num_rows:
                rows = rows_of(batch, self._topic)
                self._add(rows, by_key="key" in batch.schema.names)
                yield rows

    def fingerprint(self) -> str:
        """What is kept with the marker; its end is marked, as confluent-kafka may read past it."""
        return f"{self.count} {self._sum & SUM_MASK:x};"

    def _add(self, rows: Rows, *, by_key: bool) -> None:
        named = rows.keys if by_key else rows.values
        self.count += len(named)
        self._sum += sum(map(zlib.crc32, [name or b"" for name in named]))
        self.topics.update(rows.topics)


def write_transaction(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, place: Place
) -> tuple[int, bool]:
    """Write all rows in one transaction unless this batch was committed before.

    Returns the number of rows and whether they were written now.
    """
    rows = Counted(batches, options.topic)
    waiting = iter(rows)
    first = next(waiting, None)
    if first is None:
        return 0, False
    config = {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, **options.kafka}
    sending = Sending(options, **config, **{"transactional.id": place.id})
    markers = _marker_consumer(options, place)
    try:
        _again(sending.producer.init_transactions, place)
        if _is_there(markers, place, rows, first.topics[0], waiting):
            return rows.count, False
        sending.producer.begin_transaction()
        sending.send(first)
        for more in waiting:
            sending.send(more)
        _mark(markers, place, rows, sending)
        sending.flush()
        _again(sending.producer.commit_transaction, place)
    except BaseException:
        sending.give_up()
        raise
    finally:
        markers.close()
    return rows.count, True


def _marker_consumer(options: SinkOptions, place: Place) -> Consumer:
    """Reads and names the group of the marker; it joins nothing.

    Not the admin client: confluent-kafka 2.16's crashes where it asks for a group's offsets while
    the coordinator is not there yet.
    """
    config = {**options.kafka, "group.id": place.id, "enable.auto.commit": False, "log_level": 0}
    return accepted(Consumer, config, options.kafka)


def _is_there(
    markers: Consumer, place: Place, rows: Counted, topic: str, waiting: Iterator[Rows]
) -> bool:
    """Whether the marker of this batch, or of a later one, is committed.

    A batch has a marker under each of its topics, so any of its rows leads to one.
    """
    asked = [TopicPartition(topic, 0)]
    mark = _again(lambda timeout_s: markers.committed(asked, timeout_s), place)[0]
    if mark.offset < place.batch + 1:
        return False
    for _ in waiting:  # the rest is counted
        continue
    if mark.offset == place.batch + 1 and not (mark.metadata or "").startswith(rows.fingerprint()):
        raise SinkError(
            f"batch {place.batch} was written before with other rows in this task"
            f" ({mark.metadata!r}, now {rows.fingerprint()!r}: count and sum of keys): a repeated"
            " batch must give each task the same rows; take out what changes between tries, or"
            " write without transactional=true"
        )
    log.warning("batch %d of %s is in Kafka already: nothing written", place.batch, place.id)
    return True


def _mark(markers: Consumer, place: Place, rows: Counted, sending: Sending) -> None:
    """Put the markers into the transaction."""
    group, text = markers.consumer_group_metadata(), rows.fingerprint()
    marks = [
        TopicPartition(topic, 0, place.batch + 1, metadata=text) for topic in sorted(rows.topics)
    ]
    send = sending.producer.send_offsets_to_transaction
    _again(lambda timeout_s: send(marks, group, timeout_s), place)


def _again(step: Callable[[float], Any], place: Place) -> Any:
    """The step's answer; tried again as long as that may help."""
    deadline = time.monotonic() + STEP_S
    while True:
        try:
            return step(min(30.0, until(deadline)))
        except (KafkaException, TimeoutError) as error:
            if time.monotonic() > deadline or not _may_help(error):
                raise SinkError(
                    f"the transaction of batch {place.batch} ({place.id}) failed:"
                    f" {error_text(error)}"
                ) from None
        time.sleep(PAUSE_S)


def _may_help(error: Exception) -> bool:
    if isinstance(error, TimeoutError):
        return True
    inner: KafkaError = error.args[0]
    return bool(not inner.fatal() and (inner.retriable() or may_come_back(error)))
