"""Finished records that are handled again, because an operator requests it (`weft redo`).

Such a record is in its lane and in `Partition.redone`, and nowhere else: for offsets and commits it
stays done. It goes before the records of its lane that have not started, behind a call that runs.
It has one call, without a retry: its outputs are produced, and a failure becomes the answer. For a
batch handler that call is a normal batch; if the batch fails as a whole, the record has failed, and
only the others are tried in halves. If the epoch ends first, the answer is "lost".

With exactly_once its outputs are a claim of the next transaction, like any other record's, and its
lane continues; offsets and map of that commit are the same as without it. A commit that changes
nothing else would not show whether it was stored, so it gets a mark (commits.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weft.core import effects as fx
from weft.core import states
from weft.core.lanes import last_of_call
from weft.core.work import Work
from weft.types import Redone, content_bytes

if TYPE_CHECKING:
    from weft.core.engine_state import EngineState
    from weft.core.events import Command
    from weft.core.partition import Partition
    from weft.core.work import LaneKey
    from weft.types import ErrorInfo, Record


class Redo(NamedTuple):
    """Why a record is handled again."""

    command: Command
    #: the record that was running when it joined the lane
    behind: Work | None


def of_lane(partition: Partition, key: LaneKey, others: Iterator[Work]) -> Iterator[Work]:
    """The records of a lane in order: `others`, and those that are handled again."""
    key_of = partition.lanes.key_of
    mine = {one: it.behind for one, it in _waiting(partition) if key_of(one.record) == key}
    head = next(others, None)
    after = [one for one, behind in mine.items() if behind is head and _is_behind(head, one)]
    yield from [one for one in mine if one not in after]
    if head is not None:
        yield head
        yield from after
    yield from others


def put(partition: Partition, command: Command, record: Record, first: Work | None) -> bool:
    """Put the record into its lane, before `first`. False: `first` waits outside the chain."""
    lanes, key, record = partition.lanes, partition.lanes.key_of(record), Redone(*record)
    size = content_bytes(record.key, record.value, record.headers)
    work = Work.one(record, size, partition)
    same = [one for one, _ in _waiting(partition) if lanes.key_of(one.record) == key]
    behind = None
    if same:
        behind = partition.redone[same[-1]].behind
        lanes.put_behind(last_of_call(same[-1]), work)
    elif first is None or first.state == states.QUEUED:
        if not lanes.put_first(work, first):
            return False
    else:
        behind = first
        lanes.put_behind(last_of_call(first), work)
    partition.admit_redone(work, Redo(command, behind))
    return True


def _waiting(partition: Partition) -> list[tuple[Work, Redo]]:
    """Redos that their lanes wait for: lanes have continued past the others (exactly_once)."""
    return [(one, it) for one, it in partition.redone.items() if one.state != states.PENDING]


def _is_behind(head: Work | None, work: Work) -> bool:
    """Whether `work` follows: a head whose output was refused has joined the end of its lane."""
    while head is not None and head is not work:
        head = head.next
    return head is work


def handled(state: EngineState, work: Work) -> None:
    """Its call has returned, and its outputs are stored."""
    state.complete(work, report=False)
    reason = work.partition.redone[work].command.reason
    _end(state, work, "redone", reason)


def failed(state: EngineState, work: Work, error: ErrorInfo) -> None:
    """Its call failed; it stays done."""
    _end(state, work, "failed", f"{error.line[:300]}: it stays done")


def lose(state: EngineState, partition: Partition) -> None:
    """The epoch ends: answer all redos as lost."""
    sent = partition.commit.sent
    pending = () if sent is None else sent.claims
    for work, one in partition.redone.items():
        what = "the partition went away first: ask again"
        if work in pending:
            what = "the partition went away first, and what it put out may be there: look, then ask"
        _answer(state, work, one.command, "lost", what)
    partition.handler.divert(-len(partition.redone))


def _end(state: EngineState, work: Work, outcome: str, detail: str) -> None:
    partition = work.partition
    command = partition.redone[work].command
    partition.redo_ended(work)
    _answer(state, work, command, outcome, detail)


def _answer(state: EngineState, work: Work, command: Command, outcome: str, detail: str) -> None:
    where = (work.partition.topic, work.partition.number, work.record.offset)
    state.emit(fx.Answered(command, [fx.Obeyed(*where, outcome, detail)]))
