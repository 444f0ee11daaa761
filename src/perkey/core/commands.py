"""An operator's commands to a lane or a record: hold, release, retry, skip.

Each gets one answer (`effects.Answered`). A skip is final once the commit that contains it is
stored, so its answer waits for that; the record is never handled afterwards. A command that is
obeyed a second time, here or by the next owner of the partition, changes nothing: a hold has its
end time, a skip its offset, and a record that does not wait can neither be released nor retried. A
dry command runs the same code up to the first change, so it has the same answer.

**Holds.** `Partition.holds` has those of lanes and, by offset, of single records. A held record
waits, HELD, until the hold is over. It is looked at
when its turn comes (`Endings.turn_comes`); later ones of its lane wait behind it. So the hot paths
do not know of holds. As for a parked lane, only offsets are kept of a held one (memory.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import AT_MOST_ONCE, HOLD_MAX_S, KEY
from perkey.core.states import SHOWN_NAMES
from perkey.core.work import Failure, HeldBy, Work
from perkey.types import ErrorInfo

if TYPE_CHECKING:
    from perkey.core.batching import Batching
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Command
    from perkey.core.partition import Partition
    from perkey.core.work import LaneKey


# -- holds -----------------------------------------------------------------------------------------


def wait_held(state: EngineState, work: Work, by: HeldBy) -> None:
    """The turn of a queued record has come, and it is held: it waits for the end of the hold."""
    failure = _failure_of(state, work)
    until = max(by.until, failure.own_due)  # its own delay is not shortened
    failure.held_by = by
    failure.note(state.now, f"held for {until - state.now:.0f} s")
    state.retries.add(until, work)
    work.partition.wait(work, states.HELD)
    state.put_away(work)


def _failure_of(state: EngineState, work: Work) -> Failure:
    failure = work.failure
    if failure is None:
        failure = work.failure = Failure(state.texts)
        work.partition.charge_failure(work, failure)
    return failure


# -- commands --------------------------------------------------------------------------------------

#: what a command about one record does not end
HELD = "its key is held by a command: perkey key release ends that"
_UNDER_WAY = "it is {} now: ask again when that is over"
#: from this many commands on, the records of a partition are sorted by lane once for all of them
SORTED_FROM = 8


class Commands:
    """Obeys commands."""

    def __init__(self, state: EngineState, endings: Endings, batching: Batching) -> None:
        self._state = state
        self._endings = endings
        self._batching = batching
        #: during a turn with many commands: the records of each lane, for `_all_of_lane`
        self._sorted: dict[Partition, dict[LaneKey, list[Work]]] | None = None

    def obey(self, commands: Sequence[Command]) -> None:
        """Do what is possible for each; every command is answered."""
        self._sorted = {} if len(commands) >= SORTED_FROM else None
        for command in commands:
            target = command.target
            answers = [
                self._in(partition, command)
                for (topic, number), partition in list(self._state.partitions.items())
                if topic == target.topic and target.partition in (None, number)
            ]
            rows = [row for row in answers if row is not None]
            self._in_later_epochs(command, rows)
            if len(rows) == len(answers):
                given = rows or [
                    _row(None, command, "not here", "no such partition in this member")
                ]
                self._state.emit(fx.Answered(command, given))
        self._sorted = None
        self._endings.retry_due()

    def _in_later_epochs(self, command: Command, rows: Sequence[fx.Obeyed]) -> None:
        """The hold of a lane, and its end, also apply to later epochs of its partitions."""
        target, by = command.target, self._held_by(command)
        of_lane = target.key is not None and target.offset is None and command.action != "skip"
        refused = bool(rows) and all(row.outcome == "refused" for row in rows)
        if not of_lane or refused or command.dry_run:
            return
        assert target.key is not None
        place = (target.topic, target.partition, target.key)
        if command.action != "hold":
            self._state.desired.let_go(place)
        elif by.until > self._state.now:
            self._state.desired.hold_lane(place, by)

    def _held_by(self, command: Command) -> HeldBy:
        until = min(command.until_s - self._state.wall_s, self._state.now + HOLD_MAX_S)
        return HeldBy(until, command.reason, command.claimed_by)

    # -- one partition ---------------------------------------------------------------------------

    def _in(self, partition: Partition, command: Command) -> fx.Obeyed | None:
        """Obey it there; None: the answer comes when it is final."""
        target = command.target
        if target.offset is not None:
            return self._record(partition, command, target.offset)
        if partition.handler.spec.ordering != KEY or target.key is None:
            why = "its handler is not ordered by key: name records, or give --where"
            return _refused(partition, command, why)
        if command.action == "skip":
            first = next(self._of_lane(partition, target.key), None)
            if first is None:
                return _row(partition, command, "not here", "it has no record here")
            if command.dry_run:
                return self._skip(partition, command, first)
            # Name the record that would be skipped: sent again, the command would skip another one
            why = "name one record of it: the next owner would skip another one"
            return _refused(partition, command, why, first.record.offset)
        if command.action == "hold":
            return self._hold_lane(partition, command, target.key)
        return self._release_lane(partition, command, target.key)

    # -- a lane ----------------------------------------------------------------------------------

    def _hold_lane(self, partition: Partition, command: Command, key: LaneKey) -> fx.Obeyed:
        by = self._held_by(command)
        if by.until <= self._state.now:
            return _row(partition, command, "unchanged", "the hold is over already")
        if not command.dry_run:
            partition.set_hold(key, by)
        waiting = [w for w in self._of_lane(partition, key) if w.state in states.WAITING]
        if not waiting:
            return _row(partition, command, "held", "nothing of it waits now")
        # The record that the hold concerns now: not one that the lane has passed
        first = next((work for work in waiting if not _left_lane(work)), waiting[0])
        return self._hold_record(partition, command, first)

    def _release_lane(self, partition: Partition, command: Command, key: LaneKey) -> fx.Obeyed:
        """End its hold, and let its first record proceed: a parked, failed or held one."""
        works = list(self._of_lane(partition, key))
        own = [work.offset for work in works if work.offset in partition.holds]
        held = key in partition.holds or own
        if not command.dry_run:
            partition.memory.release(key)
            partition.end_holds([key, *own])
        first = works[0] if works else None
        if first is None or first.state not in states.REMEMBERED:
            waiting = next((work for work in works if work.state == states.HELD), None)
            if waiting is None:
                released = held and (command.action == "release" or own)
                outcome = "released" if released else "unchanged"
                offset = own[0] if own else -1 if first is None else first.record.offset
                return _row(partition, command, outcome, "nothing of it waits", offset)
            first = waiting
        for later in () if command.dry_run else works:
            if later is not first and later.state == states.HELD:
                assert later.failure is not None
                later.failure.own_due = self._state.now
                self._try_now(later)
        return self._proceed(partition, command, first)

    def _of_lane(self, partition: Partition, key: LaneKey) -> Iterator[Work]:
        """The records of a lane in order; exactly_once: without those that it has passed."""
        works = (work for work in self._all_of_lane(partition, key) if work.state != states.PENDING)
        return iter(_in_turn(list(works))) if partition.handler.exact else works

    def _all_of_lane(self, partition: Partition, key: LaneKey) -> Iterator[Work]:
        """Those that are not done. With many commands each would walk over all records."""
        marked, key_of = partition.commit.marked.values(), partition.lanes.key_of
        if self._sorted is None and isinstance(key, bytes):  # as below, in a third of the time
            every = chain(marked, partition.offsets.incomplete.values())
            return (work for work in every if work is not None and work.record[4] == key)
        held = chain(marked, partition.offsets.works())
        if self._sorted is None:
            return (work for work in held if key_of(work.record) == key)
        lanes = self._sorted.get(partition)
        if lanes is None:
            lanes = self._sorted[partition] = {}
            for work in held:
                lanes.setdefault(key_of(work.record), []).append(work)
        return (work for work in lanes.get(key, ()) if work.state != states.DONE)

    # -- one record ------------------------------------------------------------------------------

    def _record(self, partition: Partition, command: Command, offset: int) -> fx.Obeyed | None:
        if offset in partition.commit.marked:
            return _refused(partition, command, _UNDER_WAY.format("running"))
        if _is_done(partition, offset):
            return _row(partition, command, "unchanged", "it is done, or not in the log")
        work = partition.offsets.incomplete.get(offset)
        if work is None:
            return self._not_fetched(partition, command, offset)
        if command.action == "skip":
            return self._skip(partition, command, work)
        if command.action == "hold":
            by = self._held_by(command)
            if by.until <= self._state.now:
                return _row(partition, command, "unchanged", "the hold is over already")
            row = self._hold_record(partition, command, work, dry_run=True)
            if row.outcome == "held" and not command.dry_run and work.state != states.PARKED:
                partition.set_hold(offset, by)
                row = self._hold_record(partition, command, work)
            return row
        return self._proceed(partition, command, work)

    def _not_fetched(self, partition: Partition, command: Command, offset: int) -> fx.Obeyed:
        """A record that is only remembered, or not fetched at all yet."""
        memory = partition.memory
        known = memory.waits_for if command.dry_run else partition.start_over
        if command.action in ("release", "retry") and known(offset):
            return _row(partition, command, "released", "it starts when it is fetched")
        if why := _past_end(partition, offset):
            return _refused(partition, command, why)
        head = partition.shelves.head_of(offset)
        if head is not None:
            why = f"offset {head.record.offset} of its lane comes first"
            return _refused(partition, command, why, offset)
        return _refused(partition, command, "it is not fetched yet: ask again in a moment")

    def _hold_record(
        self, partition: Partition, command: Command, work: Work, *, dry_run: bool = False
    ) -> fx.Obeyed:
        """A record is held, by itself or with its lane, or will be when its turn comes."""
        offset = work.record.offset
        if work.state == states.PARKED:
            return _row(partition, command, "held", "it is parked", offset)
        if work.state not in states.WAITING:
            return _refused(partition, command, _UNDER_WAY.format(SHOWN_NAMES[work.state]), offset)
        by = partition.held_by(work, self._state.now)
        if by is None or command.dry_run or dry_run:
            return _row(partition, command, "held", command.reason, offset)
        if work.state in states.REMEMBERED:
            partition.lift(work)
            wait_held(self._state, work, by)
        elif self._take_out(work):
            wait_held(self._state, work, by)
        elif not partition.memory.hold_until(offset, by.until + self._state.wall_s):
            _failure_of(self._state, work).held_by = by  # behind another one: for the next commit
            partition.remember(work)
        return _row(partition, command, "held", command.reason, offset)

    def _take_out(self, work: Work) -> bool:
        """Remove a queued record from where it would start; False if it is behind another one."""
        if work.state == states.EPOCH:
            return False
        if work.state in states.STALLED:
            work.partition.lift(work)
            return True
        return work.partition.lanes.take_out(work) or self._batching.take_out(work)

    def _proceed(self, partition: Partition, command: Command, work: Work) -> fx.Obeyed:
        offset, failure = work.record.offset, work.failure
        if why := self._kept_by(partition, command, work):
            return _refused(partition, command, why, offset)
        if work.state == states.PARKED and command.dry_run:
            return _row(partition, command, "released", command.reason, offset)
        if work.state == states.PARKED:
            self._endings.release(work, command.reason)
            return _row(partition, command, "released", command.reason, offset)
        waits = work.state in states.REMEMBERED
        if not waits and self._would_wait(partition, command, work):
            return _row(partition, command, "released", "it starts when its turn comes", offset)
        if not waits:
            why = f"it is {SHOWN_NAMES[work.state]}: it waits for nothing that is to be released"
            return _row(partition, command, "unchanged", why, offset)
        assert failure is not None
        why = "released" if work.state == states.HELD or failure.exhausted_by else "retried"
        if command.dry_run:
            return _row(partition, command, why, command.reason, offset)
        if failure.exhausted_by:  # since before it came here: its policy has not been applied yet
            self._endings.start_over(work, failure, command.reason)
        partition.end_holds([offset])  # a later hold of its lane must not be shortened by it
        failure.own_due = self._state.now
        self._try_now(work)
        return _row(partition, command, why, command.reason, offset)

    def _kept_by(self, partition: Partition, command: Command, work: Work) -> str:
        """Why a command for this record alone cannot let it proceed; "" if it can."""
        if work.offset in partition.commit.marked:  # its failure ends the run (`Stop`)
            return "it was handled, and delivery=at_most_once handles no record twice"
        lane = partition.holds.get(partition.lanes.key_of(work.record))
        of_lane = lane is not None and lane is not partition.holds.get(work.offset)
        named = command.target.offset is not None  # otherwise the hold of its lane ends with this
        return HELD if named and of_lane and lane and lane.until > self._state.now else ""

    def _try_now(self, work: Work) -> None:
        """It waits no longer, unless its batch still runs a later one of its lane."""
        work.partition.lift(work)
        self._state.retries.add(self._state.now, work)
        work.partition.wait(work, states.RETRYING)

    def _would_wait(self, partition: Partition, command: Command, work: Work) -> bool:
        """Whether it would wait when its turn comes; if so, it will not, unless this is dry."""
        if work.state not in (states.QUEUED, states.EPOCH):
            return False  # its turn has come
        offset, spec, by = work.offset, partition.handler.spec, partition.holds.get(work.offset)
        held = by is not None and by.until > self._state.now
        waits = held or partition.memory.puts_off(offset, spec)
        if waits and not command.dry_run:
            partition.end_holds([offset])
            partition.memory.let_go(offset, spec)
        return waits

    def _skip(self, partition: Partition, command: Command, work: Work) -> fx.Obeyed | None:
        offset = work.record.offset
        if self._state.drained:  # no commit follows that would make it final
            why = "this member is about to leave: ask the next owner"
            return _refused(partition, command, why, offset)
        if work.state not in states.WAITING:
            return _refused(partition, command, _UNDER_WAY.format(SHOWN_NAMES[work.state]), offset)
        key = partition.lanes.key_of(work.record)
        first = next(self._of_lane(partition, key), work)
        if first is not work:
            why = f"offset {first.record.offset} of its lane comes first"
            return _refused(partition, command, why, offset)
        if key in partition.lanes.occupied:
            why = _UNDER_WAY.format("behind a call of an earlier epoch")
            return _refused(partition, command, why, offset)
        row = _row(partition, command, "skipped", command.reason, offset)
        if command.dry_run:
            return row
        self._skip_head(partition, work, command.reason)
        partition.commit.answer_later(command, row)
        return None

    def _skip_head(self, partition: Partition, work: Work, reason: str) -> None:
        state = self._state
        self._take_out(work)
        partition.end_holds([work.offset])
        failure = work.failure = work.failure or Failure(state.texts)
        partition.shelves.drop(work)
        failure.given_up = "skipped"
        failure.note(state.now, f"skipped: {reason}")
        if failure.error is None:
            failure.replace(ErrorInfo("Skipped", reason))
        if partition.handler.spec.delivery == AT_MOST_ONCE:  # it has no mark
            partition.record_done(work)
            state.complete(work)
        else:
            self._endings.handled(work)


def _is_done(partition: Partition, offset: int) -> bool:
    """Whether it is done, or missing in the log."""
    offsets = partition.offsets
    if offset in offsets.incomplete or offset in partition.commit.marked:
        return False
    return offset < offsets.position or offset <= offsets.restored_top


def _past_end(partition: Partition, offset: int) -> str:
    """A reason if the log ends before this offset."""
    end = partition.log_end
    if partition.position <= end <= offset:  # an end before the position is outdated
        return f"there is no such record: its partition ended at offset {end} a moment ago"
    return ""


def _in_turn(lane: list[Work]) -> list[Work]:
    """In starting order, which differs from the offsets after a refused output's rejoin."""
    behind = {id(work.next) for work in lane}
    left = dict.fromkeys(lane)
    ordered: list[Work] = []
    for head in sorted(lane, key=lambda work: id(work) in behind):
        work: Work | None = head
        while work is not None:
            if work in left:
                del left[work]
                ordered.append(work)
            work = work.next
    return ordered


def _left_lane(work: Work) -> bool:
    """Whether its lane has continued past it (exactly_once)."""
    return work.failure is not None and work.failure.left_lane


def _refused(partition: Partition, command: Command, why: str, offset: int = -1) -> fx.Obeyed:
    return _row(partition, command, "refused", why, offset)


def _row(
    partition: Partition | None, command: Command, outcome: str, detail: str, offset: int = -1
) -> fx.Obeyed:
    target = command.target
    number = partition.number if partition is not None else target.partition
    if target.offset is not None:
        offset = target.offset
    return fx.Obeyed(target.topic, -1 if number is None else number, offset, outcome, detail)
