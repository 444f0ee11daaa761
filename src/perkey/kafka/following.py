"""Compacted topics: follow the latest record of each key, or read all once (`words_of`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from perkey import guard
from perkey.errors import ConfigError
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.failures import Failures, passes
from perkey.kafka.log_reader import UNGROUPED, RangeReader
from perkey.kafka.ports import Word
from perkey.kafka.settings import ClientSettings
from perkey.types import TopicPartition as Where

ANSWER_S = 10.0
#: how long a close waits for a request that no broker answers; its thread then ends by itself
CLOSE_S = 1.0
AGAIN_S = 5.0
MESSAGES_AT_A_TIME = 500
#: older reports are of members that are long gone: they are not read
BEGIN_S = 3600.0
LOOK_UP_EVERY_S = 30.0
BUFFER_KBYTES = 16 * 2**10
#: the fix for messages that were stamped by their writer
NOT_STAMPED = "set message.timestamp.type=LogAppendTime on the topic"
#: time limit to read a whole topic
READ_S = 15.0
#: key, value, and the time when it was written, as from `stamped`
Line = tuple[bytes | None, bytes | None, float]


def stamped(message: Any, now: float) -> tuple[float, bool]:
    """When a message was written, in UNIX seconds; whether the broker's clock stamped it."""
    kind, stamp_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return now, False
    by_broker = kind == TIMESTAMP_LOG_APPEND_TIME
    return (stamp_ms / 1e3 if by_broker else min(now, stamp_ms / 1e3)), by_broker


@dataclass(frozen=True, slots=True)
class Kept:
    """The limits of what `LastWords` keeps."""

    #: most keys, the latest ones
    keys_max: int = 1_000
    #: the limit of a `whole` topic; tombstones and `of_now` keys have `keys_max` instead
    lasting_max: int = 10_000
    #: a longer value is ignored
    value_bytes_max: int = 2**20
    bytes_max: int = 64 * 2**20


class LastWords:
    """Follows a topic on a separate thread until it is closed."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
        *,
        whole: bool = False,
        of_now: Callable[[bytes], bool] | None = None,
        kept: Kept = Kept(),
        close_s: float = CLOSE_S,
    ) -> None:
        """Ignores keys that are not `wanted`; `failed` gets the reason if reading fails.

        `whole`: from the start of the topic instead of the last hour, only records that the
        broker's clock stamped, with tombstones as empty values, and `wanted` sees an empty key for
        each record without one. `of_now`: keys that have a
        separate limit. `kept`: the limits. `close_s`: the longest wait of a close, in seconds.
        """
        self._properties = {
            **properties,
            **UNGROUPED,  # the group is never joined: partitions are assigned here
            "queued.max.messages.kbytes": BUFFER_KBYTES,
            "enable.partition.eof": whole,
        }
        self._topic, self._wanted, self._failed = topic, wanted, failed
        self._kept, self._close_s = kept, close_s
        self._whole, self._of_now = whole, of_now or (lambda _key: False)
        #: of a whole topic: each partition's next offset, and the first end of those that are not
        #: yet read so far: while others write there may be no moment without a next record
        self._next: dict[int, int] = {}
        self._unread: dict[int, int] | None = None
        #: in order of arrival; a key that is being replaced is missing for a moment
        self._last: dict[bytes, Word] = {}
        #: those of them that are dropped first, in the same order
        self._passing: dict[bytes, None] = {}
        self._lock = threading.Lock()
        self._bytes = 0
        #: the broker's clock minus the monotonic clock; None while unknown
        self._broker_s: float | None = None
        self._turns = guard.Turns("perkey-reports-read")
        self._over = threading.Event()
        self._thread = guard.thread("perkey-reports-read", self._run)
        self._thread.start()

    def last(self) -> dict[bytes, Word]:
        """The last value of each key, without deleted ones. Thread-safe."""
        with self._lock:
            return self._last.copy()

    def now(self) -> float:
        """The current time of the clock that stamps the records, in UNIX seconds. Thread-safe."""
        ahead_s = self._broker_s
        return time.time() if ahead_s is None else time.monotonic() + ahead_s

    def is_read(self) -> bool:
        """With `whole`: whether everything that the topic held at the start has been read."""
        return self._unread is not None and not self._unread

    def close(self) -> None:
        """Stop reading."""
        self._over.set()
        self._thread.join(self._close_s)

    def _run(self) -> None:
        consumer = Consumer(with_client_log({"log_level": 2, **self._properties}))
        try:
            while not self._over.is_set():
                with self._turns.turn():
                    self._read(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> None:
        try:
            self._begin(consumer)
            self._follow(consumer)
        except KafkaException as error:
            self._failed(error.args[0].str())
        finally:
            if not self._over.is_set():
                self._over.wait(AGAIN_S)

    def _begin(self, consumer: Consumer) -> None:
        """Assign every partition, from the first record of the last hour, or from the start."""
        partitions = self._look_up(consumer)
        if self._whole:
            # Resume: records read before must not come again after the ones that replaced them.
            starts = {number: self._next.get(number, OFFSET_BEGINNING) for number in partitions}
            if self._unread is None:
                self._unread = self._ends(consumer, partitions)
            consumer.assign([TopicPartition(self._topic, *start) for start in starts.items()])
            return
        since_ms = int((time.time() - BEGIN_S) * 1000)
        asked = [TopicPartition(self._topic, number, since_ms) for number in partitions]
        consumer.assign(consumer.offsets_for_times(asked, timeout=ANSWER_S))

    def _ends(self, consumer: Consumer, partitions: list[int]) -> dict[int, int]:
        """The ends of the partitions that have records."""
        fetched = {}
        for number in partitions:
            place = TopicPartition(self._topic, number)
            first, end = consumer.get_watermark_offsets(place, ANSWER_S)
            if first < end:
                fetched[number] = end
        return fetched

    def _look_up(self, consumer: Consumer) -> list[int]:
        """The topic's partitions; KafkaException if this login may not see it (any more)."""
        known = consumer.list_topics(self._topic, timeout=ANSWER_S).topics[self._topic]
        if known.error is not None:
            raise KafkaException(known.error)
        return list(known.partitions)

    def _follow(self, consumer: Consumer) -> None:
        look_at = time.monotonic() + LOOK_UP_EVERY_S
        while not self._over.is_set():
            if time.monotonic() > look_at:
                # librdkafka's own look-up stops the fetching if it is refused, without an error.
                self._look_up(consumer)
                look_at = time.monotonic() + LOOK_UP_EVERY_S
            for message in consumer.consume(MESSAGES_AT_A_TIME, 0.5):
                error = message.error()
                if error is None:
                    self._take(message)
                    if self._whole:
                        partition = message.partition() or 0
                        self._next[partition] = at = (message.offset() or 0) + 1
                        if self._unread and at >= self._unread.get(partition, at + 1):
                            del self._unread[partition]
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # a public constant
                    if self._unread:
                        self._unread.pop(message.partition() or 0, None)
                elif error.fatal() or not error.retriable():
                    self._failed(error.str())

    def _take(self, message: Any) -> None:
        at, by_broker = stamped(message, time.time())
        if by_broker:
            self._broker_s = at - time.monotonic()
        key, value = message.key(), message.value()
        if key is None and not self._whole:
            return
        if not self._wanted(bytes(key or b"")) or key is None:
            return
        if self._whole and not by_broker:
            self._failed("its messages have no time of the broker: " + NOT_STAMPED)
            return
        with self._lock:
            key = bytes(key)
            value = b"" if value is None and self._whole else value
            self._drop(key)
            if value is None:
                return
            if len(value) > self._kept.value_bytes_max:
                self._failed(f"a record of {len(value):,} bytes was passed over")
                return
            self._last[key] = Word(bytes(value), at, message.offset() or 0)
            self._bytes += len(value)
            if self._whole and (not value or self._of_now(key)):
                self._passing[key] = None
            passing, kept = self._passing, self._kept
            most = kept.lasting_max if self._whole else kept.keys_max
            while len(passing) > kept.keys_max or (passing and self._bytes > kept.bytes_max):
                self._drop(next(iter(passing)))
            while len(self._last) - len(passing) > most or self._bytes > kept.bytes_max:
                self._drop(next(key for key in self._last if key not in passing))
                self._failed(f"more than {most:,} keys: those written first are left out")

    def _drop(self, key: bytes) -> None:
        gone = self._last.pop(key, None)
        self._passing.pop(key, None)
        self._bytes -= 0 if gone is None else len(gone.value)


def words_of(settings: ClientSettings, topic: str) -> list[Line]:
    """Key, value and time of every record, in order within each partition.

    Raises ConfigError if the topic does not exist or a login is refused, KafkaUnavailable if the
    brokers do not give all of it within `READ_S`.
    """
    failures = Failures(settings)
    consumer = Consumer(
        with_client_log(
            {
                "log_level": 0,
                **settings.admin,
                **UNGROUPED,
                "group.id": "perkey-reader",  # never joined
                "error_cb": failures.note,
            }
        )
    )
    try:
        return _read(consumer, settings.bootstrap, topic)
    except (KafkaException, TimeoutError) as error:
        failures.note_queued(consumer)
        raise failures.explained(f"read topic {topic}", error) from None
    finally:
        consumer.close()


def _read(consumer: Consumer, bootstrap: str, topic: str) -> list[Line]:
    known = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
    if known.error is not None:
        raise ConfigError(
            f"topic {topic} cannot be read at {bootstrap} ({known.error.str()}): give --reports "
            'the topic of App(reports="…")'
        )
    # Up to its end at the start: while members write reports, no fetch is empty, so librdkafka
    # never signals an end.
    ranges = {
        (topic, number): (
            0, consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_S)[1]
        )
        for number in known.partitions
    }  # fmt: skip
    reader = RangeReader(consumer, _stays)
    words: list[Line] = []
    for messages in reader.read(ranges, until=time.monotonic() + READ_S):
        for message in messages:
            at, _ = stamped(message, time.time())
            words.append((_bytes(message.key()), _bytes(message.value()), at))
    if reader.left:
        raise TimeoutError(
            f"{len(reader.left)} of its partitions were not read within {READ_S:g} s"
        )
    return words


def _stays(_: Where, error: KafkaError) -> bool:
    """Raise an error that will not pass."""
    if error.fatal() or not passes(error.code()):
        raise KafkaException(error)
    return False


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)
