"""Produce outputs and dead letters, and report their acknowledgements.

The outputs of a record count as answered when all of them are; one that is refused fails
the whole attempt. Outputs that were not refused (no response, no broker) are produced again, for as
long as its record waits for it: the handler did its part, and no attempt is charged for it. When
the producer's queue is full the rest waits here and the engine starts nothing new until there is
room again.

A dead letter is the original record and the reason (`dead_letter`). It goes into the partition with
its record's own number; where the topic has fewer, its key decides. A letter that its topic does
not take because of its size gives up first its value, then the original's headers, and at last all
but the beginning of its key: the rest still identifies which record it was and why it failed. That
is always logged.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from weft.core.events import OutputsAnswer
from weft.core.states import SENDING
from weft.core.work import Work
from weft.kafka.ports import Delivery, OutMessage, ProducerPort
from weft.policies import DeadLetter
from weft.runtime.logs import event
from weft.runtime.shared import SharedOutputs
from weft.sparse import Sparse
from weft.types import ErrorInfo, Headers, Record, Sent

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"})
NO_PARTITION = "_UNKNOWN_PARTITION"
HEADER_CHARS_MAX = 1_000
#: what a key that is too large is cut to
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
#: of an earlier letter: these are replaced; what it had to give up stays marked
_FIELDS = "topic partition offset group handler delivery.count message replay.count replay.letter"
REPLACED = frozenset(OURS + name for name in _FIELDS.split())


def dead_letter(work: Work, topic: str, error: ErrorInfo, group: str) -> OutMessage:
    """The original record, with headers named as KIP-1191's; it has none for the handler."""
    record: Record = work.record
    theirs, replays = _before(record.headers) if record.headers else ((), 0)
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
    """What the letter may show of the record, and its headers; marked where that is not all."""
    kept = tuple(one for one in record.headers if one[0].startswith(OURS))
    if policy.transform is None:
        marked = (*record.headers, LEFT_OUT) if record.value is not None else record.headers
        return record._replace(value=None), marked
    try:
        made = policy.transform(record)
        value, headers = made.value, tuple(made.headers)
        if not (value is None or isinstance(value, bytes)):
            raise TypeError(f"the value it returned is of type {type(value).__name__}, not bytes")
    except BaseException as error:  # a user's function may raise anything: nothing of it is shown
        event(
            "error",
            "DeadLetter(transform=...) failed, the letter goes without value and headers",
            record=f"{record.topic}[{record.partition}]@{record.offset}",
            error=f"{type(error).__name__}: {error}",
        )
        return record._replace(value=None), (*kept, UNSHOWN, NO_HEADERS_SHOWN)
    own = tuple(one for one in headers if not one[0].startswith(OURS))
    if (value, own) == (record.value, tuple(one for one in record.headers if one not in kept)):
        return record, record.headers
    return record._replace(value=value, key=made.key), (*own, *kept, CHANGED)


def _before(headers: Headers) -> tuple[Headers, int]:
    """The headers without those of an earlier letter, and how often it has been replayed by now."""
    theirs = tuple(one for one in headers if one[0] not in REPLACED)
    if len(theirs) == len(headers):
        return headers, 0
    count = dict(headers).get(REPLAYS) or b""
    known = int(count) if count.isdigit() and len(count) < 10 else 0
    return theirs, min(known + 1, REPLAYS_MAX)


def smaller(letter: OutMessage) -> tuple[OutMessage, str] | None:
    """The letter without its largest part that can go next, and which; None: it can lose no more.

    Where it is empty already a part is passed over.
    """
    if letter.value is not None:
        return letter._replace(value=None, headers=(*letter.headers, NO_VALUE)), "value"
    ours = tuple(one for one in letter.headers if one[0].startswith(OURS))
    if len(ours) < len(letter.headers):
        return letter._replace(headers=(*ours, NO_HEADERS)), "headers"
    if letter.key is not None and len(letter.key) > KEY_BYTES_MAX:
        headers_left = (*letter.headers, (CUT_KEY, str(len(letter.key)).encode()))
        return letter._replace(key=letter.key[:KEY_BYTES_MAX], headers=headers_left), "key"
    return None


class Letters:
    """Makes a member's dead letters, and what is sent in place of one that was refused.

    Counts the omitted parts, and logs them at most every ten seconds.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        #: dead-letter topic -> the lowest partition that it turned out not to have
        self._ends: dict[str, int] = {}
        #: parts that were dropped: values, headers of a record, ends of keys
        self.count = 0
        self._sparse = Sparse()

    def of(self, work: Work, topic: str, error: ErrorInfo) -> OutMessage:
        """The letter of a record."""
        letter = dead_letter(work, topic, error, self._group)
        if topic in self._ends and work.record.partition >= self._ends[topic]:
            return letter._replace(partition=None)
        return letter

    def instead(self, record: Record, letter: OutMessage, error: ErrorInfo) -> OutMessage | None:
        """What to send after this refusal; None where no other letter would do better."""
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


AGAIN_S = 0.5  # delay before producing a message again that was not refused


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
        """What the broker has of them."""
        return tuple(one.sent for one in self.answers if one is not None and one.sent is not None)

    def reason(self) -> ErrorInfo | None:
        """Why they are not all stored: a refusal, if there is one."""
        failed = [one for one in self.answers if one is not None and one.error]
        failed.sort(key=lambda one: one.again)
        return failed[0].error if failed else None

    def first_again(self) -> int | None:
        """From which message on they are produced again; None where that is of no use.

        Those behind it go again as well, though stored: of one record they keep their order.
        """
        failed = [i for i, one in enumerate(self.answers) if one is not None and one.error]
        if not failed or not all((one := self.answers[i]) and one.again for i in failed):
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
        """`on_full(True)` when the producer takes no more for now, `on_full(False)` after that.

        The producer is made when there is something to send: many apps never send anything.
        """
        self._make_producer = make_producer
        self._producer: ProducerPort | None = None
        self._on_full = on_full
        self._waiting: deque[tuple[OutMessage, Callable[[Delivery], None]]] = deque()
        self._full = False
        self.letters = Letters(group)
        #: answers for the engine, taken by the member's turn
        self.answered: deque[OutputsAnswer] = deque()
        #: a batch's records join its outputs inside the door while they are answered outside
        self._lock = threading.Lock()
        #: to be produced again: not before this time, for whom, and how
        self._again: deque[tuple[float, list[Work], Callable[[], None]]] = deque()
        self._closed = False
        self._refusals = Refusals()

    def send(self, work: Work, messages: Sequence[OutMessage]) -> None:
        """Produce all outputs of a record."""
        if isinstance(messages, SharedOutputs):
            # Of a batch: sent for the first of its records, waited for by all.
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
        elif len(messages) == 1:  # most have one: no counting
            self._send_one(work, messages[0])
        else:
            self._send_from(_Pending(work, messages), 0)

    def _send_one(self, work: Work, message: OutMessage) -> None:
        self._queue(message, partial(self._one_delivered, work, message))

    def _send_from(self, pending: _Pending, first: int) -> None:
        for index in range(first, len(pending.messages)):
            self._queue(pending.messages[index], partial(self._delivered, pending, index))

    def send_dead_letter(self, work: Work, topic: str, error: ErrorInfo) -> None:
        """Produce the record as it came, with KIP-1191's headers."""
        self._send_letter(work, self.letters.of(work, topic, error))

    def _send_letter(self, work: Work, letter: OutMessage) -> None:
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
        """Send what did not fit before, or is due again; called inside the door."""
        while self._again and self._again[0][0] <= time.monotonic():
            _, works, produce = self._again.popleft()
            if any(_waits(work) for work in works):  # else its epoch has ended
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
        """Something waits for room in the producer, or to be produced again."""
        return bool(self._waiting or self._again)

    def close(self, timeout_s: float) -> None:
        """Wait for what is on its way, and stop."""
        self._closed = True
        if self._producer is not None:
            self._producer.close(timeout_s)

    def take_answered(self) -> list[OutputsAnswer]:
        """Answers that came since the last call."""
        taken: list[OutputsAnswer] = []
        # Taken by the producer's thread and by the one inside the door, also at the same time:
        # the other thread may have taken the last one.
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
    """The engine still waits for the record's outputs."""
    return work.state == SENDING


REPORTED_MAX = 100  # different reasons in one run; topics that come from records could be many more
CURES = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic with `weft topics create`, or correct its name",
    "TOPIC_AUTHORIZATION_FAILED": "give the producer's user the right WRITE on the topic",
    "TOPIC_EXCEPTION": "correct the topic's name",
}
CURES["_UNKNOWN_TOPIC"] = CURES["UNKNOWN_TOPIC_OR_PART"]


class Refusals:
    """Outputs that the broker refuses, each reason logged once: a record's failure alone is quiet.

    `output=` and dead letters are checked before the start; the topic of a `Produce(topic=...)` is
    known only when it is sent.
    """

    def __init__(self) -> None:
        #: where it was to go, and what would help
        self._reported: set[tuple[str, str]] = set()

    def report(self, error: ErrorInfo | None) -> None:
        """An answer of the broker; nothing for None, and for what will not help to know."""
        cure = "" if error is None else CURES.get(error.type, "")
        if error is None or not cure:
            return
        where = error.message.partition(": ")[0], cure
        if where not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add(where)
            event("error", "output refused", reason=error.message, next=cure)
