"""At least once: an idempotent producer, and a task ends when all its rows are acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from perkey.errors import ConfigError
from perkey.kafka.clib_rows import QUEUE_FULL, produce_rows, serve
from perkey.kafka.clientlog import with_client_log
from perkey.spark.sink.columns import Packed, Rows, packed_of, rows_of
from perkey.spark.sink.options import SinkOptions
from perkey.spark.sink.protocol import SinkError
from perkey.spark.source.cluster import (
    LATE_S,
    accepted,
    admin_client,
    error_text,
    not_answered,
    request_timeout_s,
)
from perkey.spark.source.errors import MISSING_TOPIC

ROOM_WAIT_S = 0.01
#: interval of releasing acknowledged rows, while their memory is still in a CPU cache
POLL_EVERY_ROWS = 1_000
FLUSH_LOOK_S = 1.0
#: A broker with automatic topic creation has created one within this time.
TOPIC_WAIT_S = 3.0
TOPIC_LOOK_S = 0.2


class Sending:
    """One active producer; remembers the first row that was not delivered."""

    def __init__(self, options: SinkOptions, **more: Any) -> None:
        self._servers = options.kafka["bootstrap.servers"]
        self._first_error = ""
        self._last_error = ""
        #: rows are queued many at a time: their reports come as events, for `serve`
        self._packed = False
        self._topic = ""
        #: no row can be written with it any more
        self.broken = False
        config = with_client_log(
            {
                **options.producer_config(),
                **more,
                "on_delivery": self._on_delivery,
                "error_cb": self._on_error,
            }
        )
        self._log = config["logger"]
        self.producer: Producer = accepted(Producer, config, options.kafka)

    def send(self, rows: Rows | Packed) -> None:
        """Queue the rows of a batch; waits while the queue is full."""
        if self._packed is not isinstance(rows, Packed):
            self.flush()  # while these are reported the same way
            self._packed = not self._packed
        if not isinstance(rows, Packed):
            self._send_each(rows)
            return
        self._topic, left = rows.topic, rows.rows
        while len(left):
            sent, error = produce_rows(self.producer, self._topic, left[:POLL_EVERY_ROWS])
            if error not in (0, QUEUE_FULL):
                raise self._failed(f"topic {self._topic}: {KafkaError(error).str()}")
            left = left[sent:]
            self.serve(ROOM_WAIT_S if error else 0)
            self.check()

    def _send_each(self, rows: Rows) -> None:
        calls, produce = rows.calls(), self.producer.produce
        for _ in range(0, len(rows.topics), POLL_EVERY_ROWS):
            for call in islice(calls, POLL_EVERY_ROWS):
                try:
                    produce(*call)
                except BufferError:
                    self._make_room(call)
                except (KafkaException, TypeError, ValueError) as error:
                    raise self._failed(f"topic {call[0]}: {error_text(error)}") from None
            self.serve()
            self.check()

    def flush(self) -> None:
        """Wait until every row is acknowledged, or has failed for good."""
        while len(self.producer) if self._packed else self.producer.flush(FLUSH_LOOK_S):
            if self._packed:
                self.serve(FLUSH_LOOK_S)
            self.check()
        self.check()

    def serve(self, wait_s: float = 0) -> None:
        """Handle reports and errors; waits for the first."""
        if self._packed:
            serve(self.producer, wait_s, self._undelivered, self._on_error, self._log)
        else:
            self.producer.poll(wait_s)

    def check(self) -> None:
        """Raise SinkError if a row was not delivered."""
        if self._first_error:
            raise self._failed(self._first_error)

    def give_up(self) -> None:
        """Drop queued rows: the producer is not used any more."""
        self.producer.purge()

    def _make_room(self, call: tuple[Any, ...]) -> None:
        while True:
            self.producer.poll(ROOM_WAIT_S)
            self.check()
            try:
                self.producer.produce(*call)
            except BufferError:
                continue
            return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._topic = message.topic() or ""
            self._undelivered(error)

    def _undelivered(self, error: KafkaError) -> None:
        if not self._first_error:
            self._first_error = f"topic {self._topic}: {error.str()}"

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()
        self.broken = self.broken or error.fatal()

    def _failed(self, why: str) -> SinkError:
        last = f"; last: {self._last_error}" if self._last_error not in why else ""
        text = " ".join(f"{why}{last}".split())
        return SinkError(f"rows could not be written to Kafka at {self._servers}: {text}")


class Kept:
    """The producer of this worker process, kept for the next batch, of any topic.

    Only for identical properties: others may belong to another user.
    """

    def __init__(self) -> None:
        self._kafka: Mapping[str, str] = {}
        self._sending: Sending | None = None

    def take(self, options: SinkOptions) -> Sending:
        """The kept one if its properties match, else a new one; it is not kept meanwhile."""
        sending, self._sending = self._sending, None
        if sending is not None and options.kafka == self._kafka:
            sending.serve()  # its events since the last batch
            if not sending.broken:
                return sending
        return Sending(options)

    def put(self, options: SinkOptions, sending: Sending) -> None:
        """Keep one that has delivered everything."""
        self._kafka, self._sending = options.kafka, sending


KEPT = Kept()


def write_rows(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> int:
    """Write all rows; returns their number when the brokers have acknowledged them."""
    sending, count = KEPT.take(options), 0
    try:
        for batch in batches:
            sending.send(packed_of(batch, options) or rows_of(batch, options.topic))
            count += batch.num_rows
        sending.flush()
    except BaseException:
        sending.give_up()
        raise
    KEPT.put(options, sending)
    return count


def check_brokers(options: SinkOptions) -> None:
    """Raise SinkError if no broker answers: otherwise a row would wait minutes for its time-out.

    Without `list_topics`, which waits 50 ms for each connection.
    """
    errors: list[str] = []
    admin = admin_client(options.kafka, lambda error: errors.append(error.str()))
    timeout_s = request_timeout_s(options.kafka)
    try:
        admin.describe_cluster(request_timeout=timeout_s).result(timeout_s + LATE_S)
    except (KafkaException, TimeoutError) as error:
        admin.poll(0)  # serves the callback that fills `errors`
        servers, last = options.kafka["bootstrap.servers"], errors[-1] if errors else ""
        raise SinkError(not_answered(servers, error, last)) from None


_SEEN: set[tuple[str, str]] = set()


def check_topic(options: SinkOptions) -> None:
    """ConfigError if the topic does not exist: its rows would wait for a minute, in a task.

    Once per process: Spark creates a writer for every micro-batch. Checked with a producer, so that
    a broker with automatic topic creation creates it now.
    """
    topic, servers = options.topic, options.kafka["bootstrap.servers"]
    if topic is None or (servers, topic) in _SEEN:
        return
    config = with_client_log(dict(options.producer_config()))
    producer: Producer = accepted(Producer, config, options.kafka)

    def what_is_wrong() -> int | None:
        """The topic's error code; if no broker answers the tasks will report it."""
        try:
            found = (
                producer.list_topics(topic, request_timeout_s(options.kafka)).topics[topic].error
            )
        except KafkaException as failed:
            found = failed.args[0]
        return None if found is None else found.code()

    deadline = time.monotonic() + TOPIC_WAIT_S
    while (error := what_is_wrong()) in MISSING_TOPIC:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"topic {topic!r} does not exist at {servers}: create it"
                f" (perkey topics create {topic}), or correct option topic"
            )
        time.sleep(TOPIC_LOOK_S)
    if error is None:
        _SEEN.add((servers, topic))


def until(deadline: float) -> float:
    """Remaining seconds, at least a moment."""
    return max(0.1, deadline - time.monotonic())
