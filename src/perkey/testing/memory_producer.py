"""Producers on the in-memory broker: the plain one, and one with transactions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from perkey.kafka.ports import Delivery, OutMessage, ReadBack, ToCommit, TransactionEnd
from perkey.kafka.transactions import is_refusal
from perkey.testing.crash import Crashed, Mortal
from perkey.testing.memory import METADATA_TOO_LARGE, Fenced, OffsetAndMetadata, ProducerId
from perkey.testing.memory_cluster import MemoryCluster

QUEUE_MAX = 100_000  # queue.buffering.max.messages, librdkafka's default

Queued = tuple[OutMessage, Callable[[Delivery], None]]


class MemoryProducer:
    """A ProducerPort: a separate thread writes and reports."""

    def __init__(
        self,
        kafka: MemoryCluster,
        mortal: Mortal,
        on_served: Callable[[], None] = lambda: None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        """`queue_max`: messages; with this many waiting, `send` raises BufferError."""
        self._kafka = kafka
        self._mortal = mortal
        self._on_served = on_served
        self._queue_max = queue_max
        self._queue: deque[Queued] = deque()
        self._changed = threading.Condition()
        #: taken from the queue and not reported yet
        self._serving = 0
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="perkey-producer", daemon=True)
        self._thread.start()

    def send(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue one message. Raises BufferError when the queue is full."""
        with self._changed:
            if len(self._queue) >= self._queue_max:
                raise BufferError("the producer's queue is full")
            self._queue.append((message, on_delivery))
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                taken = [self._queue.popleft() for _ in range(len(self._queue))]
                self._serving = len(taken)
            if not taken:
                return
            for message, on_delivery in taken:
                delivery = self._write(message)
                if delivery is not None:
                    on_delivery(delivery)
            self._on_served()
            with self._changed:
                self._serving = 0
                self._changed.notify_all()

    def _write(self, message: OutMessage) -> Delivery | None:
        """Write it; None if the result is lost."""
        with self._kafka.changed:
            if self._mortal.reach("before_output"):
                return None
            delivery = self._kafka.store(message)
            return None if self._mortal.reach("output_stored") else delivery

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty; returns how many messages remain."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._serving, timeout_s)
            return len(self._queue) + self._serving

    def close(self, timeout_s: float) -> None:
        """Write queued messages, and stop."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)


class MemoryTransactions:
    """A TransactionsPort."""

    def __init__(
        self, kafka: MemoryCluster, mortal: Mortal, group: str, transactional_id: str
    ) -> None:
        self._kafka = kafka
        self._mortal = mortal
        self._group = group
        self._id = transactional_id
        self._producer: ProducerId | None = None

    def open(self) -> None:
        """Start under this id; aborts what a predecessor left open."""
        with self._kafka.changed:
            self._producer = self._kafka.broker.init_producer(self._id)
            self._kafka.notify()

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Produce all messages and commit the offsets with them, or neither."""
        with self._kafka.changed:
            if self._producer is None:
                self.open()
            assert self._producer is not None
            deliveries: list[Delivery | None] = []
            try:
                self._kafka.broker.begin(self._producer)
                reason = self._fill(self._producer, messages, offsets, membership, deliveries)
                if self._mortal.reach("before_commit"):
                    raise Crashed("before_commit")
                if reason:
                    self._kafka.broker.abort(self._producer)
                else:
                    self._kafka.broker.commit(self._producer)
                self._kafka.notify()
                if self._mortal.reach("commit_stored"):
                    raise Crashed("commit_stored")
            except Fenced as error:
                return TransactionEnd("fenced", deliveries, str(error))
        return TransactionEnd(
            "aborted" if reason else "committed",
            deliveries,
            reason,
            maps_too_large=reason == METADATA_TOO_LARGE,
        )

    def _fill(
        self,
        producer: ProducerId,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        deliveries: list[Delivery | None],
    ) -> str:
        """Write everything into the open transaction; returns why it cannot be committed, or ""."""
        if self._mortal.reach("before_output"):
            raise Crashed("before_output")
        deliveries += [self._kafka.store(message, producer) for message in messages]
        if self._mortal.reach("output_stored"):
            raise Crashed("output_stored")
        for delivery in deliveries:
            if delivery is not None and delivery.error is not None:
                return delivery.error.message
        held = {(o.topic, o.partition): OffsetAndMetadata(o.offset, o.metadata) for o in offsets}
        answers = self._kafka.broker.send_offsets(
            producer, self._group, membership.member_id, membership.generation, held
        )
        return next((error for error in answers.values() if error), "")

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """Whether the broker will never accept this message."""
        return is_refusal(delivery)

    def close(self) -> None:
        """Nothing is open between two transactions."""
