"""Commands to a group as records of its control topic, the members' answers, and their beats.

Pure. A compacted topic keeps what was written last under each key, so commands with the same
target have the same key, and the last one counts. Every client that may write to the topic may
command, and may write anything: what is not exact is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from weft.account.shown import shown_text
from weft.errors import ConfigError
from weft.numeric import is_number, is_whole
from weft.observe.orders import FOR_MAX_S, OFFSET_MAX, RECORDS_MAX, Answer, Order, order_of

#: how the topic is made. The broker's clock decides what has expired; nothing lasts longer than
#: FOR_MAX_S, so a day more is kept.
TOPIC_CONFIG: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(int(FOR_MAX_S + 86_400) * 1000),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
    "message.timestamp.type": "LogAppendTime",
}
#: every member writes that it follows the topic; who has not for SILENT_S is gone or cut off
BEAT_S = 10.0
SILENT_S = 35.0
#: for so long a command that is not for later owners is obeyed, and any command is answered
FRESH_S = 60.0
OUTCOMES: Final = ("done", "unchanged", "would", "refused", "not here")
COMMAND, ANSWER, BEAT = "command", "answer", "member"
_KINDS = (COMMAND, ANSWER, BEAT)
#: what ends what: the last of both counts
_SUBJECTS: Final = {
    "pause": "pause", "resume": "pause", "set": "set", "hold": "hold", "release": "hold",
    "retry": "hold",
}  # fmt: skip
#: these stay true as long as the longest command that they end
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
    """Who becomes a member, or an owner, later obeys it, too."""
    return not (order.dry_run or _of_now(order)) and order.action in (*_ENDED_BY, *_ENDS, "set")


def ends(order: Order) -> bool:
    """It ends another one; nothing is in force by it."""
    return order.action in _ENDS


def of_now(key: bytes) -> bool:
    """Whether what stands under this key is for no later member: the first to be forgotten."""
    kind, _, what = kind_of(key) or ("", "", ())
    return kind == ANSWER or (kind == COMMAND and what[:1] == ("once",))


def _of_now(order: Order) -> bool:
    """It is about records, or about what members have now."""
    return bool(order.records) or order.where is not None


def left_s(order: Order, age_s: float) -> float:
    """How long it is still to be obeyed; at 0 and below it has expired."""
    if not lasts(order):
        return FRESH_S - age_s
    return (FOR_MAX_S if order.action in _ENDS else order.for_s) - age_s


def packed(order: Order) -> bytes:
    """A command as a record's value."""
    return json.dumps(order.row(), separators=(",", ":")).encode()


def unpacked(group: str, key: bytes, value: bytes) -> Order:
    """The command of a record; raises ConfigError for what is none."""
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
    """What a tombstone in place of a command means; None: nothing."""
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
    """A member's answer; raises ConfigError for what is none."""
    try:
        given = json.loads(value)
        rows = [_row(one) for one in given["rows"][:RECORDS_MAX]]
        member, outcome, detail = given["member"], given["outcome"], given["detail"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError("it is no answer") from None
    until = given.get("until")
    until = until if is_number(until) else None
    if outcome not in OUTCOMES or not (isinstance(member, str) and isinstance(detail, str)):
        raise ConfigError("it is no answer")
    return Answer(shown_text(member), outcome, shown_text(detail, 2_000), until, rows)


def _row(given: Mapping[str, Any]) -> dict[str, Any]:
    """One record of an answer."""
    for name, most in (("partition", 2**31 - 1), ("offset", OFFSET_MAX)):
        if given[name] is not None and not is_whole(given[name], -1, most):
            raise ValueError
    texts = {name: shown_text(str(given[name])) for name in ("topic", "outcome", "detail")}
    return {**texts, "partition": given["partition"], "offset": given["offset"]}
