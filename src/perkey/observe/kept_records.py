"""Parked and held records of a group: selecting them, and their lines in an export."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perkey.codec import Remembered
from perkey.kafka.group_rider import GroupRider, Kept, Part
from perkey.kafka.log_reader import Place
from perkey.types import Record
from perkey.where import FIELDS, HEADER, OWN, Condition, Kind, Value, own_field

#: fields for conditions on records of which only a commit is known; it keeps no error text
KEPT_FIELDS: Mapping[str, Kind] = {
    **{name: FIELDS[name] for name in ("topic", "partition", "offset", "time", "key", "attempts")},
    "state": ("parked", "held"),
    "error.hash": "text",
}
Records = dict[Place, Record[Any]]


def chosen(
    source: GroupRider, parts: Sequence[Part], offset: int | None, condition: Condition | None
) -> list[Kept]:
    """The selected parked and held records of these commits."""
    found = [one for one in waiting(parts) if offset in (None, one.known.offset)]
    if condition is None:
        return found
    records = records_of(source, found)
    return [one for one in found if condition.matches(_fields(one, records))]


def waiting(parts: Sequence[Part]) -> list[Kept]:
    """Parked and held records, without those that wait for their next attempt."""
    return [one for part in parts for one in part.kept if one.known.parked or one.known.held]


def records_of(source: GroupRider, kept: Sequence[Kept]) -> Records:
    """Reads these records, as far as they still exist in their topics."""
    places = {one.place for one in kept}
    return {(one.topic, one.partition, one.offset): one for one in source.records(places)}


def _fields(one: Kept, records: Records) -> Callable[[str], Value]:
    record = records.get(one.place)

    def field(name: str) -> Value:
        if name in OWN or name.startswith(HEADER):
            if record is None:
                return None
            return own_field(name, record.key, record.timestamp_ms, record.headers)
        known = one.known
        values: dict[str, Value] = {
            "topic": one.topic,
            "partition": one.partition,
            "offset": known.offset,
            "attempts": known.attempts,
            "state": state_of(known),
            "error.hash": hash_of(known),
        }
        return values[name]

    return field


def state_of(known: Remembered) -> str:
    """`held` or `parked`."""
    return "held" if known.held else "parked"


def hash_of(known: Remembered) -> str | None:
    """The hash of its error, as text."""
    return None if known.error is None else f"{known.error:08x}"


def line_of(record: Record[Any], kept: Kept | None) -> dict[str, Any]:
    """A record with its value, JSON-able; bytes that are not UTF-8 are in base64."""
    line: dict[str, Any] = {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "timestamp_ms": record.timestamp_ms, **_plain("key", record.key),
        **_plain("value", record.value),
        "headers": [{"name": name, **_plain("value", value)} for name, value in record.headers],
    }  # fmt: skip
    if kept is not None:
        line["attempts"], line["held"] = kept.known.attempts, kept.known.held
    return line


def _plain(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}
