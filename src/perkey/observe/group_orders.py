"""Commands to a group as records of its control topic, the members' answers and heartbeats.

Pure. A compacted topic keeps the last record of each key, so commands with the same target have
the same key, and the last one counts. Any client with write access to the topic can command and
can write anything, so whatever is not exactly right is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from perkey.account.shown import shown_text
from perkey.errors import ConfigError
from perkey.numeric import is_number, is_whole
from perkey.observe.orders import FOR_MAX_S, OFFSET_MAX, RECORDS_MAX, Answer, Order, order_of

#: how the topic is created. The broker's clock decides what has expired; no command lasts longer
#: than FOR_MAX_S, so the retention is one day more.
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(int(FOR_MAX_S + 86_400) * 1000),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
}
#: members write heartbeats; one without a heartbeat for SILENT_S is gone or disconnected
BEAT_S = 10.0
SILENT_S = 35.0
#: how long a command that is not for later owners is obeyed, and any command is answered
FRESH_S = 60.0
OUTCOMES: Final = ("done", "unchanged", "would", "refused", "not here")
COMMAND, ANSWER, BEAT = "command", "answer", "member"
_KINDS = (COMMAND, ANSWER, BEAT)
#: action -> the action that it ends; the last one of both counts
_SUBJECTS: Final = {
    "pause": "pause", "resume": "pause", "set": "set", "hold": "hold", "release": "hold",
    "retry": "hold",
}  # fmt: skip
#: these remain as long as the longest command that they end
_ENDS: Final = ("resume", "release")
_ENDED_BY: Final = {"pause": "resume", "hold": "release"}


def key_of(kind: str, group: str, *what: Any) -> bytes:
    """The key of a record."""
    return json.dumps([kind, group, *what], separators=(",", ":")).encode()


def kind_of(key: bytes) -> tuple[str, str, tuple[Any, ...]] | None:
    """Kind, group and the rest of a key; None for a key of another kind."""
    try:
        kind, group, *what = json.loads(key)
    except (ValueError, TypeError, RecursionError):
        return None
    known = kind in _KINDS if isinstance(kind, str) else False
    return (kind, group, tuple(what)) if known and isinstance(group, str) else None


def command_key(group: str, order: Order) -> bytes:
    """The key of a command: that of its target, or a separate one if it is for now only."""
    if order.dry_run or _of_now(order) or order.action not in _SUBJECTS:
        return key_of(COMMAND, group, "once", order.id)
    target = [order.topic, order.handler, order.key, sorted(order.settings)]
    return key_of(COMMAND, group, _SUBJECTS[order.action], *target)


def lasts(order: Order) -> bool:
    """Whether members and owners that start later also obey it."""
    return not (order.dry_run or _of_now(order)) and order.action in (*_ENDED_BY, *_ENDS, "set")


def ends(order: Order) -> bool:
    """Whether it only ends another command; it leaves nothing in force."""
    return order.action in _ENDS


def of_now(key: bytes) -> bool:
    """Whether a key's command is not for later members: the first ones to be dropped."""
    kind, _, what = kind_of(key) or ("", "", ())
    return kind == ANSWER or (kind == COMMAND and what[:1] == ("once",))


def _of_now(order: Order) -> bool:
    """Whether it concerns records, or what members hold now."""
    return bool(order.records) or order.where is not None


def left_s(order: Order, age_s: float) -> float:
    """For how much longer it is obeyed; 0 or less: it has expired."""
    if not lasts(order):
        return FRESH_S - age_s
    return (FOR_MAX_S if order.action in _ENDS else order.for_s) - age_s


def packed(order: Order) -> bytes:
    """A command as a record's value."""
    return json.dumps(order.row(), separators=(",", ":")).encode()


def unpacked(group: str, key: bytes, value: bytes) -> Order:
    """The command of a record; raises ConfigError if it is invalid."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        raise ConfigError("it is not JSON") from None
    order = order_of(given)
    if not order.id:
        raise ConfigError("a command by a topic has an id")
    if order.action == "stop":
        raise ConfigError("stop is not given by a topic: members that start would stop again")
    if order.action == "skip" and not (order.records or order.dry_run):
        raise ConfigError("a skip by a topic names records: two owners would skip two of a key")
    if command_key(group, order) != key:
        raise ConfigError("its key is of another command")
    return order


def tombstoned(order: Order) -> Order | None:
    """The command that a tombstone represents, if any."""
    if not lasts(order) or order.action in _ENDS:
        return None
    reason = "its record was deleted from the control topic"
    if order.action == "set":
        return replace(order, settings=dict.fromkeys(order.settings), reason=reason)
    return replace(order, action=_ENDED_BY[order.action], reason=reason)


def answer_key(group: str, order_id: str, member: str) -> bytes:
    """The key of a member's answer."""
    return key_of(ANSWER, group, order_id, member)


def answer_of(value: bytes) -> Answer:
    """A member's answer; raises ConfigError if it is invalid."""
    try:
        given = json.loads(value)
        rows = []
        for one in given["rows"][:RECORDS_MAX]:
            for name, most in (("partition", 2**31 - 1), ("offset", OFFSET_MAX)):
                if one[name] is not None and not is_whole(one[name], -1, most):
                    raise ValueError
            texts = {name: shown_text(str(one[name])) for name in ("topic", "outcome", "detail")}
            rows.append({**texts, "partition": one["partition"], "offset": one["offset"]})
        member, outcome, detail = given["member"], given["outcome"], given["detail"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError("it is no answer") from None
    until = given.get("until")
    until = until if is_number(until) else None
    if outcome not in OUTCOMES or not (isinstance(member, str) and isinstance(detail, str)):
        raise ConfigError("it is no answer")
    return Answer(shown_text(member), outcome, shown_text(detail, 2_000), until, rows)
