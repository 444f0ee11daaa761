"""Produce outputs and dead letters, and report their acknowledgements.

A record's outputs count as answered when all of them are; one that is refused fails the whole
attempt. Outputs that failed without a refusal (no response, no broker) are produced again as long
as the record waits for them: the handler succeeded, so no attempt is charged. When the producer's
queue is full the rest waits here, and the engine starts nothing new until there is room again.

A dead letter is the original record and the reason (`dead_letter`). It goes to the partition with
its record's own number; if the topic has fewer, its key decides. A letter that its topic refuses
because of its size loses first its value, then the original's headers, and last all but the start
of its key: the rest still identifies the record and the failure. That is always logged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from perkey.core.events import OutputsAnswer
from perkey.core.states import SENDING
from perkey.core.work import Work
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import Delivery, OutMessage, ProducerPort
from perkey.policies import DeadLetter
from perkey.runtime.logs import event
from perkey.runtime.shared import SharedOutputs
from perkey.types import OUTPUT_CURES, ErrorInfo, Headers, Record, Sent

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"})
NO_PARTITION = "_UNKNOWN_PARTITION"
HEADER_CHARS_MAX = 1_000
#: a key that is too large is cut to this many bytes
KEY_BYTES_MAX = 1_000

OURS = "__dlq.errors."
NO_VALUE = (f"{OURS}value.omitted", b"too large")
NO_HEADERS = (f"{OURS}headers.omitted", b"too large")
LEFT_OUT = (f"{OURS}value.omitted", b"copy_value=False")
CHANGED = (f"{OURS}value.omitted", b"transformed")
UNSHOWN = (f"{OURS}value.omitted", b"transform failed")
NO_HEADERS_SHOWN = (f"{OURS}headers.omitted", b"transform failed")
CUT_KEY = f"{OURS}key.size"
#: how often the record had been a dead letter before this one
REPLAYS = f"{OURS}replay.count"
REPLAYS_MAX = 10**9
#: headers of an earlier letter that are replaced; those that mark a lost part are kept
_FIELDS = "topic partition offset group handler delivery.count message replay.count replay.letter"
REPLACED = frozenset(OURS + name for name in _FIELDS.split())


def dead_letter(work: Work, topic: str, error: ErrorInfo, group: str) -> OutMessage:
    """The letter of a record: the original, with headers named as in KIP-1191."""
    record: Record = work.record
    theirs: Headers = tuple(header for header in record.headers if header[0] not in REPLACED)
    replays = 0
    if len(theirs) < len(record.headers):  # how often an earlier letter has been replayed
        count = dict(record.headers).get(REPLAYS) or b""
        known = int(count) if count.isdigit() and len(count) < 10 else 0
        replays = min(known + 1, REPLAYS_MAX)
    policy = work.given_up_by
    if isinstance(policy, DeadLetter) and (policy.transform or not policy.copy_value):
        record, theirs = _shown(policy, record._replace(headers=theirs))
    headers: Headers = (
        *theirs,
        ("__dlq.errors.topic", record.topic.encode()),
        ("__dlq.errors.partition", str(record.partition).encode()),
        ("__dlq.errors.offset", str(record.offset).encode()),
        ("__dlq.errors.group", group.encode()),
        ("__dlq.errors.handler", work.partition.handler.spec.name.encode(errors="replace")),
        ("__dlq.errors.delivery.count", str(work.attempts).encode()),
        (
            "__dlq.errors.message",
            error.line[:HEADER_CHARS_MAX].encode(errors="replace"),
        ),
    )
    if replays:
        headers = (*headers, (REPLAYS, str(replays).encode()))
    return OutMessage(
        topic, record.value, record.key, headers, record.partition, record.timestamp_ms
    )


def _shown(policy: DeadLetter, record: Record[Any]) -> tuple[Record[Any], Headers]:
    """The parts of the record that the letter may contain, and its headers; marks a lost part."""
    kept = tuple(header for header in record.headers if header[0].startswith(OURS))
    if policy.transform is None:
        marked = (*record.headers, LEFT_OUT) if record.value is not None else record.headers
        return record._replace(value=None), marked
    try:
        made = _sendable(policy.transform(record))
        value, headers = made.value, made.headers
    except BaseException as error:  # a user's function may raise anything: show nothing of it
        event(
            "error",
            "DeadLetter(transform=...) failed, the letter goes without value and headers",
            record=f"{record.topic}[{record.partition}]@{record.offset}",
            error=f"{type(error).__name__}: {error}",
        )
        return record._replace(value=None), (*kept, UNSHOWN, NO_HEADERS_SHOWN)
    own = tuple(header for header in headers if not header[0].startswith(OURS))
    if (value, own) == (
        record.value,
        tuple(header for header in record.headers if header not in kept),
    ):
        return record, record.headers
    return record._replace(value=value, key=made.key), (*own, *kept, CHANGED)


def _sendable(made: object) -> Record[Any]:
    """What a transform returned; raises TypeError for what a producer refuses."""
    if not isinstance(made, Record):
        raise TypeError(f"it returned {made!r:.80}: return record._replace(value=..., headers=...)")
    given: list[tuple[Any, Any]] = [(name, value) for name, value in made.headers]
    parts = [("value", made.value), ("key", made.key)]
    for name, value in given:
        parts.append((f"header {name!r:.80}", value))
        if not isinstance(name, str) or "\0" in name:
            raise TypeError(f"{name!r:.80} cannot be a header's name: give text")
        name.encode()  # a lone surrogate raises
    for what, part in parts:
        if not (part is None or isinstance(part, bytes)):
            raise TypeError(f"its {what} is of type {type(part).__name__}, not bytes")
    return made._replace(headers=tuple(given))


def smaller(letter: OutMessage) -> tuple[OutMessage, str] | None:
    """The letter without its next part, and the name of that part; None if it has none left.

    Parts that are already empty are skipped.
    """
    if letter.value is not None:
        return letter._replace(value=None, headers=(*letter.headers, NO_VALUE)), "value"
    ours = tuple(header for header in letter.headers if header[0].startswith(OURS))
    if len(ours) < len(letter.headers):
        return letter._replace(headers=(*ours, NO_HEADERS)), "headers"
    if letter.key is not None and len(letter.key) > KEY_BYTES_MAX:
        headers_left = (*letter.headers, (CUT_KEY, str(len(letter.key)).encode()))
        return letter._replace(key=letter.key[:KEY_BYTES_MAX], headers=headers_left), "key"
    return None


class Letters:
    """Creates a member's dead letters, and smaller ones for those that were refused.

    Counts the omitted parts, and logs them at most every ten seconds.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        #: dead-letter topic -> the lowest partition that it does not have
        self._ends: dict[str, int] = {}
        #: dropped parts: values, headers of a record, ends of keys
        self.count = 0
        self._sparse = Sparse()

    def of(self, work: Work, topic: str, error: ErrorInfo) -> OutMessage:
        """The letter of a record."""
        letter = dead_letter(work, topic, error, self._group)
        if topic in self._ends and work.record.partition >= self._ends[topic]:
            return letter._replace(partition=None)
        return letter

    def instead(self, record: Record, letter: OutMessage, error: ErrorInfo) -> OutMessage | None:
        """The letter to send after this refusal; None if no other letter would help."""
        if error.type == NO_PARTITION and letter.partition is not None:
            known = self._ends.get(letter.topic, letter.partition)
            self._ends[letter.topic] = min(known, letter.partition)
            return letter._replace(partition=None)
        cut = smaller(letter) if error.type in TOO_LARGE else None
        if cut is None:
            return None
        self.count += 1
        if self._sparse.left_out() is not None:
            event(
                "warning",
                "dead letter too large, a part is dropped: raise max.message.bytes of its topic",
                topic=letter.topic,
                dropped=cut[1],
                record=f"{record.topic}[{record.partition}]@{record.offset}",
                dropped_so_far=self.count,
            )
        return cut[0]


AGAIN_S = 0.5  # delay before a message that was not refused is produced again


class _Pending:
    """The outputs of one record, or of a whole batch, that are not all answered yet."""

    __slots__ = ("answers", "error", "left", "messages", "works")

    def __init__(self, work: Work, messages: Sequence[OutMessage]) -> None:
        self.works = [work]
        self.messages = messages
        self.answers: list[Delivery | None] = [None] * len(messages)
        self.left = len(messages)
        self.error: ErrorInfo | None = None

    def sent(self) -> tuple[Sent, ...]:
        """The messages that the broker has stored."""
        return tuple(
            answer.sent for answer in self.answers if answer is not None and answer.sent is not None
        )

    def reason(self) -> ErrorInfo | None:
        """Why they are not all stored: a refusal, if there is one."""
        failed = [answer for answer in self.answers if answer is not None and answer.error]
        failed.sort(key=lambda answer: answer.again)
        return failed[0].error if failed else None

    def first_again(self) -> int | None:
        """The first message to produce again; None if that would not help.

        Later messages are sent again, though stored: the outputs of one record keep their order.
        """
        failed = [i for i, answer in enumerate(self.answers) if answer is not None and answer.error]
        if not failed or not all((answer := self.answers[i]) and answer.again for i in failed):
            return None
        return failed[0]


class Outputs:
    """Sends for the engine; `send` and `send_dead_letter` are called inside the door."""

    def __init__(
        self,
        make_producer: Callable[[], ProducerPort],
        group: str,
        on_full: Callable[[bool], None],
    ) -> None:
        """`on_full(True)` when the producer's queue is full, `on_full(False)` when it has room.

        The producer is created when there is something to send: many apps never send anything.
        """
        self._make_producer = make_producer
        self._producer: ProducerPort | None = None
        self._on_full = on_full
        self._waiting: deque[tuple[OutMessage, Callable[[Delivery], None]]] = deque()
        self._full = False
        self.letters = Letters(group)
        #: answers for the engine, taken in the member's turn
        self.answered: deque[OutputsAnswer] = deque()
        #: records join a batch's outputs inside the door while those are answered outside
        self._lock = threading.Lock()
        #: to be produced again: the earliest time, the records, and the call that does it
        self._again: deque[tuple[float, list[Work], Callable[[], None]]] = deque()
        self._closed = False
        self._refusals = Refusals()

    def send(self, work: Work, messages: Sequence[OutMessage]) -> None:
        """Produce all outputs of a record."""
        if isinstance(messages, SharedOutputs):
            # Of a batch: sent for the first of its records; all of them wait for it.
            pending = messages.pending
            if pending is None:
                pending = messages.pending = _Pending(work, messages)
                self._send_from(pending, 0)
                return
            with self._lock:
                if pending.left:
                    pending.works.append(work)
                    return
            self.answered.append((work, pending.sent(), pending.error))
        elif len(messages) == 1:  # the usual case: no counting
            self._send_one(work, messages[0])
        else:
            self._send_from(_Pending(work, messages), 0)

    def _send_one(self, work: Work, message: OutMessage) -> None:
        self._queue(message, partial(self._one_delivered, work, message))

    def _send_from(self, pending: _Pending, first: int) -> None:
        for index in range(first, len(pending.messages)):
            self._queue(pending.messages[index], partial(self._delivered, pending, index))

    def send_dead_letter(self, work: Work, topic: str, error: ErrorInfo) -> None:
        """Produce the record as it was fetched, with KIP-1191's headers."""
        self._send_letter(work, self.letters.of(work, topic, error))

    def _send_letter(self, work: Work, letter: OutMessage) -> None:
        self._queue(letter, partial(self._dead_lettered, work, letter))

    def _queue(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        # Behind waiting ones, or outputs of one lane would overtake each other.
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
        """Send what did not fit before, or is due again; called inside the door."""
        while self._again and self._again[0][0] <= time.monotonic():
            _, works, produce = self._again.popleft()
            if any(_waits(work) for work in works):  # otherwise its epoch has ended
                produce()
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
        """Whether messages wait for room in the producer, or to be produced again."""
        return bool(self._waiting or self._again)

    def close(self, timeout_s: float) -> None:
        """Wait for messages in flight, and stop."""
        self._closed = True
        if self._producer is not None:
            self._producer.close(timeout_s)

    def take_answered(self) -> list[OutputsAnswer]:
        """Answers since the last call."""
        taken: list[OutputsAnswer] = []
        # The producer's thread and the one inside the door may both take answers: the other one may
        # have taken the last.
        with suppress(IndexError):
            while self.answered:
                taken.append(self.answered.popleft())
        return taken

    # -- on the producer's thread ------------------------------------------------------------------

    def _produce_again(self, works: list[Work], produce: Callable[[], None]) -> bool:
        """Schedule producing it again; False if no record waits for it any more."""
        if self._closed or not any(_waits(work) for work in works):
            return False
        self._again.append((time.monotonic() + AGAIN_S, works, produce))
        return True

    def _one_delivered(self, work: Work, message: OutMessage, delivery: Delivery) -> None:
        again = partial(self._send_one, work, message)
        if delivery.again and self._produce_again([work], again):
            return
        self._answer_one(work, delivery)

    def _answer_one(self, work: Work, delivery: Delivery) -> None:
        sent = () if delivery.sent is None else (delivery.sent,)
        if delivery.error is not None:
            self._refusals.report(delivery.error)
        self.answered.append((work, sent, delivery.error))

    def _delivered(self, pending: _Pending, index: int, delivery: Delivery) -> None:
        pending.answers[index] = delivery
        self._refusals.report(delivery.error)
        with self._lock:
            pending.left -= 1
            if pending.left:
                return
            first = pending.first_again()
            again = None if first is None else partial(self._send_from, pending, first)
            if first is not None and again and self._produce_again(pending.works, again):
                pending.left = len(pending.messages) - first
                return
            pending.error = pending.reason()
        sent = pending.sent()
        self.answered.extend((work, sent, pending.error) for work in pending.works)

    def _dead_lettered(self, work: Work, letter: OutMessage, delivery: Delivery) -> None:
        if delivery.error is not None:
            other = self.letters.instead(work.record, letter, delivery.error)
            if other is not None:
                self._waiting.append((other, partial(self._dead_lettered, work, other)))
                return
        again = partial(self._send_letter, work, letter)
        if delivery.again and self._produce_again([work], again):
            return
        self._answer_one(work, delivery)


def _waits(work: Work) -> bool:
    """Whether the engine still waits for the record's outputs."""
    return work.state == SENDING


REPORTED_MAX = 100  # different reasons in one run; topics that come from records could be more


class Refusals:
    """Logs each reason for refused outputs once: the failed attempts alone do not show it.

    `output=` and dead letters are checked before the start; the topic of a `Produce(topic=...)` is
    known only when it is sent.
    """

    def __init__(self) -> None:
        #: (topic, fix)
        self._reported: set[tuple[str, str]] = set()

    def report(self, error: ErrorInfo | None) -> None:
        """Report a broker's answer; ignores None, and errors without a fix."""
        cure = "" if error is None else OUTPUT_CURES.get(error.type, "")
        if error is None or not cure:
            return
        where = error.message.partition(": ")[0], cure
        if where not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add(where)
            event("error", "output refused", reason=error.message, next=cure)
