"""Commands to the group: a member follows the control topic, obeys, and answers there.

Lasting commands (pauses, settings, holds of keys) are also obeyed by members that start later,
until they expire by the broker's clock. The member writes heartbeats to the topic and reads them
back. So it knows the broker's time, and that the topic can be read; and the sender of a command
knows the members.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.errors import ConfigError
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import OutMessage, Word
from perkey.observe.group_orders import (
    BEAT,
    BEAT_S,
    COMMAND,
    FRESH_S,
    SILENT_S,
    answer_key,
    key_of,
    kind_of,
    lasts,
    left_s,
    of_now,
    tombstoned,
    unpacked,
)
from perkey.observe.orders import Answer, Order
from perkey.observe.reports import send
from perkey.runtime.logs import event

if TYPE_CHECKING:
    from perkey.kafka.connect import Connection

LOOK_S = 0.2
#: how long a start waits for the commands in force; then it continues without
READY_S = 10.0
#: refused records that are named in the log, each once
NAMED_MAX = 20


class GroupControl:
    """Follows the control topic for one member until it is closed."""

    def __init__(
        self,
        topic: str,
        group: str,
        member: str,
        clients: Connection,
        obey: Callable[[Order], Sequence[Answer]],
        *,
        beat_s: float = BEAT_S,
    ) -> None:
        """`obey`: passes a command to this member; `beat_s`: seconds between two heartbeats."""
        self._beat_s = beat_s
        self._topic, self._group, self._member, self._obey = topic, group, member, obey
        self._beat_key = key_of(BEAT, group, member)
        #: what was read, and the command if it is in force
        self._seen: dict[bytes, Word] = {}
        self._orders: dict[bytes, Order] = {}
        self._refused = self._expired = self._obeyed = 0
        #: when the first heartbeat was written that has not been read back
        self._waits_since: float | None = None
        self._beat_at, self._beats, self._echoed = 0.0, 0, 0
        self._run_id = secrets.token_hex(4)  # distinguishes heartbeats of a former run
        self._reason = ""
        self._failures = Sparse()
        self._over, self._ready = threading.Event(), threading.Event()
        self._producer = clients.producer(lambda: None, self._failed)
        self._words = clients.last_words(
            topic, self._is_ours, self._failed, whole=True, of_now=of_now
        )
        self._thread = guard.thread("perkey-control", self._run)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait, up to a limit, until commands in force are obeyed: before any record starts."""
        if not self._ready.wait(READY_S):
            reason = self._reason or "no answer yet"
            event(
                "warning", "control topic not read yet", topic=self._topic, reason=reason,
                seconds=READY_S, next="what is in force by it is obeyed when it can be read",
            )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """For the snapshot: for how long the topic could not be read, 0 while it can, and why."""
        since = self._waits_since
        silent_s = 0.0 if since is None else time.monotonic() - since
        if silent_s < SILENT_S:
            return {"topic": self._topic, "unread_s": 0.0, "reason": "", "refused": self._refused}
        return {
            "topic": self._topic, "unread_s": round(silent_s, 1),
            "reason": self._reason or "no answer", "refused": self._refused,
        }  # fmt: skip

    def close(self) -> None:
        """The member leaves: it stops following."""
        self._over.set()
        self._thread.join(2.0)
        self._send(self._beat_key, None)
        self._producer.flush(2.0)
        self._producer.close(1.0)
        self._words.close()

    # -- following -------------------------------------------------------------------------------

    def _run(self) -> None:
        turns = guard.Turns("perkey-control")
        while not self._over.is_set():
            with turns.turn():
                self._beat()
                words = self._words.last()
                self._note_echo(words)
                if self._words.is_read() and self._is_current():
                    self._look(words)
                    if not self._ready.is_set():
                        self._ready.set()
                        event(
                            "info", "control topic followed", topic=self._topic,
                            obeyed=self._obeyed, expired=self._expired, refused=self._refused,
                        )  # fmt: skip
            self._over.wait(LOOK_S)

    def _beat(self) -> None:
        now = time.monotonic()
        if self._beats and now - self._beat_at < self._beat_s:
            return
        self._beats, self._beat_at = self._beats + 1, now
        if self._waits_since is None:
            self._waits_since = now
        self._send(self._beat_key, self._beat_of(self._beats))

    def _beat_of(self, number: int) -> bytes:
        return json.dumps([self._run_id, number]).encode()

    def _note_echo(self, words: dict[bytes, Word]) -> None:
        word = words.get(self._beat_key)
        for number in range(self._echoed + 1, self._beats + 1):
            if word is not None and word.value == self._beat_of(number):
                self._echoed, self._reason = number, ""
                self._waits_since = None if number == self._beats else time.monotonic()

    def _is_current(self) -> bool:
        """Whether all was read that the topic had at the last heartbeat, so what is old is known.

        After a time also without: the member may have permission to read only.
        """
        since = self._waits_since
        limit_s = SILENT_S if self._echoed else READY_S
        return since is None or time.monotonic() - since >= limit_s

    def _look(self, words: dict[bytes, Word]) -> None:
        for key in [key for key in self._seen if key not in words]:
            del self._seen[key]  # one of too many keys: its command stays in force
            self._orders.pop(key, None)
        new = [(key, word) for key, word in words.items() if self._seen.get(key) != word]
        # The broker's clock is known from what was read last, which may be old without heartbeat.
        clock = self._words.now if self._waits_since is None else time.time
        for key, word in sorted(new, key=lambda entry: entry[1].at):
            self._seen[key] = word
            if key != self._beat_key:
                self._take(key, word, clock)
                self._beat()  # a command may wait for a commit
                if self._echoed < self._beats:  # otherwise each command would copy all words
                    self._note_echo(self._words.last())

    def _take(self, key: bytes, word: Word, clock: Callable[[], float]) -> None:
        if not word.value:
            order = self._orders.pop(key, None)
            ended = None if order is None else tombstoned(order)
            if ended is not None:
                self._obey(ended)
            return
        try:
            order = unpacked(self._group, key, word.value)
        except ConfigError as error:
            self._orders.pop(key, None)
            self._refuse(key, str(error))
            return
        age_s = max(0.0, clock() - word.at)
        still_s = left_s(order, age_s)
        if still_s <= 0 or not (lasts(order) or self._ready.is_set()):
            self._orders.pop(key, None)
            self._expired += 1
            return
        self._obeyed += 1
        self._orders[key] = order
        answers = self._obey(replace(order, for_s=min(order.for_s, still_s)))
        if age_s < FRESH_S:
            for answer in answers:
                text = json.dumps(answer.row(), separators=(",", ":"))
                self._send(answer_key(self._group, order.id, answer.member), text.encode())

    # -- changes of the topic ----------------------------------------------------------------------

    def _is_ours(self, key: bytes) -> bool:
        kind = kind_of(key)
        if kind is None:
            self._refuse(key, "its key is none of a command")
            return False
        return kind[:2] == (COMMAND, self._group) or key == self._beat_key

    def _refuse(self, key: bytes, reason: str) -> None:
        self._refused += 1
        if self._refused <= NAMED_MAX:
            event(
                "warning", "command record refused", topic=self._topic, reason=reason,
                key=key[:200].decode(errors="backslashreplace"), count=self._refused,
            )  # fmt: skip

    def _send(self, key: bytes, value: bytes | None) -> None:
        send(self._producer, OutMessage(self._topic, value, key), self._failed)

    def _failed(self, reason: str) -> None:
        self._reason = reason
        if self._failures.left_out() is not None:
            event("warning", "control topic fails", topic=self._topic, reason=reason)
