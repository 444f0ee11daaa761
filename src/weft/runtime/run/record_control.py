"""Commands to lanes and single records: what they would concern, and what the engine answers."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from weft.account.finding import find, find_key
from weft.core import effects as fx
from weft.core.events import Command, Target
from weft.errors import ConfigError
from weft.kafka.log_reader import fetch
from weft.kafka.ports import KafkaUnavailable
from weft.observe.orders import Answer, Order, what

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
    with closing(reader()) as log:
        try:
            return {(one.partition, one.offset): one for one in fetch(log, places)}
        except KafkaUnavailable as error:
            raise ConfigError(f"the log cannot be read: {error}") from None


def obeyed_by(
    member: Member,
    order: Order,
    until: float,
    unix_s: float,
    found: Mapping[tuple[int, int], Record],
) -> list[Row]:
    """What the engine answers for each record; InternalError when it has failed.

    `found`: by partition and offset, what is to be handled again.
    """
    targets = [Target(str(order.topic), None, *one) for one in order.records]
    if order.key is not None:
        targets = [Target(str(order.topic), order.key.encode(errors="surrogateescape"))]
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
