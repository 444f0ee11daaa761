"""The last word of each writer in a compacted topic, followed as it changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from weft.kafka import guard
from weft.kafka.clientlog import with_client_log

ANSWER_S = 10.0
AGAIN_S = 5.0
MESSAGES_AT_A_TIME = 500
#: what is older was said by who is long gone: it is not read at the start
BEGIN_S = 3600.0
BUFFER_KBYTES = 16 * 2**10


class LastWords:
    """Reads a topic on a thread of its own until it is closed."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        topic: str,
        wanted: Callable[[bytes], bool],
        failed: Callable[[str], None],
    ) -> None:
        """Keys that are not `wanted` are passed over; `failed` hears why nothing can be read."""
        self._properties = {
            **properties,
            "enable.auto.commit": False,  # the group is never joined: partitions are assigned here
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "queued.max.messages.kbytes": BUFFER_KBYTES,
        }
        self._topic, self._wanted, self._failed = topic, wanted, failed
        self._last: dict[bytes, bytes] = {}
        self._over = threading.Event()
        self._thread = guard.thread("weft-reports-read", self._run)
        self._thread.start()

    def last(self) -> dict[bytes, bytes]:
        """The last word under each key; what was taken back is not there. Any thread."""
        return self._last.copy()

    def close(self) -> None:
        """Read no more."""
        self._over.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        consumer = Consumer(with_client_log({"log_level": 2, **self._properties}))
        try:
            while not self._over.is_set():
                try:
                    self._begin(consumer)
                    self._follow(consumer)
                except KafkaException as error:
                    self._failed(error.args[0].str())
                    self._over.wait(AGAIN_S)
        finally:
            consumer.close()

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
                    self._take(message.key(), message.value())
                elif error.fatal() or not error.retriable():
                    self._failed(error.str())

    def _take(self, key: Any, value: Any) -> None:
        if key is None or not self._wanted(bytes(key)):
            return
        if value is None:
            self._last.pop(bytes(key), None)
        else:
            self._last[bytes(key)] = bytes(value)
