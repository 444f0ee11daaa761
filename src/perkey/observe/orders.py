"""Commands to a running member and its answers: the same by socket, HTTP, page and topic.

Pure. Input is untrusted: `order_of` refuses whatever is not exactly right, in one line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

from perkey.core.states import DONE, RECORD_NAMES
from perkey.errors import ConfigError
from perkey.numeric import is_positive, is_whole
from perkey.where import FIELDS, Kind, parse

RUN_ACTIONS: Final = ("pause", "resume", "set", "stop")
#: actions on lanes and single records
RECORD_ACTIONS: Final = ("hold", "release", "retry", "skip")
ACTIONS: Final = (*RUN_ACTIONS, *RECORD_ACTIONS)
#: actions of earlier releases -> what replaces them
RETIRED: Mapping[str, str] = {
    "redo": "it is retired: `perkey dlq replay TOPIC` sends dead letters back, and `perkey replay "
    "module:app` handles a range of a topic again",
}
#: most records of one command
RECORDS_MAX = 1_000
KEY_CHARS_MAX = 16 * 2**10
OFFSET_MAX = 2**63 - 1
#: setting -> its unit
SETTINGS: Mapping[str, str] = {
    "concurrency": "calls",
    "rate_limit_per_s": "records per second",
    "timeout_s": "seconds of one attempt",
}
#: the fields that `where` may use for a record that a member holds
HERE_FIELDS: Mapping[str, Kind] = {
    **{name: FIELDS[name] for name in ("topic", "partition", "offset", "time", "key", "handler")},
    **{name: FIELDS[name] for name in ("error.type", "error.message", "attempts")},
    "state": (*RECORD_NAMES[:DONE], "held"),
}
#: instead of a value: as the handler was declared
DECLARED: Final = "default"
STOP_MODES: Final = ("in_flight", "buffered", "now")
FOR_S = 3600.0
FOR_MAX_S = 7 * 86400.0
REASON_CHARS_MAX = 200
NAME_CHARS_MAX = 300
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Order:
    """One command to a member."""

    action: str
    reason: str
    id: str
    #: this topic, or this handler; both None: the whole app
    topic: str | None = None
    handler: str | None = None
    #: name -> value; None: as declared
    settings: Mapping[str, float | None] = field(default_factory=dict)
    mode: str = "in_flight"
    for_s: float = FOR_S
    dry_run: bool = False
    #: the sender's name, as given; it is not verified
    claimed_by: str = ""
    #: RECORD_ACTIONS: the lane of this key, in `topic`
    key: str | None = None
    #: or these records in `topic`: partition and offset
    records: Sequence[tuple[int, int]] = ()
    #: or the lane of each record in `topic` that the member holds and that matches this condition
    where: str | None = None

    def row(self) -> dict[str, Any]:
        """JSON-able; `order_of` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}


class Answer(NamedTuple):
    """The answer of one member."""

    member: str
    #: "done", "unchanged", "would" (dry run), or "refused"
    outcome: str
    detail: str
    #: UNIX seconds at which it expires; None: it does not
    until: float | None = None
    #: RECORD_ACTIONS: for each record its topic, partition, offset, outcome, detail
    rows: Sequence[Mapping[str, Any]] = ()

    def row(self) -> dict[str, Any]:
        """JSON-able."""
        return self._asdict()


def order_of(given: object) -> Order:
    """Parse a command from a JSON object; raises ConfigError."""
    if not isinstance(given, Mapping):
        _refuse("a command is a JSON object")
    unknown = sorted(map(str, set(given) - set(Order.__slots__) - {"ask"}))
    if unknown:
        _refuse(f"a command has no field {unknown[0]!r:.60}")
    action = given.get("action")
    if isinstance(action, str) and action in RETIRED:
        _refuse(f"action {action!r}: {RETIRED[action]}")
    if action not in ACTIONS:
        _refuse(f"action {action!r:.60} is not known: one of {', '.join(ACTIONS)}")
    mode, dry_run = given.get("mode", "in_flight"), given.get("dry_run", False)
    if mode not in STOP_MODES:
        _refuse(f"mode {mode!r:.60} is not known: one of {', '.join(STOP_MODES)}")
    if not isinstance(dry_run, bool):
        _refuse("dry_run is true or false")
    topic, handler = (_text(given, name, NAME_CHARS_MAX) for name in ("topic", "handler"))
    key, records = _key(given.get("key")), _records(given.get("records") or ())
    where = given.get("where")
    if where is not None:
        if not isinstance(where, str):
            _refuse("where must be text")
        where = parse(where, HERE_FIELDS).text
    if action in RECORD_ACTIONS:
        meant = (key is not None) + bool(records) + (where is not None)
        if topic is None or handler is not None or meant != 1:
            _refuse(f"{action} takes a topic, and one of key, records, where")
    elif key is not None or records or where is not None:
        _refuse(f"{action} is of a topic or handler, not of single records")
    if topic is not None and handler is not None:
        _refuse("a topic has one handler: give topic or handler")
    if topic is not None and action == "set":
        _refuse("settings are of a handler: give handler, not topic")
    settings = _settings(given.get("settings") or {})
    if bool(settings) != (action == "set"):
        _refuse("set takes settings, such as concurrency=50, and no other command does")
    for_s = given.get("for_s", FOR_S)
    if not is_positive(for_s) or for_s > FOR_MAX_S:
        _refuse(f"for_s={for_s!r:.40}: give seconds above 0, at most {FOR_MAX_S:,.0f} (7 days)")
    return Order(
        str(action),
        checked_reason(given.get("reason")),
        _text(given, "id", 100) or "",
        topic,
        handler,
        settings,
        mode,
        float(for_s),
        dry_run,
        _text(given, "claimed_by", NAME_CHARS_MAX) or "",
        key,
        records,
        where,
    )


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(reason)


def _text(given: Mapping[Any, Any], name: str, chars_max: int) -> str | None:
    value = given.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > chars_max or not value.isprintable():
        _refuse(f"{name} must be printable text of at most {chars_max} characters")
    return value


def _key(given: object) -> str | None:
    if given is None:
        return None
    if not (isinstance(given, str) and len(given) <= KEY_CHARS_MAX):
        _refuse(f"key must be text of at most {KEY_CHARS_MAX:,} characters")
    try:
        given.encode(errors="surrogateescape")  # as a command line has bytes that are not UTF-8
    except UnicodeEncodeError:
        _refuse("key must be text: it has a half of a surrogate pair")
    return given


def _records(given: object) -> tuple[tuple[int, int], ...]:
    if not isinstance(given, list | tuple) or len(given) > RECORDS_MAX:
        _refuse(f"records is a list of at most {RECORDS_MAX:,} [partition, offset]")
    for one in given:
        pair = one if isinstance(one, list | tuple) and len(one) == 2 else ("", "")
        if not (is_whole(pair[0], 0, 2**31 - 1) and is_whole(pair[1], 0, OFFSET_MAX)):
            _refuse(f"records has {one!r:.60}, which is no [partition, offset]")
    return tuple((one[0], one[1]) for one in given)


def checked_reason(given: object) -> str:
    """The reason that every command must have; raises ConfigError."""
    text = given.strip() if isinstance(given, str) else ""
    if not text or len(text) > REASON_CHARS_MAX or not text.isprintable():
        _refuse(f"a reason is required: printable text of at most {REASON_CHARS_MAX} characters")
    return text


def _settings(given: object) -> dict[str, float | None]:
    if not isinstance(given, Mapping):
        _refuse('settings is a JSON object, such as {"concurrency": 50}')
    settings: dict[str, float | None] = {}
    for key, value in given.items():
        name = str(key)
        if name not in SETTINGS:
            _refuse(f"{name:.60} cannot be set: one of {', '.join(SETTINGS)}")
        if value is None or value == DECLARED:
            settings[name] = None
        elif name == "concurrency":
            if not is_whole(value, 1):
                _refuse(f"concurrency={value!r:.40}: give a whole number from 1, or {DECLARED}")
            settings[name] = value
        else:
            if not is_positive(value):
                _refuse(f"{name}={value!r:.40}: give a number above 0, or {DECLARED}")
            settings[name] = float(value)
    return settings


def settings_of(words: list[str]) -> dict[str, float | None]:
    """`NAME=VALUE` of a command line; raises ConfigError."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            _refuse(f"{word!r:.60}: write NAME=VALUE, such as concurrency=50")
        if name in given:
            _refuse(f"{name:.60} is given twice: give one value")
        if re.fullmatch(r"\d{1,9}", text):
            given[name] = int(text)
        else:
            number = re.fullmatch(r"\d{1,9}\.\d{1,6}", text)
            given[name] = float(text) if number else text
    return _settings(given)


def seconds_of(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d`; raises ConfigError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])", text)
    if found is None:
        _refuse(f"--for {text!r:.40}: write a number and s, m, h or d, such as 30m")
    seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= FOR_MAX_S:
        _refuse(f"--for {text}: give more than 0 and at most 7d")
    return seconds


def what(order: Order) -> str:
    """The command's target, as text."""
    if order.key is not None:
        return f"key {order.key:.60} of {order.topic}"
    if order.where is not None:
        return f"keys of {order.topic} where {order.where:.100}"
    if order.records:
        if len(order.records) == 1:
            partition, offset = order.records[0]
            return f"record {order.topic}:{partition}:{offset}"
        return f"{len(order.records):,} records of {order.topic}"
    if order.topic is not None:
        return f"topic {order.topic}"
    return "everything" if order.handler is None else f"handler {order.handler}"
