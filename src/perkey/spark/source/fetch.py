"""The executor's side: read one range of offsets to its end, across gaps."""

from __future__ import annotations

import atexit
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from perkey.kafka.clientlog import with_client_log
from perkey.spark.source.cluster import accepted, error_text, may_come_back
from perkey.spark.source.errors import (
    DISCONNECTED,
    MISSING,
    OUT_OF_RANGE,
    PARTITION_EOF,
    SourceError,
)
from perkey.spark.source.plan import Report, reporter
from perkey.spark.source.ranges import OffsetRange
from perkey.spark.source.worker import is_reused

#: Rows and bytes of one Arrow batch; measured: 500 to 50,000 rows make no difference in speed.
BATCH_ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 * 2**20
#: `consume(n)` returns early only when it has n messages. At the end of a range with gaps it never
#: does, so its time-out is the extra cost of such a range.
CONSUME_TIMEOUT_S = 0.02
WATERMARK_TIMEOUT_S = 10.0
#: A kept consumer that gets nothing for so long is replaced.
STALE_S = 10.0

#: Used unless the user set them. `fetch.queue.backoff.ms` (librdkafka: 1000) is how long a
#: partition's fetcher sleeps after its queue was full: 5 makes a bounded read 2.5 times faster.
#: A range ends before the end of the log, so a long poll has nothing to wait for.
DEFAULTS: dict[str, Any] = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 50,
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
}
#: Always set: no offsets are committed, no group is joined, and an offset out of range is an event
#: and never a silent jump.
OWNED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A slow sink may not poll for long; the consumer is in no group, so this has no effect.
    "max.poll.interval.ms": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The settings of a task for its range. Pickled into the task; the repr shows no secret."""

    kafka: Mapping[str, str] = field(repr=False)
    group_prefix: str
    fail_on_data_loss: bool
    poll_timeout_s: float
    poll_records: int


@contextmanager
def open_fetch(span: OffsetRange, settings: FetchSettings) -> Iterator[RangeFetch]:
    """A consumer on one range; kept for the next range of its partition, or closed at the end."""
    config = consumer_config(span, settings)
    key = key_of(span.topic, span.partition, settings.group_prefix, config)
    fetching = RangeFetch(span, settings)
    held = (CONSUMERS.take(key) if is_reused() else None) or _made(key, config, settings)
    held.on_error = fetching.on_client_error

    def another() -> Consumer:
        nonlocal held
        held.consumer.close()
        held = _made(key, config, settings)
        held.on_error = fetching.on_client_error
        return held.consumer

    try:
        fetching.start(held.consumer, another if held.used else None)
        yield fetching
    except BaseException:
        held.consumer.close()
        raise
    if is_reused():
        CONSUMERS.put(held)
    else:
        held.consumer.close()


def _made(key: Key, config: Mapping[str, Any], settings: FetchSettings) -> Held:
    held = Held(key)
    # No group is joined, but brokers with access control check the name.
    group_id = f"{settings.group_prefix}-{uuid.uuid4()}-executor"
    config = {"group.id": group_id, **config, "error_cb": held.report}
    held.consumer = accepted(Consumer, with_client_log(config), settings.kafka)
    return held


def check_consumer(settings: FetchSettings) -> None:
    """ConfigError if librdkafka refuses a property or a combination; queries no broker."""
    config = consumer_config(OffsetRange("t", 0, 0, 1), settings)
    config = {"group.id": settings.group_prefix, **config, "log_level": 0}
    accepted(Consumer, config, settings.kafka).close()


def consumer_config(span: OffsetRange, settings: FetchSettings) -> dict[str, Any]:
    """The configuration for one range, without a group: the user's, with the source's own settings.

    It is the same in another query, which can reuse the consumers of this one.
    """
    # Fetching far beyond the range is useless. A power of four, so that the next batch, which
    # is about as large, can use the same consumer.
    ahead = 4 ** (((max(1, span.size) - 1).bit_length() + 1) // 2)
    defaults = {**DEFAULTS, "queued.min.messages": min(100_000, ahead)}
    return {**defaults, **settings.kafka, **OWNED}


class RangeFetch:
    """Reads one range with one consumer."""

    _consumer: Consumer
    #: creates a new consumer to replace a kept one, whose errors may be old; None: it is new
    _another: Callable[[], Consumer] | None = None
    #: the kept one had an error
    _is_stale = False

    def __init__(self, span: OffsetRange, settings: FetchSettings) -> None:
        self._span = span
        self._settings = settings
        self._report: Report = reporter(fail_on_data_loss=settings.fail_on_data_loss)
        #: The next expected offset; the range is finished when it is at `span.end`.
        self._next = span.start
        self._deadline = 0.0
        #: librdkafka's latest error about its connections
        self._last_error = ""

    def start(self, consumer: Consumer, another: Callable[[], Consumer] | None = None) -> None:
        """Start to fetch; `another` if the consumer has been used before."""
        self._consumer, self._another = consumer, another
        self._assign(self._span.start)

    def on_client_error(self, error: KafkaError) -> None:
        """Keep librdkafka's connection errors; it retries by itself."""
        self._last_error = f" (last: {' '.join(error.str().split())})"

    def next_batch(self) -> list[Message]:
        """The next messages of the range, in order and of bounded size; empty at its end."""
        self._touch()  # The time that Spark took for the last batch does not count.
        gathered: list[Message] = []
        size_bytes = 0
        while self._next < self._span.end:
            messages = self._poll()
            gathered += messages
            size_bytes += sum(map(len, messages))
            if len(gathered) >= BATCH_ROWS_MAX or size_bytes >= BATCH_BYTES_MAX:
                break
        return gathered

    def _poll(self) -> list[Message]:
        """The available messages of this range; moves `_next`."""
        if self._is_stale and self._another is not None:
            self._consumer, self._another = self._another(), None
            self._assign(self._next)
        wanted = min(self._settings.poll_records, self._span.end - self._next)
        messages = self._consumer.consume(wanted, CONSUME_TIMEOUT_S)
        if any(map(Message.error, messages)):
            records: list[Message] = []
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(message)
                else:
                    self._on_event(error, message)
            messages = records
        if messages:
            last = messages[-1].offset() or 0
            self._moved_to(last + 1)
            if last >= self._span.end:
                return [m for m in messages if (m.offset() or 0) < self._span.end]
        self._look_at_position()
        return messages

    def _look_at_position(self) -> None:
        """Move `_next` over offsets that will never come.

        They are transaction markers, aborted and compacted records; the consumer's position
        includes them as soon as they were fetched.
        """
        position = self._consumer.position([self._kafka_partition()])[0].offset
        if position > self._next:
            self._moved_to(position)
        elif self._another is not None and time.monotonic() > self._deadline:
            self._is_stale = True
        elif time.monotonic() > self._deadline:
            raise SourceError(
                f"no record of {self._span} came for {self._settings.poll_timeout_s:g} s, at offset"
                f" {self._next}{self._last_error}: check the brokers, or raise"
                " kafkaConsumer.pollTimeoutMs"
            )

    def _on_event(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == PARTITION_EOF:
            # The fetcher is at the end of the log: everything below was delivered or is a gap. A
            # follower (`client.rack`) may know less than the leader, so an end inside the range
            # counts only if the leader confirms it.
            end = message.offset() or 0
            if end < self._span.end and self._watermarks()[1] < self._span.end:
                self._report(f"the log of {self._span} was cut: it ends at {end} now")
                end = self._span.end
            if end >= self._span.end:
                self._moved_to(self._span.end)
        elif self._another is not None:
            # It may be outdated: a recreated topic, new partitions, an old leader.
            self._is_stale = True
        elif code in OUT_OF_RANGE:
            self._on_out_of_range()
        elif code in MISSING:
            self._report(f"partition of {self._span} is gone")
            self._moved_to(self._span.end)
        elif not error.retriable() and code not in DISCONNECTED:
            raise SourceError(f"reading {self._span} failed: {' '.join(error.str().split())}")

    def _on_out_of_range(self) -> None:
        """The next offset is not in the log: deleted by retention, or the log was truncated."""
        low, high = self._watermarks()
        if self._next < low:
            stop = min(low, self._span.end)
            self._report(
                f"offsets {self._next} to {stop - 1} of {self._span} are gone from the log"
            )
        else:
            self._report(f"the log of {self._span} was cut: it ends at {high} now")
            low = self._span.end
        self._moved_to(low)
        if low < self._span.end:
            self._assign(low)

    def _watermarks(self) -> tuple[int, int]:
        while True:
            try:
                return self._consumer.get_watermark_offsets(
                    self._kafka_partition(), timeout=WATERMARK_TIMEOUT_S, cached=False
                )
            except KafkaException as error:
                if time.monotonic() > self._deadline or not may_come_back(error):
                    raise SourceError(f"reading {self._span} failed: {error_text(error)}") from None

    def _assign(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._span.topic, self._span.partition, offset)])
        self._touch()

    def _moved_to(self, offset: int) -> None:
        self._next = max(self._next, offset)
        self._touch()

    def _touch(self) -> None:
        patience_s = self._settings.poll_timeout_s
        if self._another is not None:
            patience_s = min(patience_s, STALE_S)
        self._deadline = time.monotonic() + patience_s

    def _kafka_partition(self) -> TopicPartition:
        return TopicPartition(self._span.topic, self._span.partition)


# -- kept consumers --------------------------------------------------------------------------------
# Consumers that a worker process keeps for the next range of a partition, in any query.
#
# Spark gives the tasks of each micro-batch to Python workers that it reuses. A kept consumer has
# its connections, with TLS and the login done, and knows the brokers: otherwise a small batch would
# spend more on these than on its records.
#
# It is reused only for the same partition with the same settings, and closed after a minute without
# use, when there are too many, after any error, and when the process ends.

#: Most tasks of a batch are of a few partitions; each consumer holds some threads and sockets.
KEPT_MAX = 8
IDLE_MAX_S = 60.0

Key = tuple[object, ...]


class Held:
    """A consumer, with the current receiver of its errors."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.on_error: Callable[[KafkaError], None] = _unheard
        self.consumer: Consumer
        #: it has been used before
        self.used = False
        self.idle_since = 0.0

    def report(self, error: KafkaError) -> None:
        """Forward librdkafka's connection errors."""
        self.on_error(error)


def _unheard(_: KafkaError) -> None:
    """No reader uses it."""


class Consumers:
    """Unused ones, the longest unused first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: list[Held] = []
        self._lock = threading.Lock()
        self._sweeping = False

    def take(self, key: Key) -> Held | None:
        """One that was kept under this key, if any; no other reader gets it meanwhile."""
        with self._lock:
            found = next((held for held in self._idle if held.key == key), None)
            if found is not None:
                self._idle.remove(found)
        if found is None:
            return None
        topic, partition = found.key[:2]
        place = TopicPartition(str(topic), int(str(partition)))
        # Only one that has forgotten its position, because the position ends a range.
        if found.consumer.position([place])[0].offset != OFFSET_INVALID:
            found.consumer.close()
            return None
        return found

    def put(self, held: Held) -> None:
        """Keep one that has read its range without any error."""
        held.consumer.unassign()
        held.on_error, held.used, held.idle_since = _unheard, True, self._clock()
        with self._lock:
            self._idle.append(held)
            over = self._idle[:-KEPT_MAX]
            del self._idle[:-KEPT_MAX]
            starts, self._sweeping = not self._sweeping, True
        for one in over:
            one.consumer.close()
        if starts:
            threading.Thread(target=self._sweep, name="perkey-consumers", daemon=True).start()

    def close(self, idle_s: float = 0.0) -> None:
        """Close those that were unused for so long."""
        since = self._clock() - idle_s
        with self._lock:
            over = [held for held in self._idle if held.idle_since <= since]
            self._idle = [held for held in self._idle if held.idle_since > since]
        for one in over:
            one.consumer.close()

    def __len__(self) -> int:
        return len(self._idle)

    def _sweep(self) -> None:
        """Close unused ones, until there are none."""
        while True:
            time.sleep(IDLE_MAX_S / 4)
            self.close(IDLE_MAX_S)
            with self._lock:
                if not self._idle:
                    self._sweeping = False
                    return


CONSUMERS = Consumers()
atexit.register(CONSUMERS.close)


def key_of(topic: str, partition: int, group_prefix: str, config: Mapping[str, Any]) -> Key:
    """The key of a kept consumer: its partition and all its settings."""
    made_with = frozenset((name, str(value)) for name, value in config.items())
    return topic, partition, group_prefix, made_with
