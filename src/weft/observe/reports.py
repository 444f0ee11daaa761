"""A member's reports to its group: its snapshot, compressed, in a compacted topic.

The key is group and member, so the topic keeps the last word of each; a member that leaves writes a
tombstone, and one that was killed is known by the age of its last word.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.codec import zstd
from weft.kafka import guard
from weft.kafka.ports import Delivery, OutMessage, ProducerPort

EVERY_S = 5.0
#: how soon a change of state is seen
LOOK_S = 0.5
#: a member whose last word is older than this is silent: killed, or cut off
SILENT_S = 3 * EVERY_S
#: partitions that a report names; those with most left go in
PARTITIONS_MAX = 2_000
#: a member that has said nothing for so long is not shown any more
FORGOTTEN_S = 3600.0
REPORT_BYTES_MAX = 64 * 2**20
#: how the topic is made: the broker drops what has been said again within minutes, not weeks
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}


def key_of(group: str, member: str) -> bytes:
    """Under which a member's last word is kept."""
    return json.dumps([group, member], separators=(",", ":")).encode()


def packed(shot: Mapping[str, Any]) -> bytes:
    """A snapshot as a report carries it."""
    rows = sorted(shot["partitions"], key=lambda row: row["remaining"], reverse=True)
    left_out = max(0, len(rows) - PARTITIONS_MAX)
    more = {"partitions_left_out": left_out} if left_out else {}
    told = {**shot, "partitions": rows[:PARTITIONS_MAX], **more}
    return zstd.compress(json.dumps(told, separators=(",", ":"), default=str).encode())


def unpacked(value: bytes) -> dict[str, Any] | None:
    """The snapshot of a report; None for what is none."""
    try:
        text, _ = zstd.decompress(value, REPORT_BYTES_MAX)
        told = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(told, dict) and isinstance(told.get("app"), dict) and "partitions" in told
    return told if whole else None


def of_group(
    words: Iterable[tuple[bytes | None, bytes | None]], group: str, now: float
) -> list[dict[str, Any]]:
    """The last word of each member of the group; who is silent has `silent_s`.

    Who is silent for an hour is left out: a killed member's last word stays in the topic for ever.
    """
    last: dict[bytes, dict[str, Any] | None] = {}
    for key, value in words:
        if key is not None:
            last[key] = None if value is None else unpacked(value)
    shots = [shot for shot in last.values() if shot and shot["app"].get("group") == group]
    for shot in shots:
        shot["silent_s"] = silence_s(shot, now)
    shots = [shot for shot in shots if shot["silent_s"] < FORGOTTEN_S]
    return sorted(shots, key=lambda shot: str(shot["app"].get("member")))


def silence_s(shot: Mapping[str, Any], now: float) -> float:
    """How long its member has said nothing; 0 while it speaks as it should."""
    age_s = now - float(shot.get("at", 0.0))
    return round(age_s, 1) if age_s > SILENT_S else 0.0


class Reporter:
    """Writes one member's reports until it is closed."""

    def __init__(
        self,
        topic: str,
        state: Callable[[], str],
        snapshot: Callable[[], dict[str, Any]],
        make_producer: Callable[[], ProducerPort],
        failed: Callable[[str], None],
    ) -> None:
        """`state` is cheap, and looked at often; `failed` hears what the broker does not take."""
        self._topic = topic
        self._state = state
        self._snapshot = snapshot
        self._producer = make_producer()
        self._failed = failed
        self._over = threading.Event()
        self._key = b""
        self._thread = guard.thread("weft-reports", self._run)
        self._thread.start()

    def _run(self) -> None:
        due, before = 0.0, ""
        while not self._over.wait(LOOK_S):
            state = self._state()
            if state != before or time.monotonic() >= due:
                before, due = state, time.monotonic() + EVERY_S
                self._write(self._snapshot())

    def _write(self, shot: dict[str, Any]) -> None:
        app = shot["app"]
        self._key = key_of(app["group"], app["member"])
        self._send(OutMessage(self._topic, packed(shot), self._key))

    def _send(self, message: OutMessage) -> None:
        try:
            self._producer.send(message, self._answered)
        except BufferError as error:
            self._failed(str(error))

    def _answered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._failed(delivery.error.line)

    def close(self) -> None:
        """The member leaves: its word is taken back."""
        self._over.set()
        self._thread.join(2.0)
        if self._key:
            self._send(OutMessage(self._topic, None, self._key))
        self._producer.flush(2.0)
        self._producer.close(1.0)
