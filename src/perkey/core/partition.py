"""One partition epoch: its offsets, lanes and commit, and how many of its records are where."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

from perkey.core import states
from perkey.core.events import AT_MOST_ONCE
from perkey.core.gates import REVOKING, Gate
from perkey.core.lanes import Lanes
from perkey.core.memory import Shelves
from perkey.core.offsets import Reach
from perkey.core.states import DONE, EPOCH_NAMES, EPOCH_TABLE, QUEUED, RUNNING, InternalError
from perkey.types import Record, TopicPartition

if TYPE_CHECKING:
    from perkey.core.commits import CommitState
    from perkey.core.memory import Memory
    from perkey.core.offsets import Offsets, Snapshot
    from perkey.core.scheduling import Handler
    from perkey.core.work import Failure, HeldBy, LaneKey, Tags, Work

_RETRYING = (states.RETRYING, states.HELD, states.ASKED)
_WILL_START = (*_RETRYING, states.OUTAGE, states.BUDGET)


@dataclass(slots=True, eq=False, repr=False)
class Partition:
    """One assignment of one partition to this member. A new assignment is a new object."""

    topic: str
    number: int
    #: number of the assignment in this member; answers of other epochs are dropped
    epoch: int
    handler: Handler
    offsets: Offsets
    commit: CommitState
    #: lanes in which an attempt of an earlier epoch still runs
    occupied: InitVar[Iterable[LaneKey]] = ()
    #: heads of lanes to look at when their turn comes (`watch`); shared with other partitions
    turns: InitVar[deque[Work] | None] = None
    #: last known end of the log; -1 if unknown
    log_end: int = -1
    lanes: Lanes = field(init=False)
    reach: Reach = field(init=False)
    memory: Memory = field(init=False)
    shelves: Shelves = field(init=False)
    state: int = states.OPEN
    #: why nothing of it may start
    gate: Gate = field(default_factory=Gate)
    #: True while it is in its handler's rotation
    listed: bool = False
    #: not fetched for now
    intake_paused: bool = False
    # number of its records in each place
    in_flight: int = 0
    sending: int = 0
    #: held lanes
    holds: dict[LaneKey, HeldBy] = field(default_factory=dict)
    #: bytes of all records it holds
    bytes: int = 0
    #: exactly_once: bytes of outputs that wait for a transaction
    outputs: dict[Work, int] = field(default_factory=dict)
    outputs_bytes: int = 0

    def __post_init__(self, occupied: Iterable[LaneKey], turns: deque[Work] | None) -> None:
        turns = deque() if turns is None else turns
        self.lanes = Lanes(self.handler.spec.ordering, turns, dict.fromkeys(occupied))
        self.memory = self.commit.memory
        self.reach = Reach(self.offsets, self.commit, self.lanes.far)
        self.shelves = Shelves(self)
        self.watch()

    # -- the epoch -------------------------------------------------------------------------------

    def move(self, state: int) -> None:
        """Change the state of the epoch, by the table."""
        if (self.state, state) not in EPOCH_TABLE:
            raise InternalError(
                f"{self!r} cannot go from {EPOCH_NAMES[self.state]} to {EPOCH_NAMES[state]}"
            )
        self.state = state
        self.gate.close(REVOKING)

    # -- intake ----------------------------------------------------------------------------------

    def admit(self, records: Sequence[Record], sizes: Sequence[int]) -> None:
        """Add records of one poll, ascending."""
        works = self.offsets.receive(records, sizes, self)
        new = len(works) == len(sizes)
        self.bytes += sum(sizes if new else [work.size for work in works])
        if self.lanes.shelves:
            works = [work for work in works if not self.shelves.keep_off(work)]
        self.lanes.join(works)

    def tag(self, records: Sequence[Record], values: Sequence[Tags]) -> None:
        """Store the results of the user's functions for records that were just fetched."""
        for record, value in zip(records, values, strict=True):
            work = self.offsets.incomplete.get(record[2])
            if work is not None:
                work.tags = value

    # -- calls -----------------------------------------------------------------------------------

    def call_ended(self) -> None:
        """One of its records has returned from the handler."""
        self.in_flight -= 1

    def finished(self, count: int, size: int, top: int) -> None:
        """This many calls have returned and are done; their lanes have continued."""
        self.in_flight -= count
        self.bytes -= size
        if count:
            self.offsets.top = top
            self.offsets.changed = True
            self.handler.enlist(self)

    def record_done(self, work: Work) -> None:
        """The record is done: mark its offset, and continue its lane."""
        self.bytes -= work.size
        self.offsets.done(work.offset)
        work.state = states.DONE
        if self.lanes.leave(work) and not self.listed:
            self.handler.enqueue(self)

    def pending_done(self, work: Work) -> None:
        """The record is done, and its lane has continued already (claims of exactly_once)."""
        self.bytes -= work.size
        self.offsets.done(work.offset)
        work.state = states.DONE

    def hold_outputs(self, work: Work, size_bytes: int) -> None:
        """Its outputs wait for a transaction."""
        self.outputs[work] = size_bytes
        self.outputs_bytes += size_bytes

    def drop_outputs(self, work: Work) -> int:
        """Its outputs are stored, or refused; returns their bytes."""
        size_bytes = self.outputs.pop(work, 0)
        self.outputs_bytes -= size_bytes
        return size_bytes

    def release(self, work: Work) -> None:
        """Its lane continues, though the record is not finished."""
        continues = self.lanes.leave(work)
        work.charge = None
        if continues and not self.listed:
            self.handler.enqueue(self)

    def mark(self, work: Work) -> None:
        """at_most_once: the started-mark is stored, so its offset counts as done."""
        offset = work.offset
        self.offsets.mark(offset)
        self.commit.marked[offset] = work
        work.move(states.RUNNING)
        self.in_flight += 1

    def unmark(self, work: Work) -> None:
        """at_most_once: it was marked and never started, so the mark is withdrawn."""
        offset = work.offset
        del self.commit.marked[offset]
        self.offsets.undone(offset, work)

    def marked_done(self, work: Work) -> None:
        """at_most_once: its offset is done since its mark; only its lane has to continue."""
        self.bytes -= work.size
        del self.commit.marked[work.offset]
        work.state = states.DONE
        if self.lanes.leave(work) and not self.listed:
            self.handler.enqueue(self)

    # -- room in the map -------------------------------------------------------------------------

    def may_start(
        self, work: Work, looked: dict[Any, None], taken: Iterable[Work] = (), *, spend: bool = True
    ) -> bool:
        """Whether the map has room for the record; measures again if that is necessary and useful.

        Once per turn (`looked`) is enough: nothing is done within one. `taken`: how many others
        start in this turn before it. `spend`: it starts now, and takes its room.
        """
        offset = work.offset
        room = self.reach.take_room if spend else self.reach.has_room
        if room(offset):
            return True
        if self in looked:
            return False
        looked[self] = None
        under_way = self._under_way() + sum(other.partition is self for other in taken)
        if not self.reach.worth_a_look(under_way):
            return False
        self.reach.look(under_way, offset)
        return room(offset)

    def reopen(self) -> None:
        """Check records that waited for room again: free ones, then the nearest."""
        reach, lanes, under_way = self.reach, self.lanes, self._under_way()
        if lanes.far:
            if not reach.worth_a_look(under_way):
                return
            reach.look(under_way, lanes.nearest_far)
            for offset in reach.freed():
                if offset in lanes.far:
                    self.readmit(lanes.far[offset])
            room = reach.budget
            while lanes.far and (price := reach.price(lanes.nearest_far)) is not None:
                room -= price
                if room < 0 < price:
                    break
                self.readmit(lanes.far[lanes.nearest_far])
        if not lanes.far:
            self.handler.short_of_room.pop(self, None)

    @property
    def map_share(self) -> float:
        """The taken share of the room for starts in the map.

        1 while records wait for room and no running record could make some.
        """
        return 1.0 if self.lanes.far and not self._under_way() else self.reach.share

    def _under_way(self) -> int:
        """How many records have started and are not in the map yet."""
        if self.handler.spec.delivery == AT_MOST_ONCE:
            return 0  # the map has them since their mark
        return self.in_flight + self.sending

    # -- waiting ---------------------------------------------------------------------------------

    def send(self, work: Work) -> None:
        """Its outputs or its dead letter are on the way to the broker."""
        work.move(states.SENDING)
        self.sending += 1
        if self.handler.spec.commit_each:  # it is not finished: it holds a slot
            self.handler.slots.take()

    def sent(self) -> None:
        """The broker has answered for one of them."""
        self.sending -= 1
        if self.handler.spec.commit_each:
            self.handler.slots.give()

    def wait(self, work: Work, why: int) -> None:
        """The head of a lane waits for this reason; its owner lifts it."""
        work.move(why)
        lanes = self.lanes
        lanes.waiting[why] += 1
        if why in states.BLOCKING:
            lanes.block(work)
        if why in states.REMEMBERED:
            self.remember(work)
        if why == states.ROOM:
            lanes.put_far(work)
        elif why == states.BYTES:
            self.shelves.wanted[work] = None
        elif why == states.PARKED:
            self.handler.standing += 1

    def lift(self, work: Work) -> None:
        """The reason for which it waited is over: it is queued, and nowhere else."""
        why, lanes = work.state, self.lanes
        lanes.waiting[why] -= 1
        work.move(states.QUEUED)
        if why == states.ROOM:
            del lanes.far[work.offset]
        elif why == states.BYTES:
            del self.shelves.wanted[work]
        elif why in states.PUT_OFF:
            lanes.block(work)
            self.remember(work)  # else a next owner would hold it until the end of the hold
            self.handler.standing -= why == states.PARKED

    def readmit(self, work: Work) -> None:
        """The reason for which it waited is over, and it may start."""
        self.lift(work)
        self.make_ready(work)

    def make_ready(self, work: Work) -> None:
        """Nothing keeps this head waiting."""
        self.lanes.may_start(work)
        self.handler.enlist(self)

    def remember(self, work: Work) -> None:
        """Something of an unfinished record has changed: the next commit contains it."""
        self.memory.keep(work)

    def charge_failure(self, work: Work, failure: Failure) -> None:
        """Charge the kept data of its failures to the buffers, as the record itself."""
        self.resize(work, failure.uncharged())

    def resize(self, work: Work, size_bytes: int) -> None:
        """It keeps this many bytes more, or fewer."""
        work.size += size_bytes
        self.bytes += size_bytes
        self.lanes.grow(work, size_bytes)

    # -- what is known of records before their turn comes ----------------------------------------

    def watch(self) -> None:
        """Look at each record when its turn comes, as long as something is known of some.

        Otherwise it is ready then. So the hot paths know neither what commits remember nor holds.
        """
        known = self.memory.waiting or self.holds
        self.lanes.up = self.lanes.turns if known else self.lanes.ready

    def start_over(self, offset: int) -> bool:
        """Forget what is remembered of a record whose turn has not come; False if nothing is."""
        known = self.memory.start_over(offset)
        self.watch()
        return known

    def knows(self, work: Work, now: float) -> bool:
        """Whether this record may have to wait when its turn comes."""
        failure = work.failure
        if failure is not None and (failure.exhausted_by or failure.own_due > now):
            return True
        if self.lanes.up is self.lanes.ready:
            return False
        return self.memory.waits_for(work.offset) or self.held_by(work, now) is not None

    def set_hold(self, key: LaneKey, by: HeldBy) -> None:
        """Nothing of this lane starts before the hold is over; an offset: not this record."""
        self.holds[key] = by
        self.watch()

    def end_holds(self, places: Iterable[LaneKey]) -> bool:
        """End the holds of these lanes and records; True if there was one."""
        ended = [self.holds.pop(place, None) for place in places] if self.holds else ()
        self.watch()
        return any(ended)

    def end_expired(self, work: Work, now: float) -> None:
        """Forget the holds of this record that are over."""
        holds = self.holds
        places = [place for place in self.holds_of(work) if place in holds]
        self.end_holds([place for place in places if holds[place].until <= now])

    def is_free(self, work: Work, now: float) -> bool:
        """Whether neither a hold nor a later record of its batch keeps it where it is."""
        return not self.lanes.mate_runs(work) and self.held_by(work, now) is None

    def holds_of(self, work: Work) -> tuple[LaneKey, LaneKey]:
        """The keys of `holds` that concern this record: its lane's, and its own."""
        return self.lanes.key_of(work.record), work.offset

    def held_by(self, work: Work, now: float) -> HeldBy | None:
        """The hold of a record or its lane, the one that ends last; None if there is none."""
        if not self.holds:
            return None
        longest = None
        for key in self.holds_of(work):
            by = self.holds.get(key)
            if by is not None and by.until > now and (longest is None or by.until > longest.until):
                longest = by
        return longest

    def close(self) -> None:
        """The epoch has ended: drop what waits."""
        self.offsets.incomplete.clear()
        self.offsets.shelved = 0
        self.lanes.clear()
        self.commit.close()

    # -- the view: what others may read (tests/test_core_view.py) --------------------------------

    @property
    def will_start(self) -> bool:
        """Whether some of its heads start without a command, sooner or later."""
        return bool(self.lanes.ready) or any(map(self.lanes.waiting.__getitem__, _WILL_START))

    @property
    def parked(self) -> int:
        """How many of its records are parked."""
        return self.lanes.waiting[states.PARKED]

    @property
    def retrying(self) -> int:
        """How many wait for their next attempt, for a command, or for `on_exhausted`."""
        return sum(map(self.lanes.waiting.__getitem__, _RETRYING))

    @property
    def where(self) -> TopicPartition:
        """Its topic and number."""
        return self.topic, self.number

    @property
    def position(self) -> int:
        """The offset after the last one received."""
        return self.offsets.position

    @property
    def busy(self) -> bool:
        """Whether any of its records is received, or restored, and not done."""
        return bool(self.offsets.incomplete)

    @property
    def healthy(self) -> int:
        """Records held that are not done, without those in lanes with a failing record."""
        return self.offsets.buffered - self.lanes.blocked_records

    @property
    def committed(self) -> int:
        """The offset stored for the group, as far as known; -1 for none."""
        return self.commit.committed

    def committed_or_sent(self) -> list[range]:
        """Offsets that the broker may store: the known one, refused ones, the one in flight."""
        latest = self.commit
        sent = [] if latest.sent is None else [latest.sent.frontier]
        return [latest.refusals, *(range(at, at + 1) for at in (latest.committed, *sent))]

    @property
    def last_sent(self) -> int:
        """The sequence of the last commit."""
        return self.commit.sequence

    @property
    def committing(self) -> bool:
        """Whether a commit is in flight, or in doubt."""
        return self.commit.state != states.IDLE

    @property
    def claiming(self) -> bool:
        """Whether some record's next step waits for a commit."""
        return bool(self.commit.claims)

    @property
    def commits_again(self) -> bool:
        """Whether its last commit has to be sent again, even without a change."""
        return self.commit.repeat

    @property
    def settled(self) -> bool:
        """Whether everything that a commit would contain is stored."""
        return not self.commit.dirty and not self.committing

    def unfinished(self, end: int) -> Iterator[Work | None]:
        """Unfinished records before this offset; None for one not fetched yet.

        Of a parked lane only records that are kept whole.
        """
        yield from (work for offset, work in self.commit.marked.items() if offset < end)
        stuck = self.shelves.stuck() if self.offsets.shelved else ()
        for offset, work in self.offsets.incomplete.items():
            if offset >= end:
                return
            if offset not in stuck:  # its parked record represents it
                yield work

    def works(self) -> list[Work]:
        """Every unfinished record of the epoch."""
        return [*self.offsets.works(), *self.commit.marked.values()]

    @property
    def buffered(self) -> int:
        """Records held in memory that are not done."""
        return self.offsets.buffered

    @property
    def frontier(self) -> int:
        """The lowest offset not yet done."""
        return self.offsets.frontier

    def snapshot(self, claims: Sequence[Work] | None = None) -> Snapshot:
        """Frontier, top and holes together; these claims (or all) count as done."""
        claims = self.commit.claims if claims is None else claims
        return self.offsets.snapshot({work.offset for work in claims})

    def __repr__(self) -> str:
        return f"<Partition {self.topic}[{self.number}] epoch {self.epoch}>"


# -- the two hottest loops, over records of any partitions: few calls for each ---------------------


def begin(works: Iterable[Work], now: float) -> None:
    """These are in their handlers from now on."""
    for work in works:
        work.state = RUNNING
        work.since = now
        work.partition.in_flight += 1


def plain_done(works: Iterable[Work]) -> list[Work]:
    """Calls that returned with nothing to send: finish the simple ones; returns the others."""
    others: list[Work] = []
    partition, ended, size, top = None, 0, 0, 0
    for work in works:
        if work.partition is not partition:
            if partition is not None:
                partition.finished(ended, size, top)
            partition = work.partition
            handler, offsets, lanes = partition.handler, partition.offsets, partition.lanes
            plain, add_ready = handler.plain, lanes.up.append
            incomplete, top = offsets.incomplete, offsets.top
            ended = size = 0
        if work.state != RUNNING or not plain:
            others.append(work)
            continue
        ended += 1
        size += work.size
        work.state = DONE
        offset = work.offset  # as `Offsets.done`
        del incomplete[offset]
        if offset > top:  # noqa: PLR1730 - once a record: max() costs five times as much
            top = offset
        following = work.next
        if (
            following is not None
            and following.state == QUEUED
            and work.charge is None
            and work.call is None
        ):
            add_ready(following)  # as `Lanes.leave`
        else:
            lanes.leave(work)
    if partition is not None:
        partition.finished(ended, size, top)
    return others
