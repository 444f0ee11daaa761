"""Build a dead letter: the original record and the reason.

It goes into the partition with its record's own number; where the topic has fewer, its key decides.
A letter that its topic does not take because of its size gives up first its value, then the
original's headers, and at last all but the beginning of its key: the rest still identifies which
record it was and why it failed. That is never done without a word.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from weft.core.work import Work
from weft.kafka.ports import OutMessage
from weft.policies import DeadLetter
from weft.runtime.logs import event
from weft.types import ErrorInfo, Headers, Record

_log = logging.getLogger("weft")

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"})
NO_PARTITION = "_UNKNOWN_PARTITION"
HEADER_CHARS_MAX = 1_000
#: what a key that is too large is cut to
KEY_BYTES_MAX = 1_000
LOG_EVERY_S = 10.0

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
REPLACED = frozenset(
    OURS + name
    for name in (
        "topic",
        "partition",
        "offset",
        "group",
        "delivery.count",
        "message",
        "replay.count",
        "replay.letter",
    )
)


def dead_letter(work: Work, topic: str, error: ErrorInfo, group: str) -> OutMessage:
    """The original record, with headers named as in KIP-1191 (Kafka 4.4's broker-side ones)."""
    record: Record = work.record
    theirs, replays = _before(record.headers) if record.headers else ((), 0)
    policy = getattr(getattr(work.partition, "handler", None), "spec", None)
    policy = getattr(policy, "on_exhausted", None)
    if isinstance(policy, DeadLetter) and (policy.transform or not policy.copy_value):
        record, theirs = _shown(policy, record._replace(headers=theirs))
    headers: Headers = (
        *theirs,
        ("__dlq.errors.topic", record.topic.encode()),
        ("__dlq.errors.partition", str(record.partition).encode()),
        ("__dlq.errors.offset", str(record.offset).encode()),
        ("__dlq.errors.group", group.encode()),
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
            _log,
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
        self._logged_at = float("-inf")

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
        return self._cut(record, letter) if error.type in TOO_LARGE else None

    def _cut(self, record: Record, letter: OutMessage) -> OutMessage | None:
        """The letter without its next part; None when there is nothing to give up."""
        cut = smaller(letter)
        if cut is None:
            return None
        self.count += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            event(
                _log,
                "warning",
                "dead letter too large, a part is dropped: raise max.message.bytes of its topic",
                topic=letter.topic,
                dropped=cut[1],
                record=f"{record.topic}[{record.partition}]@{record.offset}",
                dropped_so_far=self.count,
            )
        return cut[0]
