"""Commands to lanes and single records: what they would concern, and what the engine answers."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.account.finding import Undone, find, find_key, undone_of
from weft.core import effects as fx
from weft.core import states
from weft.core.events import Command, Target
from weft.errors import ConfigError
from weft.kafka.log_reader import fetch
from weft.kafka.ports import KafkaUnavailable
from weft.observe.orders import HERE_FIELDS, RECORDS_MAX, Answer, Order, what
from weft.where import HEADER, OWN, Value, own_field, parse

if TYPE_CHECKING:
    from weft.kafka.log_reader import LogReader
    from weft.runtime.member.member import Member
    from weft.types import Record

#: a skip is true when its commit is stored, a redo when its call has ended
ANSWER_S = 10.0
#: records that a line names
NAMED_MAX = 5
#: looked at in one visit of the engine
LOOK_MAX = 50
BAD = ("refused", "failed", "lost", "no answer")
NOT_HERE = "not here"
#: of `weft.account.finding`
DONE = "done"
_numbers = itertools.count()

Row = dict[str, Any]


def fetched(
    member: Member, order: Order, unix_s: float, reader: Callable[[], LogReader]
) -> dict[tuple[int, int], Record]:
    """From the log: those of the records that are done here. ConfigError if it cannot be read."""
    rows = looked_at(member, order, unix_s)
    places = {
        (str(order.topic), one["partition"], one["offset"]) for one in rows if one["detail"] == DONE
    }
    if not places:
        return {}
    return {(one.partition, one.offset): one for one in _read(reader, places)}


def targets_of(order: Order) -> list[Target]:
    """The lanes and records that a command names."""
    if order.key is not None:
        return [Target(str(order.topic), order.key.encode(errors="surrogateescape"))]
    return [Target(str(order.topic), None, *one) for one in order.records]


def meant_by(
    member: Member, order: Order, reader: Callable[[], LogReader]
) -> dict[Target, list[Undone]]:
    """The lanes of the records here that its condition means, and these records.

    Where a record has no key, or its lane is no key's, it is a target itself. ConfigError for too
    many, or if the log has to be read for their headers and cannot be.
    """
    topic = str(order.topic)
    condition = parse(order.where or "", HERE_FIELDS)
    meant: Collection[int] = range(len(states.RECORD_NAMES))
    if order.action in ("release", "retry"):
        meant = (states.RETRYING, states.PARKED)
    undone = member.door.call(lambda engine, now: undone_of(engine, topic, meant))
    if HEADER in condition.text:
        undone = _with_headers(undone, reader)
    found: dict[Target, list[Undone]] = {}
    for one in undone:
        if condition.matches(partial(_field, one)):
            record = one.record
            target = Target(topic, None, record.partition, record.offset)
            if one.by_key and record.key is not None:
                target = Target(topic, record.key)
            found.setdefault(target, []).append(one)
    if len(found) > RECORDS_MAX:
        raise ConfigError(
            f"{len(found):,} keys match here, and a command takes {RECORDS_MAX:,}: narrow --where"
        )
    return found


def _with_headers(undone: Sequence[Undone], reader: Callable[[], LogReader]) -> list[Undone]:
    """The same; what is parked gets its headers from the log."""
    places = {place_of(one) for one in undone if one.bare}
    if len(places) > RECORDS_MAX:
        raise ConfigError(
            f"the headers of {len(places):,} parked records are not in memory, and a command reads "
            f"{RECORDS_MAX:,}: weft parked release --where reads them all"
        )
    if not places:
        return list(undone)
    whole = {(one.topic, one.partition, one.offset): one for one in _read(reader, places)}
    return [one._replace(record=whole.get(place_of(one), one.record)) for one in undone]


def place_of(one: Undone) -> tuple[str, int, int]:
    """Where its record is in the log."""
    return one.record.topic, one.record.partition, one.record.offset


def _read(
    reader: Callable[[], LogReader], places: AbstractSet[tuple[str, int, int]]
) -> list[Record]:
    with closing(reader()) as log:
        try:
            return list(fetch(log, places))
        except KafkaUnavailable as error:
            raise ConfigError(f"the log cannot be read: {error}") from None


def _field(one: Undone, name: str) -> Value:
    """For a condition."""
    record, error = one.record, one.error
    if name in OWN or name.startswith(HEADER):
        return own_field(name, record.key, record.timestamp_ms, record.headers)
    values: dict[str, Value] = {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "handler": one.handler, "state": one.state,
        "attempts": one.attempts, "error.type": None if error is None else error.type,
        "error.message": None if error is None else error.message,
    }  # fmt: skip
    return values[name]


def would(found: Mapping[Target, Sequence[Undone]]) -> list[Row]:
    """What a dry run answers: the first of the records of each lane."""
    return [
        {
            "topic": some[0].record.topic, "partition": some[0].record.partition,
            "offset": some[0].record.offset, "outcome": "would",
            "detail": f"{some[0].state}, key {_field(some[0], 'key')}"
            + (f", and {len(some) - 1:,} more of it" if len(some) > 1 else ""),
        }
        for some in found.values()
    ]  # fmt: skip


def obeyed_by(
    member: Member,
    order: Order,
    targets: Iterable[Target],
    until: float,
    unix_s: float,
    found: Mapping[tuple[int, int], Record],
) -> list[Row]:
    """What the engine answers for each target; InternalError when it has failed.

    `found`: by partition and offset, what is to be handled again.
    """
    prefix = f"{order.id}.{next(_numbers)}"
    commands = [
        Command(
            order.action,  # type: ignore[arg-type]  # checked by order_of
            target,
            f"{prefix}.{number}",
            until,
            order.reason,
            found.get((target.partition or 0, target.offset or 0)),
        )
        for number, target in enumerate(targets)
    ]
    left = {one.id: one for one in commands}
    rows: list[Row] = []
    changed = threading.Condition()

    def received(answered: fx.Answered) -> None:
        with changed:
            if left.pop(answered.command.id, None) is not None:
                rows.extend(one._asdict() for one in answered.rows)
                changed.notify_all()

    member.seat.answered.append(received)
    try:
        member.door.call(lambda engine, now: engine.obey(now, commands, unix_s))
        with changed:
            changed.wait_for(lambda: not left, ANSWER_S)
            late = list(left.values())
            left.clear()
    finally:
        member.seat.answered.remove(received)
    return rows + [_late(one) for one in late]


def _late(command: Command) -> Row:
    target = command.target
    what = f"its commit is not stored after {ANSWER_S:.0f} s"
    if command.action == "redo":
        what = f"it is not over after {ANSWER_S:.0f} s, and goes on: the app's log has the answer"
    return {
        "topic": target.topic, "partition": target.partition, "offset": target.offset,
        "outcome": "no answer", "detail": what,
    }  # fmt: skip


def looked_at(member: Member, order: Order, unix_s: float) -> list[Row]:
    """The records that a command would concern, and where they are."""
    topic, found = str(order.topic), list[Row]()
    if order.key is not None:
        key = order.key.encode(errors="surrogateescape")
        found = member.door.call(
            lambda engine, now: find_key(engine, now, unix_s - now, key, topic)
        )
    for start in range(0, len(order.records), LOOK_MAX):
        some = order.records[start : start + LOOK_MAX]
        found += member.door.call(
            lambda engine, now, some=some: [  # type: ignore[misc]  # bound here
                find(engine, now, unix_s - now, topic, *one) for one in some
            ]
        )
    return [
        {
            "topic": topic, "partition": one["partition"], "offset": one["offset"],
            "outcome": NOT_HERE if one["place"] == "elsewhere" else "would",
            "detail": one["place"] + (f", key {one['key']}" if one.get("key") else ""),
        }
        for one in found
    ]  # fmt: skip


def summary(member: str, order: Order, rows: Sequence[Row], until: float | None) -> Answer:
    """The member's answer, in one line and by records."""
    here = [one for one in rows if one["outcome"] != NOT_HERE]
    counts = Counter(str(one["outcome"]) for one in here)
    if not here and order.where is not None:
        return Answer(member, NOT_HERE, f"no record here matches: {what(order)}")
    if not here:
        return Answer(member, NOT_HERE, f"it owns nothing of {what(order)}", None, list(rows))
    outcome = "done"
    if any(counts[bad] for bad in BAD):
        outcome = "refused"
    elif order.dry_run:
        outcome = "would"
    elif set(counts) == {"unchanged"}:
        outcome = "unchanged"
    words = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    first = sorted(here, key=lambda one: one["outcome"] not in BAD)[:NAMED_MAX]
    named = "; ".join(f"{_place(one)} {one['outcome']}: {one['detail']}" for one in first)
    more = f"; and {len(here) - NAMED_MAX:,} more" if len(here) > NAMED_MAX else ""
    verb = f"{order.action}: " if order.dry_run else ""
    return Answer(member, outcome, f"{verb}{words}: {named}{more}", until, list(rows))


def _place(row: Row) -> str:
    offset = "" if row["offset"] in (None, -1) else f":{row['offset']}"
    return f"{row['topic']}:{row['partition']}{offset}"
