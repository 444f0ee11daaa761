"""Records of a poll come into the ledger and the lanes of their partition epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.core import charge
from weft.core.spec import KEY, UNORDERED
from weft.core.work import LaneKey, Work
from weft.types import Record

if TYPE_CHECKING:
    from weft.core.partition import Partition

WHOLE = "*"  # the one lane of ordering="partition"


def admit(partition: Partition, records: Sequence[Record], sizes: Sequence[int]) -> int:
    """Take in records of one poll, ascending; how many of them are new."""
    if (
        records[0].offset < partition.position
        or records[0].offset <= partition.restored_top
        or partition.held
    ):
        return _admit_carefully(partition, records, sizes)
    prune_expected(partition, records[0].offset)
    _admit_all(partition, records, sizes)
    return len(records)


def _admit_all(partition: Partition, records: Sequence[Record], sizes: Sequence[int]) -> None:
    ordering = partition.handler.spec.ordering
    if ordering == KEY:
        _admit_keys(partition, records, sizes)
    elif ordering == UNORDERED:
        _admit_unordered(partition, records, sizes)
    else:
        for record, size in zip(records, sizes, strict=True):
            _append(partition, WHOLE, record, size)
    partition.bytes += sum(sizes)
    partition.position = records[-1].offset + 1


def _admit_keys(partition: Partition, records: Sequence[Record], sizes: Sequence[int]) -> None:
    # The hottest loop of the core: one Work, two dictionary stores, one link.
    incomplete, lanes, ready = partition.incomplete, partition.lanes, partition.ready
    for record, size in zip(records, sizes, strict=True):
        work = Work(record, partition, size)
        incomplete[record[2]] = work
        key = record[4]
        if key is None:  # orders with nothing
            ready.append(work)
            continue
        tail = lanes.get(key)
        lanes[key] = work
        if tail is None:
            ready.append(work)
        else:
            tail.next = work
            if tail.charge is not None:
                charge.join(partition, work, tail.charge)


def _admit_unordered(partition: Partition, records: Sequence[Record], sizes: Sequence[int]) -> None:
    works = [Work(record, partition, size) for record, size in zip(records, sizes, strict=True)]
    partition.incomplete.update(zip([record[2] for record in records], works, strict=True))
    partition.ready.extend(works)


def _append(partition: Partition, key: LaneKey, record: Record, size: int) -> None:
    work = Work(record, partition, size)
    partition.incomplete[record.offset] = work
    tail = partition.lanes.get(key)
    partition.lanes[key] = work
    if tail is not None:
        tail.next = work
        if tail.charge is not None:
            charge.join(partition, work, tail.charge)
    elif key in partition.held:
        partition.held[key] = work
    else:
        partition.ready.append(work)


def _admit_carefully(partition: Partition, records: Sequence[Record], sizes: Sequence[int]) -> int:
    """Intake where some records are done already, were seen before, or have a held lane."""
    new = 0
    for record, size in zip(records, sizes, strict=True):
        offset = record.offset
        if offset < partition.position:
            continue  # fetched twice, as after a pause
        prune_expected(partition, offset)
        partition.position = offset + 1
        if offset <= partition.restored_top and offset not in partition.incomplete:
            continue  # done before the restart
        if partition.expected and partition.expected[0] == offset:
            partition.expected.popleft()
        _admit_one(partition, record, size)
        new += 1
    return new


def _admit_one(partition: Partition, record: Record, size: int) -> None:
    partition.bytes += size
    key = partition.lane_key(record)
    if isinstance(key, int):  # a lane of its own: not in `lanes`
        work = Work(record, partition, size)
        partition.incomplete[record.offset] = work
        if key in partition.held:
            partition.held[key] = work
        else:
            partition.ready.append(work)
    else:
        _append(partition, key, record, size)


def prune_expected(partition: Partition, offset: int) -> None:
    """Forget restored holes that the log no longer has."""
    # The map said "not done" and the log no longer has it: compacted or deleted since.
    while partition.expected and partition.expected[0] < offset:
        del partition.incomplete[partition.expected.popleft()]
        partition.dirty = True
