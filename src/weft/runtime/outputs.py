"""Produces what handlers return, and dead letters, and reports when the broker has them.

A record with several outputs is settled when all of them are answered; one that is refused fails
the whole attempt. When the producer's queue is full the rest waits here and the engine starts
nothing new until there is room again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from weft.core.work import Work
from weft.kafka.ports import Delivery, OutMessage, ProducerPort
from weft.runtime.shared import SharedOutputs
from weft.types import ErrorInfo, Headers, Record, Sent

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"})
HEADER_CHARS_MAX = 1_000

Settled = tuple[Work, tuple[Sent, ...], ErrorInfo | None]


class _Pending:
    """The outputs of one record, or of a whole batch, that are not all answered yet."""

    __slots__ = ("error", "left", "sent", "works")

    def __init__(self, work: Work, count: int) -> None:
        self.works = [work]
        self.left = count
        self.sent: list[Sent] = []
        self.error: ErrorInfo | None = None


class Outputs:
    """Sends for the engine; `send` and `send_dead_letter` are called inside the door."""

    def __init__(
        self,
        make_producer: Callable[[], ProducerPort],
        group: str,
        on_full: Callable[[bool], None],
    ) -> None:
        """`on_full(True)` when the producer takes no more for now, `on_full(False)` after that.

        The producer is made when there is something to send: many apps never send anything.
        """
        self._make_producer = make_producer
        self._producer: ProducerPort | None = None
        self._group = group
        self._on_full = on_full
        self._waiting: deque[tuple[OutMessage, Callable[[Delivery], None]]] = deque()
        self._full = False
        #: answers for the engine, taken by the member's turn
        self.settled: deque[Settled] = deque()
        #: a batch's records join its outputs inside the door while they are answered outside
        self._lock = threading.Lock()

    def send(self, work: Work, messages: Sequence[OutMessage]) -> None:
        """Produce all outputs of a record."""
        if isinstance(messages, SharedOutputs):
            self._send_shared(work, messages)
            return
        if len(messages) == 1:  # most have one: no counting
            self._queue(messages[0], partial(self._one_delivered, work))
            return
        pending = _Pending(work, len(messages))
        for message in messages:
            self._queue(message, partial(self._delivered, pending))

    def _send_shared(self, work: Work, shared: SharedOutputs) -> None:
        """Outputs of a batch: sent for the first of its records, waited for by all."""
        pending = shared.pending
        if pending is None:
            pending = shared.pending = _Pending(work, len(shared))
            for message in shared:
                self._queue(message, partial(self._delivered, pending))
            return
        with self._lock:
            if pending.left:
                pending.works.append(work)
                return
        self.settled.append((work, tuple(pending.sent), pending.error))

    def send_dead_letter(self, work: Work, topic: str, error: ErrorInfo) -> None:
        """Produce the record as it came, with KIP-1191's headers."""
        letter = dead_letter(work, topic, error, self._group)
        self._queue(letter, partial(self._dead_lettered, work, letter))

    def _queue(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        # Behind those that wait, or outputs of one lane would overtake each other.
        if self._producer is None:
            self._producer = self._make_producer()
        if not self._waiting:
            try:
                self._producer.send(message, on_delivery)
            except BufferError:
                pass
            else:
                return
        self._waiting.append((message, on_delivery))
        if not self._full:
            self._full = True
            self._on_full(True)

    def retry_waiting(self) -> None:
        """Send what did not fit before; called inside the door when there may be room."""
        while self._waiting and self._producer is not None:
            message, on_delivery = self._waiting[0]
            try:
                self._producer.send(message, on_delivery)
            except BufferError:
                return
            self._waiting.popleft()
        if self._full:
            self._full = False
            self._on_full(False)

    @property
    def backed_up(self) -> bool:
        """Something waits for room in the producer."""
        return bool(self._waiting)

    def close(self, timeout_s: float) -> None:
        """Wait for what is on its way, and stop."""
        if self._producer is not None:
            self._producer.close(timeout_s)

    def take_settled(self) -> list[Settled]:
        """Answers that came since the last call."""
        taken: list[Settled] = []
        # Taken by the producer's thread and by whoever is inside the door, also at the same time:
        # what the length said may be gone with the other one.
        with suppress(IndexError):
            while self.settled:
                taken.append(self.settled.popleft())
        return taken

    # -- on the producer's thread ------------------------------------------------------------------

    def _one_delivered(self, work: Work, delivery: Delivery) -> None:
        sent = () if delivery.sent is None else (delivery.sent,)
        self.settled.append((work, sent, delivery.error))

    def _delivered(self, pending: _Pending, delivery: Delivery) -> None:
        if delivery.sent is not None:
            pending.sent.append(delivery.sent)
        else:
            pending.error = pending.error or delivery.error
        with self._lock:
            pending.left -= 1
            works = [] if pending.left else pending.works
        sent = tuple(pending.sent)
        self.settled.extend((work, sent, pending.error) for work in works)

    def _dead_lettered(self, work: Work, letter: OutMessage, delivery: Delivery) -> None:
        error = delivery.error
        if error is not None and error.type in TOO_LARGE and letter.value is not None:
            # The record itself does not fit into the dead-letter topic: say that it is there.
            marked = (*letter.headers, ("__dlq.errors.value.omitted", b"too large"))
            slim = letter._replace(value=None, headers=marked)
            self._waiting.append((slim, partial(self._dead_lettered, work, slim)))
            return
        self._one_delivered(work, delivery)


def dead_letter(work: Work, topic: str, error: ErrorInfo, group: str) -> OutMessage:
    """The original record, with headers named as in KIP-1191 (Kafka 4.4's broker-side ones)."""
    record: Record = work.record
    headers: Headers = (
        *record.headers,
        ("__dlq.errors.topic", record.topic.encode()),
        ("__dlq.errors.partition", str(record.partition).encode()),
        ("__dlq.errors.offset", str(record.offset).encode()),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.delivery.count", str(work.attempts).encode()),
        (
            "__dlq.errors.message",
            f"{error.type}: {error.message}"[:HEADER_CHARS_MAX].encode(errors="replace"),
        ),
    )
    return OutMessage(topic, record.value, record.key, headers, None, record.timestamp_ms)
