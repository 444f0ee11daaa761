"""What goes into a dead-letter topic: the original record, and why it is there.

A letter that its topic does not take because of its size gives up first its value, then the
original's headers, and at last all but the beginning of its key: what is left still says which
record it was and why it failed. That is never done without a word.
"""

from __future__ import annotations

import logging
import time

from weft.core.partition import Work
from weft.kafka.ports import OutMessage
from weft.runtime.logs import event
from weft.types import ErrorInfo, Headers, Record

_log = logging.getLogger("weft")

TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"})
HEADER_CHARS_MAX = 1_000
#: what a key that is too large is cut to
KEY_BYTES_MAX = 1_000
SAY_EVERY_S = 10.0

OURS = "__dlq.errors."
NO_VALUE = (f"{OURS}value.omitted", b"too large")
NO_HEADERS = (f"{OURS}headers.omitted", b"too large")
CUT_KEY = f"{OURS}key.size"


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
            error.line[:HEADER_CHARS_MAX].encode(errors="replace"),
        ),
    )
    return OutMessage(topic, record.value, record.key, headers, None, record.timestamp_ms)


def smaller(record: Record, letter: OutMessage) -> tuple[OutMessage, str] | None:
    """The letter without its largest part that can go next, and which; None: it can lose no more.

    Where it is empty already a part is passed over.
    """
    if letter.value is not None:
        return letter._replace(value=None, headers=(*letter.headers, NO_VALUE)), "value"
    originals = len(record.headers)
    if originals and NO_HEADERS not in letter.headers:
        # Ours stand behind the original's.
        return letter._replace(headers=(*letter.headers[originals:], NO_HEADERS)), "headers"
    if letter.key is not None and len(letter.key) > KEY_BYTES_MAX:
        told = (*letter.headers, (CUT_KEY, str(len(letter.key)).encode()))
        return letter._replace(key=letter.key[:KEY_BYTES_MAX], headers=told), "key"
    return None


class Cuts:
    """Counts what letters had to give up, and says so, at most every ten seconds."""

    def __init__(self) -> None:
        #: parts that were dropped: values, headers of a record, ends of keys
        self.count = 0
        self._said_at = float("-inf")

    def cut(self, record: Record, letter: OutMessage) -> OutMessage | None:
        """The letter without its next part; None when there is nothing to give up."""
        cut = smaller(record, letter)
        if cut is None:
            return None
        self.count += 1
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
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
