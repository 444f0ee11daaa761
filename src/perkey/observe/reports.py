"""A member's reports to its group: its snapshot, compressed, in a compacted topic.

The key is group and member, so the topic keeps the last report of each. A member that leaves writes
a tombstone; one that was killed is detected by the age of its last report.

A client with write access to the topic may write anything, and a group runs several versions during
a rollout. So each report is limited in size and checked against one table: a missing field gets its
default, a field that the table does not name is dropped, and one of the wrong type rejects this
report only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from perkey import guard
from perkey.account.blockers import BLOCKERS_MAX, LISTED_MAX
from perkey.account.picture import CELLS, CELLS_MAX, MAPS_MAX
from perkey.account.shown import shown_text
from perkey.codec import zstd
from perkey.kafka.ports import Delivery, OutMessage, ProducerPort
from perkey.observe.overview import most_left
from perkey.reasons import HALTS, LOOKED_UP, PLACES

EVERY_S = 5.0
#: after a change of state a report is written this soon
LOOK_S = 0.5
#: a member whose last report is older than this is silent: killed or disconnected
SILENT_S = 3 * EVERY_S
#: most partitions in a report; those with the most remaining records go in
PARTITIONS_MAX = 2_000
#: a member that has been silent for so long is no longer shown
FORGOTTEN_S = 3600.0
#: most bytes of a report's JSON
REPORT_BYTES_MAX = 2**20
#: most members of a group that are shown, and most bytes of their reports together: a parsed row
#: takes about 1 KiB, however short it was written
MEMBERS_MAX = 1_000
GROUP_BYTES_MAX = 64 * 2**20
ROW_BYTES = 1024
#: how the topic is created: the broker deletes replaced reports within minutes, not weeks, and
#: stamps records with its own clock
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
}


def key_of(group: str, member: str) -> bytes:
    """The record key of a member's reports."""
    return json.dumps([group, member], separators=(",", ":")).encode()


def packed(shot: Mapping[str, Any]) -> bytes:
    """A snapshot as the value of a report; the lists are shortened if it is too large."""
    rows = sorted(shot["partitions"], key=most_left)
    most = PARTITIONS_MAX
    while True:
        lists = {name: rows[:most] for name, rows in shot.items() if isinstance(rows, list)}
        report = {**shot, **lists, "partitions": rows[:most]}
        if left_out := max(0, len(rows) - most):
            report["partitions_left_out"] = left_out
        text = json.dumps(report, separators=(",", ":"), default=str).encode()
        if len(text) <= REPORT_BYTES_MAX or not most:
            return zstd.compress(text)
        most //= 2


# -- what a report may be --------------------------------------------------------------------------


class BadReport(Exception):
    """A record that is not a valid report, with the reason."""


class _Strange(Exception):
    """A row with a value that this version does not know: the row is left out."""


class Field(NamedTuple):
    """The type of a value, and the default if it is missing."""

    check: Callable[[Any], Any]
    missing: Any


_REQUIRED, _ABSENT = object(), object()
_NUMBER_MAX = 2.0**63


def _refuse(value: Any, wanted: str) -> BadReport:
    shown = value if isinstance(value, str | int | float) else type(value).__name__
    return BadReport(f"{shown_text(str(shown), 40)} where {wanted} is expected")


def _number(value: Any) -> Any:
    if type(value) not in (int, float) or not -_NUMBER_MAX < value < _NUMBER_MAX:  # NaN neither
        raise _refuse(value, "a number")
    return value


def _whole(value: Any) -> Any:
    if type(value) is not int or not -_NUMBER_MAX < value < _NUMBER_MAX:
        raise _refuse(value, "a whole number")
    return value


def _flag(value: Any) -> Any:
    if type(value) is not bool:
        raise _refuse(value, "true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _refuse(value, "text")
    return shown_text(value)


def _lines(value: Any) -> str:
    if type(value) is not str:
        raise _refuse(value, "text")
    return "\n".join(shown_text(line) for line in value[:20_000].splitlines())


def _word(known: Iterable[str]) -> Callable[[Any], str]:
    words = frozenset(known)

    def check(value: Any) -> str:
        if _text(value) not in words:
            raise _Strange
        return str(value)

    return check


def _cells(letters: Iterable[str]) -> Callable[[Any], str]:
    known = frozenset(letters)

    def check(value: Any) -> str:
        if type(value) is not str:
            raise _refuse(value, "text")
        if len(value) > CELLS_MAX or not known >= set(value):
            raise _Strange
        return value

    return check


def _maybe(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _row(table: Mapping[str, Field]) -> Callable[[Any], dict[str, Any]]:
    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _refuse(value, "an object")
        row = {}
        for name, (check, missing) in table.items():
            if name in value:
                try:
                    row[name] = check(value[name])
                except BadReport as error:
                    raise BadReport(f"{name}: {error}") from None
            elif missing is _REQUIRED:
                raise BadReport(f"{name} is missing")
            elif missing is not _ABSENT:
                row[name] = type(missing)(missing) if missing in ({}, []) else missing
        return row

    return check


def _list(check: Callable[[Any], Any], most: int) -> Callable[[Any], list[Any]]:
    def checked(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _refuse(value, "a list")
        rows = []
        for one in value[:most]:
            try:
                rows.append(check(one))
            except _Strange:  # written by a later version
                continue
        return rows

    return checked


def _each(check: Callable[[Any], Any], most: int) -> Callable[[Any], dict[str, Any]]:
    def checked(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _refuse(value, "an object")
        return {_text(name): check(value[name]) for name in list(value)[:most]}

    return checked


NAMES_MAX = 200
_A_NUMBER, _COUNT, _IS = Field(_number, 0), Field(_whole, 0), Field(_flag, missing=False)
_SOME_NUMBER, _SOME_TEXT = Field(_maybe(_number), None), Field(_maybe(_text), None)
#: null while the start offset of a partition is not known
_UNKNOWN = Field(_maybe(_whole), None)
_TEXT, _NAME, _PLACE = Field(_text, ""), Field(_text, _REQUIRED), Field(_whole, _REQUIRED)
_WHERE = {"topic": _NAME, "partition": _PLACE}
_BUCKETS = Field(
    _maybe(
        _row(
            {
                "le": Field(_list(_number, NAMES_MAX), []),
                "counts": Field(_list(_whole, NAMES_MAX), []),
                "sum": _A_NUMBER,
            }
        )
    ),
    None,
)
_COUNTS = Field(_each(_whole, NAMES_MAX), {})
_PARTITION = {
    **_WHERE, "handler": _TEXT, "epoch": _UNKNOWN, "state": _TEXT, "frontier": _UNKNOWN,
    "committed": _UNKNOWN, "committed_since": _SOME_NUMBER, "committed_for_s": _SOME_NUMBER,
    "commit": _TEXT, "highest_seen": _UNKNOWN, "end": _UNKNOWN, "done_beyond": _COUNT,
    "remaining": _UNKNOWN, "remaining_is_bound": _IS, "oldest_not_done": _UNKNOWN,
    "oldest_age_s": _SOME_NUMBER, "buffered": _COUNT, "in_flight": _COUNT, "retrying": _COUNT,
    "parked": _COUNT, "places": _COUNTS, "unfetched": _COUNT, "lag": _UNKNOWN, "map_chars": _COUNT,
    "map_limit": _COUNT, "map_used": Field(_number, _ABSENT), "past_map": _COUNT,
    "not_remembered": _COUNT,
    "paused": _IS, "paused_by": Field(_list(_text, NAMES_MAX), []),
    "place": _SOME_TEXT, "place_for_s": _SOME_NUMBER, "place_reason": _SOME_TEXT,
}  # fmt: skip
_HANDLER = {
    **dict.fromkeys((
        "done", "failures", "retries", "dead_lettered", "skipped", "parked", "superseded",
        "overdue", "in_flight", "concurrency",
    ), _COUNT),
    "rate_per_s": _A_NUMBER, "ordering": Field(_text, _ABSENT),
    "repeats": Field(_whole, _ABSENT),
    "latency_ms": Field(_row({"p50": _SOME_NUMBER, "p99": _SOME_NUMBER}), {}),
    **dict.fromkeys(("latency_buckets", "age_buckets", "wait_buckets"), _BUCKETS),
}  # fmt: skip
_BLOCKER = {
    **_WHERE, "offset": _PLACE, "handler": _TEXT,
    "place": Field(_word(place.name for place in (*PLACES, *LOOKED_UP)), _REQUIRED),
    "waiting_behind": _COUNT, "done_beyond": _COUNT, "at_frontier": _IS, "key": _SOME_TEXT,
    "since": _SOME_NUMBER, "for_s": _SOME_NUMBER, "attempts": _COUNT,
    "attempts_max": Field(_maybe(_whole), None), "timeout_s": _SOME_NUMBER,
    "due_in_s": _SOME_NUMBER,
    "last_error": Field(_maybe(_row({"type": _TEXT, "message": _TEXT})), None),
    "story": Field(_list(_row({"at": _A_NUMBER, "what": _TEXT}), NAMES_MAX), []),
    "executor": _TEXT, "stack": Field(_list(_text, NAMES_MAX), []),
    "until": _SOME_NUMBER, "by": _SOME_TEXT, "reason": _SOME_TEXT, "error_hash": _SOME_TEXT,
}  # fmt: skip
#: a parked or held record; rows of these lists have no `story`
_WAITING = {
    name: field for name, field in _BLOCKER.items()
    if name not in ("done_beyond", "at_frontier", "timeout_s", "executor", "stack", "story")
}  # fmt: skip
_HALT = {
    "cause": Field(_word(cause.name for cause in HALTS), _REQUIRED),
    "handler": Field(_text, _ABSENT), "topic": Field(_maybe(_text), _ABSENT),
    "partition": Field(_whole, _ABSENT), "mode": Field(_text, _ABSENT),
    "for_s": Field(_number, _ABSENT), "stable_end": Field(_whole, _ABSENT),
    "end": Field(_whole, _ABSENT), "reason": Field(_text, _ABSENT),
    "calls": Field(_whole, _ABSENT), "concurrency": Field(_whole, _ABSENT),
    "since": Field(_number, _ABSENT), "oldest": Field(_row(_BLOCKER), _ABSENT),
    "frontier": Field(_whole, _ABSENT), "waiting": Field(_whole, _ABSENT),
    "behind": Field(_whole, _ABSENT), "until": Field(_number, _ABSENT),
    "value": Field(_text, _ABSENT), "failed": Field(_whole, _ABSENT),
    "exhausted": Field(_whole, _ABSENT), "ended": Field(_whole, _ABSENT),
    "probe_s": Field(_number, _ABSENT), "budget": Field(_text, _ABSENT),
    "why": Field(_text, _ABSENT),
    "per_s": Field(_maybe(_number), _ABSENT), "in_flight": Field(_maybe(_whole), _ABSENT),
    "share": Field(_number, _ABSENT), "due_in_s": Field(_number, _ABSENT),
    "error": Field(_maybe(_row({"type": _TEXT, "message": _TEXT})), _ABSENT),
}  # fmt: skip
_FAILURE = {
    "handler": _TEXT, "type": _TEXT, "attempts": _COUNT, "parked": _COUNT, "dead_lettered": _COUNT,
    "skipped": _COUNT, "first_at": _A_NUMBER, "last_at": _A_NUMBER,
    "example": Field(_row({
        "topic": _TEXT, "partition": _COUNT, "offset": _COUNT, "key": _SOME_TEXT,
        "attempt": _COUNT, "message": _TEXT, "traceback": Field(_lines, ""),
    }), _REQUIRED),
}  # fmt: skip
_MAP = {
    **_WHERE, "from": _PLACE, "to": _PLACE, "per_cell": _PLACE,
    "cells": Field(_cells(CELLS), _REQUIRED), "shares": Field(_cells("0123456789"), _ABSENT),
}  # fmt: skip
#: The fields of a report; other fields of a snapshot do not reach the other members.
SHAPE = {
    "state": _TEXT,
    "at": _A_NUMBER,
    "app": Field(
        _row({
            "group": _NAME, "member": _NAME, "pid": _COUNT, "host": _TEXT,
            "started_at": _A_NUMBER, "version": _TEXT,
        }),
        _REQUIRED,
    ),
    "partitions": Field(_list(_row(_PARTITION), PARTITIONS_MAX), []),
    "partitions_left_out": Field(_whole, _ABSENT),
    "handlers": Field(_each(_row(_HANDLER), NAMES_MAX), {}),
    "blockers": Field(_list(_row(_BLOCKER), BLOCKERS_MAX), []),
    "parked": Field(_list(_row(_WAITING), LISTED_MAX), []), "parked_left_out": _COUNT,
    "on_hold": Field(_list(_row(_WAITING), LISTED_MAX), []), "on_hold_left_out": _COUNT,
    "maps": Field(_list(_row(_MAP), MAPS_MAX), []),
    "halts": Field(_list(_row(_HALT), PARTITIONS_MAX), []),
    "holds": Field(_list(_text, NAMES_MAX), []),
    "counts": _COUNTS,
    "control": Field(
        _maybe(
            _row(
                {"topic": _TEXT, "unread_s": _A_NUMBER, "reason": _TEXT, "refused": _COUNT},
            )
        ),
        None,
    ),
    "failures": Field(_list(_row(_FAILURE), NAMES_MAX), []),
    "commit_buckets": _BUCKETS,
    "callback_errors": _COUNT,
    "dead_letters_cut": _COUNT,
    "poll_gap_max_s": _A_NUMBER,
    "poll_gap_recent_s": _A_NUMBER,
}  # fmt: skip
_checked = _row(SHAPE)


def unpacked(value: bytes) -> tuple[dict[str, Any], int]:
    """The snapshot of a report, and its size in bytes; raises BadReport for an invalid one."""
    try:
        text, _ = zstd.decompress(value, REPORT_BYTES_MAX)
    except ValueError as error:
        raise BadReport(str(error)) from None
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        raise BadReport("it is not JSON") from None
    shot = _checked(report)
    rows = sum(len(rows) for rows in shot.values() if isinstance(rows, list))
    return shot, len(text) + ROW_BYTES * rows


class GroupReports:
    """The last report of each member of one group, each parsed once. Not thread-safe."""

    def __init__(self, group: str, refused: Callable[[str], None]) -> None:
        """`refused` takes one line for each invalid report."""
        self._group, self._refused = group, refused
        #: key -> the value, its snapshot (None for an invalid one) and its size
        self._read: dict[bytes, tuple[bytes, dict[str, Any] | None, int]] = {}

    def shots(self, words: Mapping[bytes, Any], now: float) -> list[dict[str, Any]]:
        """Snapshots by `key -> Word`, each with `silent_s`; without members silent for an hour."""
        found: list[dict[str, Any]] = []
        room, before, self._read = GROUP_BYTES_MAX, self._read, {}
        for key in sorted(words, key=lambda key: -words[key].at)[:MEMBERS_MAX]:
            word = words[key]
            value, at = word.value, word.at
            known = before.get(key)
            if known is None or known[0] is not value:
                known = value, *self._opened(key, value)
            _, shot, size = self._read[key] = known
            silent_s = silence_s(at, now)
            if shot is None or silent_s >= FORGOTTEN_S:
                continue
            room -= size
            if room < 0:
                self._refused(f"the group's reports have more than {GROUP_BYTES_MAX:,} bytes")
                break
            found.append({**shot, "at": at, "silent_s": silent_s})
        return sorted(found, key=lambda shot: str(shot["app"]["member"]))

    def _opened(self, key: bytes, value: bytes) -> tuple[dict[str, Any] | None, int]:
        try:
            shot, size = unpacked(value)
            if key_of(shot["app"]["group"], shot["app"]["member"]) != key:
                raise BadReport("its key is of another member")
        except (BadReport, _Strange) as error:
            shown = shown_text(key.decode(errors="backslashreplace"), 100)
            self._refused(f"{shown}: {error}")
            return None, 0
        return (shot, size) if shot["app"]["group"] == self._group else (None, 0)


def silence_s(at: float, now: float) -> float:
    """For how long a member whose last report is of `at` has been silent; 0 if it is not."""
    age_s = now - at
    return round(age_s, 1) if age_s > SILENT_S else 0.0


def send(producer: ProducerPort, message: OutMessage, failed: Callable[[str], None]) -> None:
    """Queue it; `failed` gets the reason if it is not queued, or not stored."""

    def answered(delivery: Delivery) -> None:
        if delivery.error is not None:
            failed(delivery.error.line)

    try:
        producer.send(message, answered)
    except BufferError as error:
        failed(str(error))


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
        """`state` must be cheap, as it is called often; `failed` gets errors of refused reports."""
        self._topic = topic
        self._state = state
        self._snapshot = snapshot
        self._producer = make_producer()
        self._failed = failed
        self._over = threading.Event()
        self._key = b""
        self._thread = guard.thread("perkey-reports", self._run)
        self._thread.start()

    def _run(self) -> None:
        due, before, turns = 0.0, "", guard.Turns("perkey-reports")
        while not self._over.wait(LOOK_S):
            with turns.turn():
                state = self._state()
                if state != before or time.monotonic() >= due:
                    before, due = state, time.monotonic() + EVERY_S
                    shot = self._snapshot()
                    app = shot["app"]
                    self._key = key_of(app["group"], app["member"])
                    self._send(OutMessage(self._topic, packed(shot), self._key))

    def _send(self, message: OutMessage) -> None:
        send(self._producer, message, self._failed)

    def close(self) -> None:
        """The member leaves: its report is deleted."""
        self._over.set()
        self._thread.join(2.0)
        if self._key:
            self._send(OutMessage(self._topic, None, self._key))
        self._producer.flush(2.0)
        self._producer.close(1.0)
