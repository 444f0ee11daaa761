"""Follow the latest record of each key in a compacted topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaException,
    TopicPartition,
)

from weft import guard
from weft.kafka.clientlog import with_client_log
from weft.kafka.ports import Word

ANSWER_S = 10.0
AGAIN_S = 5.0
MESSAGES_AT_A_TIME = 500
#: older reports are of members that are long gone: they are not read at the start
BEGIN_S = 3600.0
BUFFER_KBYTES = 16 * 2**10
#: kept at a time, those that were written last; a longer value is no word
KEYS_MAX = 1_000
VALUE_BYTES_MAX = 2**20
BYTES_MAX = 64 * 2**20


def stamped(message: Any, now: float) -> tuple[float, bool]:
    """When a message was written, in UNIX seconds, and whether by the broker's clock."""
    kind, stamp_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return now, False
    by_broker = kind == TIMESTAMP_LOG_APPEND_TIME
    return (stamp_ms / 1e3 if by_broker else min(now, stamp_ms / 1e3)), by_broker


class LastWords:
    """Reads a topic on a thread of its own until it is closed."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
    ) -> None:
        """Ignores keys that are not `wanted`; `failed` gets the reason if reading fails."""
        self._properties = {
            **properties,
            "enable.auto.commit": False,  # the group is never joined: partitions are assigned here
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "queued.max.messages.kbytes": BUFFER_KBYTES,
        }
        self._topic, self._wanted, self._failed = topic, wanted, failed
        #: in the order in which they came
        self._last: dict[bytes, Word] = {}
        self._bytes = 0
        #: the broker's clock minus our monotonic clock; None while unknown
        self._broker_s: float | None = None
        self._turns = guard.Turns("weft-reports-read")
        self._over = threading.Event()
        self._thread = guard.thread("weft-reports-read", self._run)
        self._thread.start()

    def last(self) -> dict[bytes, Word]:
        """The last word under each key; what was taken back is not there. Any thread."""
        return self._last.copy()

    def now(self) -> float:
        """The time by the clock that stamps the words, in UNIX seconds. Any thread."""
        ahead_s = self._broker_s
        return time.time() if ahead_s is None else time.monotonic() + ahead_s

    def close(self) -> None:
        """Read no more."""
        self._over.set()
        self._thread.join(ANSWER_S)

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
        """Assign every partition, from where records of the last hour begin."""
        known = consumer.list_topics(self._topic, timeout=ANSWER_S).topics[self._topic]
        if known.error is not None:
            raise KafkaException(known.error)
        since_ms = int((time.time() - BEGIN_S) * 1000)
        asked = [TopicPartition(self._topic, number, since_ms) for number in known.partitions]
        consumer.assign(consumer.offsets_for_times(asked, timeout=ANSWER_S))

    def _follow(self, consumer: Consumer) -> None:
        while not self._over.is_set():
            for message in consumer.consume(MESSAGES_AT_A_TIME, 0.5):
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.fatal() or not error.retriable():
                    self._failed(error.str())

    def _take(self, message: Any) -> None:
        at, by_broker = stamped(message, time.time())
        if by_broker:
            self._broker_s = at - time.monotonic()
        key, value = message.key(), message.value()
        if key is None or not self._wanted(bytes(key)):
            return
        self._drop(bytes(key))
        if value is None:
            return
        if len(value) > VALUE_BYTES_MAX:
            self._failed(f"a report of {len(value):,} bytes was passed over")
            return
        self._last[bytes(key)] = Word(bytes(value), at)
        self._bytes += len(value)
        while len(self._last) > KEYS_MAX or self._bytes > BYTES_MAX:
            self._drop(next(iter(self._last)))
            self._failed(f"more than {KEYS_MAX:,} members report: the oldest are left out")

    def _drop(self, key: bytes) -> None:
        gone = self._last.pop(key, None)
        self._bytes -= 0 if gone is None else len(gone.value)
