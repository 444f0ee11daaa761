"""The oracle's knowledge: every record of every partition, and the history of every epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING

from perkey.codec import decode
from perkey.core.events import KEY, PARTITION, HandlerSpec
from perkey.core.partition import Partition
from perkey.policies import Retry
from perkey.testing.memory import OffsetAndMetadata
from perkey.types import TopicPartition

if TYPE_CHECKING:
    from perkey.testing.memory import Log


class Source:
    """One source partition: which records there are, and what became of them in the whole run."""

    def __init__(self, tp: TopicPartition, log: Log, spec: HandlerSpec) -> None:
        self.tp = tp
        self.log = log
        self.spec = spec
        self.keys: dict[int, bytes | None] = {}
        self.alive: set[int] = set()
        #: lane -> its offsets, ascending
        self.lanes: dict[Hashable, list[int]] = {}
        #: completed, dead-lettered or skipped by an attempt whose epoch was still open
        self.finished: set[int] = set()
        self.starts: Counter[int] = Counter()
        #: it was answered that these are skipped
        self.skipped: set[int] = set()
        #: ids of the commands that this was answered to
        self.skipped_by: set[str] = set()
        #: written in another service's transaction that is still open
        self.undecided: list[int] = []
        #: at_most_once: marked in a commit, then its member died before the start
        self.excused: set[int] = set()

    def add(self, offset: int, key: bytes | None) -> None:
        """A producer wrote this record and has the broker's acknowledgement."""
        self.write(offset, key)
        self.alive.add(offset)

    def write(self, offset: int, key: bytes | None) -> None:
        """A record that nobody may read yet."""
        self.keys[offset] = key
        self.lanes.setdefault(self.lane(offset), []).append(offset)

    def decide(self, *, committed: bool) -> None:
        """The transaction of another service has ended."""
        undecided, self.undecided = self.undecided, []
        if committed:
            there = {record.offset for record in self.log.records}
            self.alive |= there.intersection(undecided)

    def remove(self, offsets: set[int]) -> None:
        """Compaction or retention took these."""
        self.alive -= offsets

    def lane(self, offset: int) -> Hashable:
        """What is handled one at a time, by the contract's words."""
        key = self.keys[offset]
        if self.spec.ordering == PARTITION:
            return "*"
        return key if self.spec.ordering == KEY and key is not None else offset


class Claimed:
    """What a commit says is done."""

    def __init__(self, offset: int, metadata: str) -> None:
        found = decode(offset, metadata)
        self.offset = offset
        self.top = found.highest_seen
        self.holes = frozenset(found.not_done)

    def __contains__(self, offset: int) -> bool:
        return offset < self.offset or (offset <= self.top and offset not in self.holes)


class Life:
    """One partition epoch of one member, as seen from outside."""

    def __init__(
        self, member: str, partition: Partition, source: Source, committed: OffsetAndMetadata | None
    ) -> None:
        self.member = member
        self.partition = partition
        self.source = source
        self.spec = source.spec
        self.state = "open"
        #: what was done before, by the broker's word
        self.known = Claimed(*(committed or (source.log.start, "")))
        self.polled: set[int] = set()
        #: the log has these no more; of a lane that was held meanwhile they are asked for again
        self.gone: set[int] = set()
        #: what each of them weighs
        self.sizes: dict[int, int] = {}
        #: the lane may go on past these
        self.passed: set[int] = set()
        #: done, and acknowledged where that is asked for
        self.finished: set[int] = set()
        #: exactly_once: handled, to be in a transaction; Commit(each): done, not committed
        self.claimable: set[int] = set()
        #: at_most_once: handed to the handler
        self.started: set[int] = set()
        #: at_most_once: in the claims of some commit
        self.marked: set[int] = set()
        self.running: set[int] = set()
        self.sending: set[int] = set()
        self.dead_letters: set[int] = set()
        #: parked records by when they go to the dead-letter topic (relieving.py); the last one
        #: that did, since when one has to, and when letters of parked records were refused
        self.give_up_at: dict[int, float] = {}
        self.relieved: int | None = None
        self.relief_due_since: float | None = None
        self.refused_at: dict[int, float] = {}
        #: given up when their time was over: their attempts had started over, or had not yet
        self.time_over: set[int] = set()
        #: until when; inf: until somebody releases it
        self.parked: dict[int, float] = {}
        #: by a command or what was remembered: as done without handling
        self.given_up: set[int] = set()
        #: exhausted, and the function that is `on_exhausted` has not returned -> the number of the
        #: question; 0: it was not asked yet, or a hold withdrew that
        self.asked: dict[int, int] = {}
        #: it returned these; and how often
        self.policies: dict[int, Retry] = {}
        self.retries: Counter[int] = Counter()
        #: came with all attempts used up
        self.came_spent: set[int] = set()
        #: since when they fail with what `Hold.on` names
        self.waits_since: dict[int, float] = {}
        #: records, and lanes, that are held until then
        self.held_until: dict[int, float] = {}
        self.holds: dict[Hashable, float] = {}
        self.refused: set[int] = set()
        #: calls that failed, and of these those that were about this record alone
        self.attempts: Counter[int] = Counter()
        self.own_attempts: Counter[int] = Counter()
        #: not before this time (retry delays)
        self.not_before: dict[int, float] = {}
        #: since when it could have started, at the latest
        self.startable: dict[int, float] = {}
        self.cursor: dict[Hashable, int] = {}
        self.base = -1
        #: something has been done since this time and no commit has said so
        self.uncovered_since: float | None = None
        #: at_least_once: so many records
        self.uncovered = 0

    def held(self) -> list[int]:
        """Sizes of the records that the member must have in memory."""
        there = self.polled - self.passed - self.given_up
        return [self.sizes[o] for o in there if o not in self.known and not self.away(o)]

    def away(self, offset: int) -> bool:
        """Parked, or behind a parked record: the engine keeps its offset (invariants.py looks)."""
        undone = self.partition.offsets.incomplete
        if offset not in undone:
            return False
        work = undone[offset]
        return work is None or work in self.partition.shelves.bare

    def needs_handling(self, offset: int) -> bool:
        """The lane waits for this record in this epoch."""
        if offset in self.passed or offset in self.known or offset in self.given_up:
            return False
        return offset in self.source.alive or offset in self.polled

    def next_of(self, lane: Hashable, inside: Collection[tuple[TopicPartition, int]] = ()) -> int:
        """The first record of the lane that must be handled now; `inside`: in the same call."""
        offsets = self.source.lanes[lane]
        place = self.cursor.get(lane, 0)
        while place < len(offsets) and not self.needs_handling(offsets[place]):
            place += 1
        self.cursor[lane] = place
        while place < len(offsets) and (
            (self.source.tp, offsets[place]) in inside or not self.needs_handling(offsets[place])
        ):
            place += 1
        return offsets[place] if place < len(offsets) else -1
