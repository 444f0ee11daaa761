"""Find one record or the records of one key, for `perkey why`.

All of it runs inside the door and walks the records of one partition, or of all for a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from perkey.account.account import gathering, place_of
from perkey.account.blockers import record_row, waiting_behind
from perkey.core import states
from perkey.core.engine import Engine
from perkey.core.events import KEY
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.types import ErrorInfo, Record

FOUND_MAX = 20


class Undone(NamedTuple):
    """A record that is not done, with the fields that a condition can use."""

    record: Record
    handler: str
    #: one of `perkey.core.states.SHOWN_NAMES`
    state: str
    attempts: int
    error: ErrorInfo | None
    #: the first record of a parked or held lane: its value and headers are not kept
    bare: bool
    #: a lane is the records of one key
    by_key: bool


def find(
    engine: Engine, now: float, epoch_s: float, topic: str, number: int, offset: int
) -> dict[str, Any]:
    """Where the record at this offset is; or the reason why it is not held here."""
    where = {"topic": topic, "partition": number, "offset": offset}
    partition = engine.state.partitions.get((topic, number))
    if partition is None:
        return {**where, "place": "elsewhere"}
    work = partition.offsets.incomplete.get(offset) or partition.commit.marked.get(offset)
    if work is not None:
        return {**where, **_details(engine, work, now, epoch_s)}
    if offset in partition.offsets.incomplete:
        place = "unfetched"
        head = partition.shelves.head_of(offset) if partition.offsets.shelved else None
        if head is not None and head.put_off:
            row = _alone(engine, head, now, epoch_s)
            return {**where, **row, "offset": offset, "place": "behind", "behind": row}
    elif offset < partition.offsets.position or offset <= partition.offsets.restored_top:
        place = "done"
    else:
        place = "not_read" if offset < partition.log_end else "not_there"
    return {
        **where,
        "place": place,
        "position": partition.offsets.position,
        "end": partition.log_end,
    }


def find_key(
    engine: Engine, now: float, epoch_s: float, key: bytes, topic: str | None = None
) -> list[dict[str, Any]]:
    """The first records held under this key, in the topic's partitions or in all."""
    records = []
    for partition in engine.state.partitions.values():
        if topic not in (None, partition.topic):
            continue
        for work in _of_key(partition, key):
            where = (partition.topic, partition.number, work.record.offset)
            row = dict(zip(("topic", "partition", "offset"), where, strict=True))
            records.append({**row, **_details(engine, work, now, epoch_s)})
            if len(records) >= FOUND_MAX:
                return records
        shelf = partition.lanes.shelves.get(key) if partition.handler.spec.ordering == KEY else None
        for offset in () if shelf is None else islice(shelf.offsets, FOUND_MAX - len(records)):
            where = (partition.topic, partition.number, offset)
            records.append(find(engine, now, epoch_s, *where))
    return records


def _of_key(partition: Partition, key: bytes) -> Iterator[Work]:
    for works in (partition.commit.marked.values(), partition.offsets.incomplete.values()):
        yield from (work for work in works if work is not None and work.record.key == key)


def _details(engine: Engine, work: Work, now: float, epoch_s: float) -> dict[str, Any]:
    row = _alone(engine, work, now, epoch_s)
    head = _head(work) if row["place"] == "behind" else None
    return {**row, "behind": None if head is None else _alone(engine, head, now, epoch_s)}


def _alone(engine: Engine, work: Work, now: float, epoch_s: float) -> dict[str, Any]:
    handler = work.partition.handler
    lanes = work.partition.lanes
    shelf = lanes.shelves.get(lanes.key_of(work.record))
    return {
        "offset": work.record.offset,
        "handler": handler.name,
        "place": place_of(work, gathering(engine)),
        "waiting_behind": waiting_behind(work) + (0 if shelf is None else len(shelf.offsets)),
        **record_row(work, handler.spec, now, epoch_s),
    }


def _head(work: Work) -> Work | None:
    """The first record of its lane that is not done: all others wait for it."""
    partition, key = work.partition, work.partition.lanes.key_of(work.record)
    for other in partition.offsets.incomplete.values():
        if other is work:
            return None
        if other is None or other.state == states.PENDING:
            continue
        if partition.lanes.key_of(other.record) == key:
            return other
    return None


def count_key(engine: Engine, key: bytes, topic: str) -> int:
    """How many records of this key are held and not done; `find_key` returns only the first."""
    count = 0
    for partition in engine.state.partitions.values():
        if partition.topic == topic:
            count += sum(1 for _ in _of_key(partition, key))
            by_key = partition.handler.spec.ordering == KEY
            shelf = partition.lanes.shelves.get(key) if by_key else None
            count += 0 if shelf is None else len(shelf.offsets)
    return count


def first_of(engine: Engine, topic: str | None, handler: int | None, most: int) -> list[Undone]:
    """The first records of a topic, of a handler, or of all, that are not done."""
    works = (
        work
        for partition in engine.state.partitions.values()
        if topic in (None, partition.topic) and handler in (None, partition.handler.index)
        for work in partition.offsets.works()
    )
    return [_undone(work) for work in islice(works, most)]


def works_of(engine: Engine, topic: str) -> list[Work]:
    """The records of a topic that are not done, by partition and offset. Fast, also for many."""
    return [
        work
        for partition in engine.state.partitions.values()
        if partition.topic == topic
        for work in partition.offsets.works()
    ]


def undone_of(works: Sequence[Work], states_meant: Collection[int]) -> list[Undone]:
    """Those that are in one of these states now."""
    return [_undone(work) for work in works if work.state in states_meant]


def _undone(work: Work) -> Undone:
    failure, spec = work.failure, work.partition.handler.spec
    return Undone(
        work.record,
        spec.name,
        states.SHOWN_NAMES[work.state],
        0 if failure is None else failure.attempts,
        None if failure is None else failure.error,
        work in work.partition.shelves.bare,
        spec.ordering == KEY,
    )
