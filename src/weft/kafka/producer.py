"""The idempotent producer behind outputs and dead letters, as the runtime's ProducerPort."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from weft.kafka.ports import Delivery, OutMessage
from weft.types import ErrorInfo, Sent

_log = logging.getLogger("weft.kafka")

SERVE_S = 0.05
#: what `poll` and `flush` raise after a fatal error, and after nothing else: confluent-kafka sets
#: the exception before it calls our callbacks, one of which may have stumbled over it
FATAL = (KafkaException, SystemError)


class KafkaProducer:
    """Produces from any thread; a thread of its own serves the acknowledgements."""

    def __init__(
        self, config: Mapping[str, Any], on_served: Callable[[], None] = lambda: None
    ) -> None:
        """`on_served` is called after each round of acknowledgements, on the producer's thread."""
        self._config = dict(config)
        self._producer = Producer(self._config)
        self._on_served = on_served
        self._closed = threading.Event()
        #: messages were refused without being queued: nothing of them comes with a poll
        self._refused = False
        self._thread = threading.Thread(target=self._serve, name="weft-producer", daemon=True)
        self._thread.start()

    def send(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue one message. Raises BufferError when the queue is full."""

        def delivered(error: KafkaError | None, stored: Message) -> None:
            on_delivery(delivery_of(error, stored))

        options: dict[str, Any] = {}
        if message.partition is not None:
            options["partition"] = message.partition
        if message.timestamp_ms is not None and message.timestamp_ms >= 0:
            options["timestamp"] = message.timestamp_ms
        try:
            self._producer.produce(
                message.topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers) if message.headers else None,
                on_delivery=delivered,
                **options,
            )
        except KafkaException as error:
            # Refused at once, as a message that is too large: the same answer, only sooner.
            on_delivery(refused(error.args[0], message.topic))
            self._refused = True

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                served = self._producer.poll(SERVE_S)
            except FATAL as error:
                self._renew(error)
                continue
            if served or self._refused:
                self._refused = False  # before it is served: what is refused meanwhile counts anew
                self._on_served()

    def _renew(self, error: Exception) -> None:
        """A fatal error is final for a librdkafka producer: make another one."""
        _log.warning("the producer is made anew after a fatal error: %s", error)
        old, self._producer = self._producer, Producer(self._config)
        old.purge()
        flushed(old, 1.0)
        self._on_served()

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty; how many messages are left."""
        return flushed(self._producer, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Stop; what is still queued is failed."""
        left = flushed(self._producer, timeout_s)
        self._closed.set()
        self._thread.join(SERVE_S * 4)
        if left:
            self._producer.purge()
            flushed(self._producer, 0.2)
        self._on_served()


def flushed(producer: Producer, timeout_s: float) -> int:
    """Flush; how many messages are left. 1 when the producer broke over it."""
    try:
        return producer.flush(timeout_s)
    except FATAL:
        return 1


def delivery_of(error: KafkaError | None, stored: Message) -> Delivery:
    """librdkafka's report of one message as plain data."""
    try:
        return _delivery_of(error, stored)
    except SystemError:
        # After a fatal error confluent-kafka runs its callbacks with that exception pending, and
        # the first call into C stumbles over it; with this it is taken away.
        return _delivery_of(error, stored)


def _delivery_of(error: KafkaError | None, stored: Message) -> Delivery:
    topic, partition, offset = stored.topic(), stored.partition(), stored.offset()
    if error is not None:
        return refused(error, topic)
    return Delivery(
        Sent(
            topic or "",
            -1 if partition is None else partition,
            -1 if offset is None else offset,
            stored.key(),
        ),
        None,
    )


def refused(error: KafkaError, topic: str | None = None) -> Delivery:
    """A failed delivery, under the name of Kafka's error code."""
    where = "" if topic is None else f"output to {topic}: "
    return Delivery(None, ErrorInfo(error.name(), where + error.str()))
