"""Consumers that a worker process keeps for the next range of a partition, in any query.

Spark gives the tasks of each micro-batch to Python workers that it uses again. A consumer that
waits there has its connections, with TLS and the login done, and knows the brokers: a small batch
would otherwise spend more on these than on its records.

It is taken again for the same partition with the same settings only, and closed when it was idle
for a minute, when there are too many, after any error, and when the process ends.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition

#: Most tasks of a batch are of a few partitions; each consumer holds some threads and sockets.
KEPT_MAX = 8
IDLE_MAX_S = 60.0

Key = tuple[object, ...]


class Held:
    """A consumer with what listens to its troubles now."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.on_error: Callable[[KafkaError], None] = _unheard
        self.consumer: Consumer
        #: it has read something before
        self.used = False
        self.idle_since = 0.0

    def report(self, error: KafkaError) -> None:
        """Forward librdkafka's errors about its connections."""
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
        """One that was kept under this key, if there is any; no other reader gets it meanwhile."""
        with self._lock:
            found = next((held for held in self._idle if held.key == key), None)
            if found is not None:
                self._idle.remove(found)
        if found is not None and not _stands_nowhere(found):
            found.consumer.close()
            return None
        return found

    def put(self, held: Held) -> None:
        """Keep one that has read its range without any trouble."""
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
            threading.Thread(target=self._sweep, name="weft-consumers", daemon=True).start()

    def close(self, idle_s: float = 0.0) -> None:
        """Close those that were idle for so long."""
        since = self._clock() - idle_s
        with self._lock:
            over = [held for held in self._idle if held.idle_since <= since]
            self._idle = [held for held in self._idle if held.idle_since > since]
        for one in over:
            one.consumer.close()

    def __len__(self) -> int:
        return len(self._idle)

    def _sweep(self) -> None:
        """Close what is idle too long, until there is nothing any more."""
        while True:
            time.sleep(IDLE_MAX_S / 4)
            self.close(IDLE_MAX_S)
            with self._lock:
                if not self._idle:
                    self._sweeping = False
                    return


def _stands_nowhere(held: Held) -> bool:
    """Whether it has forgotten where it read: its position is what ends a range."""
    topic, partition = held.key[:2]
    found = held.consumer.position([TopicPartition(str(topic), int(str(partition)))])
    return bool(found[0].offset == OFFSET_INVALID)


CONSUMERS = Consumers()
atexit.register(CONSUMERS.close)


def key_of(topic: str, partition: int, group_prefix: str, config: Mapping[str, Any]) -> Key:
    """What a consumer is kept under: its partition and everything that it was made with."""
    made_with = frozenset((name, str(value)) for name, value in config.items())
    return topic, partition, group_prefix, made_with
