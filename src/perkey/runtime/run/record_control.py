"""Commands to lanes and single records: the affected records, and the engine's answers."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perkey.account.finding import Undone, count_key, find, first_of, undone_of, works_of
from perkey.account.shown import counted
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Command, Target
from perkey.errors import ConfigError
from perkey.kafka.log_reader import fetch
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe.orders import HERE_FIELDS, RECORDS_MAX, Answer, Order, what
from perkey.where import HEADER, OWN, Value, own_field, parse

if TYPE_CHECKING:
    from perkey.core.engine import Engine
    from perkey.kafka.log_reader import LogReader
    from perkey.runtime.member.member import Member
    from perkey.types import Record

#: a skip is final when its commit is stored
ANSWER_S = 10.0
#: most records that a line names
NAMED_MAX = 5
#: records checked in one visit of the engine
LOOK_MAX = 50
#: the same without details; also the commands obeyed in one visit
OBEY_MAX = 1_000
BAD = ("refused", "lost", "no answer")
NOT_HERE = "not here"
_numbers = itertools.count()

Row = dict[str, Any]
#: the lanes that match a condition, and their records that do
Matches = dict[Target, list[Undone]]
T = TypeVar("T")
R = TypeVar("R")


def obeyed_of_records(
    member: Member, name: str, order: Order, reader: Callable[[], LogReader], unix_s: float
) -> Answer:
    """Obey a command to lanes or records; InternalError if the engine has failed.

    ConfigError for too many, or if headers cannot be read from the log.
    """
    matches = None if order.where is None else meant_by(member, order, reader)
    if matches is not None:
        targets = list(matches)
    elif (key := _key_bytes(order)) is not None:
        targets = [Target(str(order.topic), key)]
    else:
        targets = [Target(str(order.topic), None, *place) for place in order.records]
    obeyed = partial(_obeyed_by, member, order, unix_s)
    if order.dry_run:
        rows, count = would_be(member, order, obeyed(targets, dry_run=True), matches, unix_s)
        return summary(name, order, rows, None, count)
    rows = []
    if order.action == "skip" and not order.records:
        # Of each key the first record, by its offset: if repeated, the same one
        firsts = obeyed(targets, dry_run=True)
        rows = [row for row in firsts if row["outcome"] != "skipped"]
        targets = [
            Target(row["topic"], None, row["partition"], row["offset"])
            for row in firsts
            if row["outcome"] == "skipped"
        ]
    rows += obeyed(targets)
    return summary(name, order, rows, unix_s + order.for_s if order.action == "hold" else None)


def _key_bytes(order: Order) -> bytes | None:
    return None if order.key is None else order.key.encode(errors="surrogateescape")


def _visits(
    member: Member, items: Sequence[T], most: int, ask: Callable[[Sequence[T], Engine, float], R]
) -> list[R]:
    """The engine's answers about some of the items at a time: no thread waits for all of them."""
    starts = range(0, len(items), most)
    return [member.door.call(partial(ask, items[start : start + most])) for start in starts]


def meant_by(member: Member, order: Order, reader: Callable[[], LogReader]) -> Matches:
    """The lanes of the records here that match its condition, and these records.

    A record without a key, or whose lane is not its key's, is a target itself. ConfigError for too
    many (parked and held ones are released as a whole), or if headers cannot be read from the log.
    """
    topic, many = str(order.topic), order.action in ("release", "retry")
    condition = parse(order.where or "", HERE_FIELDS)
    meant = states.REMEMBERED if many else range(states.DONE)
    works = member.door.call(lambda engine, now: works_of(engine, topic))
    answers = _visits(member, works, OBEY_MAX, lambda batch, _engine, _now: undone_of(batch, meant))
    undone = [record for answer in answers for record in answer]
    if HEADER in condition.text:
        undone = _with_headers(undone, reader, RECORDS_MAX if not many else len(undone))
    found: Matches = {}
    for one in undone:
        if condition.matches(partial(_field, one)):
            record = one.record
            target = Target(topic, None, record.partition, record.offset)
            if one.by_key and record.key is not None:
                target = Target(topic, record.key)
            found.setdefault(target, []).append(one)
    if len(found) > RECORDS_MAX and not many:
        raise ConfigError(
            f"{len(found):,} keys match here, and a command takes {RECORDS_MAX:,}: narrow --where"
        )
    return found


def _with_headers(
    undone: Sequence[Undone], reader: Callable[[], LogReader], most: int
) -> list[Undone]:
    """The same; headers of parked records are read from the log."""
    places = {place_of(one) for one in undone if one.bare}
    if len(places) > most:
        raise ConfigError(
            f"the headers of {len(places):,} parked or held records are not in memory, and this "
            f"command reads {most:,}: perkey parked skip --where reads them all"
        )
    if not places:
        return list(undone)
    headers = {(one.topic, one.partition, one.offset): one.headers for one in _read(reader, places)}
    return [
        one._replace(record=one.record._replace(headers=headers.get(place_of(one), ())))
        if one.bare
        else one
        for one in undone
    ]


def place_of(undone: Undone) -> tuple[str, int, int]:
    """Where the record is in the log."""
    return undone.record.topic, undone.record.partition, undone.record.offset


def _read(
    reader: Callable[[], LogReader], places: AbstractSet[tuple[str, int, int]]
) -> Iterator[Record]:
    with closing(reader()) as log:
        try:
            yield from fetch(log, places)
        except KafkaUnavailable as error:
            raise ConfigError(f"the log cannot be read: {error}") from None


def _field(undone: Undone, name: str) -> Value:
    record, error = undone.record, undone.error
    if name in OWN or name.startswith(HEADER):
        return own_field(name, record.key, record.timestamp_ms, record.headers)
    values: dict[str, Value] = {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "handler": undone.handler, "state": undone.state,
        "attempts": undone.attempts, "error.type": None if error is None else error.type,
        "error.message": None if error is None else error.message,
    }  # fmt: skip
    return values[name]


def _obeyed_by(
    member: Member, order: Order, unix_s: float, targets: Iterable[Target], *, dry_run: bool = False
) -> list[Row]:
    """The engine's answers for each target."""
    prefix, until = f"{order.id}.{next(_numbers)}", unix_s + order.for_s
    commands = [
        Command(
            order.action,  # type: ignore[arg-type]  # checked by order_of
            target, f"{prefix}.{number}", until, order.reason, order.claimed_by, dry_run,
        )
        for number, target in enumerate(targets)
    ]  # fmt: skip
    left = {command.id: command for command in commands}
    rows: list[Row] = []
    changed = threading.Condition()

    def received(answered: fx.Answered) -> None:
        with changed:
            if left.pop(answered.command.id, None) is not None:
                rows.extend(row._asdict() for row in answered.rows)
                changed.notify_all()

    member.membership.answered.append(received)
    try:
        _visits(
            member, commands, OBEY_MAX, lambda batch, engine, now: engine.obey(now, batch, unix_s)
        )
        with changed:
            changed.wait_for(lambda: not left, ANSWER_S)
            late = list(left.values())
            left.clear()
    finally:
        member.membership.answered.remove(received)
    return rows + [_late(command) for command in late]


def _late(command: Command) -> Row:
    target = command.target
    return {
        "topic": target.topic, "partition": target.partition, "offset": target.offset,
        "outcome": "no answer", "detail": f"its commit is not stored after {ANSWER_S:.0f} s",
    }  # fmt: skip


def first_rows(member: Member, topic: str | None, handler: int | None) -> list[Row]:
    """Place and key of the first records that a pause, a setting or a stop affects."""
    first = member.door.call(lambda engine, now: first_of(engine, topic, handler, NAMED_MAX))
    return [
        {
            "topic": row.record.topic, "partition": row.record.partition,
            "offset": row.record.offset, "outcome": "would",
            "detail": f"{row.state}, key {_field(row, 'key')}",
        }
        for row in first
    ]  # fmt: skip


def would_be(
    member: Member, order: Order, rows: Sequence[Row], matches: Matches | None, unix_s: float
) -> tuple[list[Row], str]:
    """The answers of a dry run with the places and keys of the records; how many in total."""
    topic = str(order.topic)
    here = {
        (u.record.partition, u.record.offset): u
        for undone in (matches or {}).values()
        for u in undone
    }
    shown = list(rows[:RECORDS_MAX])
    named = [
        (number, answer["partition"], answer["offset"])
        for number, answer in enumerate(shown)
        if answer["offset"] not in (None, -1) and answer["outcome"] != NOT_HERE
    ]
    visits = _visits(
        member, named, LOOK_MAX,
        lambda places, engine, now: [
            (number, find(engine, now, unix_s - now, topic, *place)) for number, *place in places
        ],
    )  # fmt: skip
    for number, answer in itertools.chain.from_iterable(visits):
        row, known = shown[number], here.get((answer["partition"], answer["offset"]))
        key = answer.get("key") if known is None else _field(known, "key")
        where = answer["place"] if row["detail"] == order.reason else row["detail"]
        shown[number] = {**row, "detail": f"{where}, key {key}" if key else where}
    count = ""
    if (key_bytes := _key_bytes(order)) is not None:
        records = member.door.call(lambda engine, now: count_key(engine, key_bytes, topic))
        count = f"{counted(records, 'record')} of it here"
    elif matches is not None:
        count = f"{counted(len(here), 'record')} of {counted(len(matches), 'key')} match here"
    return [*shown, *rows[RECORDS_MAX:]], count


def summary(
    member: str, order: Order, rows: Sequence[Row], until: float | None, count: str = ""
) -> Answer:
    """The member's answer as one line and by record: at most RECORDS_MAX, failures first."""
    counts = Counter(str(row["outcome"]) for row in rows if row["outcome"] != NOT_HERE)
    rows = sorted(rows, key=lambda row: row["outcome"] not in BAD)
    here = [row for row in rows if row["outcome"] != NOT_HERE]
    if not here and order.where is not None:
        return Answer(member, NOT_HERE, f"no record here matches: {what(order)}")
    if not here:
        has = "does not own" if order.records else "has no record of"
        return Answer(member, NOT_HERE, f"it {has} {what(order)}", None, list(rows))
    outcome = "done"
    if any(counts[bad] for bad in BAD):
        outcome = "refused"
    elif set(counts) == {"unchanged"}:
        outcome = "unchanged"
    elif order.dry_run:
        outcome = "would"
    words = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    named = []
    for row in here[:NAMED_MAX]:
        offset = "" if row["offset"] in (None, -1) else f":{row['offset']}"
        place = f"{row['topic']}:{row['partition']}{offset}"
        named.append(f"{place} {row['outcome']}: {row['detail']}")
    left_out = f"; and {len(here) - NAMED_MAX:,} more" if len(here) > NAMED_MAX else ""
    verb = f"{order.action}: " if order.dry_run else ""
    end = f"; {count}" if count else ""
    detail = f"{verb}{words}: {'; '.join(named)}{left_out}{end}"
    return Answer(member, outcome, detail, until, list(rows[:RECORDS_MAX]))
