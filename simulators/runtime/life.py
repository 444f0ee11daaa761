"""The oracle's knowledge of one partition, one epoch of it, and one call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from perkey.codec import decode
from perkey.kafka.ports import OutMessage

Place = tuple[int, int]  # partition and offset of the one topic


class Claimed:
    """What a commit says is done."""

    def __init__(self, offset: int = 0, metadata: str = "") -> None:
        found = decode(offset, metadata)
        self.offset = offset
        self.top = found.highest_seen
        self.holes = frozenset(found.not_done)

    def __contains__(self, offset: int) -> bool:
        return offset < self.offset or (offset <= self.top and offset not in self.holes)


@dataclass(slots=True)
class Source:
    """One partition of the topic."""

    #: offset -> its lane, and when it was written
    lane_of: dict[int, Hashable] = field(default_factory=dict)
    written_at: dict[int, float] = field(default_factory=dict)
    fetched_at: dict[int, float] = field(default_factory=dict)
    lanes: dict[Hashable, list[int]] = field(default_factory=dict)
    #: what the broker holds
    held: Claimed = field(default_factory=Claimed)
    #: which commit says so, by when it was sent first
    held_by: int = 0
    #: handled, with whatever was to be sent for it in the broker's log
    finished: set[int] = field(default_factory=set)
    #: exhausted and skipped
    skipped: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    #: at_most_once: begun, whoever it was
    begun: set[int] = field(default_factory=set)
    #: claimed by any commit
    claimed: set[int] = field(default_factory=set)

    def add(self, offset: int, lane: Hashable, now: float) -> None:
        """A record was written."""
        self.lane_of[offset] = lane
        self.written_at[offset] = now
        self.lanes.setdefault(lane, []).append(offset)


@dataclass(slots=True, eq=False)
class Life:
    """One partition epoch of one member."""

    member: str
    partition: int
    source: Source
    known: Claimed
    since: float
    state: str = "open"
    revoking_at: float = 0.0
    lost: bool = False
    closed_at: float = 0.0
    #: when that began, nothing kept the last commit from being stored
    undisturbed: bool = False
    #: and the member was told to stop before: what is in flight was waited for already
    stopping: bool = False
    #: returned well; with outputs, these may still be on their way
    handled: set[int] = field(default_factory=set)
    #: the lane may go on past these
    passed: dict[int, float] = field(default_factory=dict)
    #: lane -> the call that runs something of it
    running: dict[Hashable, Call] = field(default_factory=dict)
    #: failed attempts, of the handler or of what it sent
    failures: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    #: attempts that returned well when their time was over, or nearly: they may count as failed
    late: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    #: a failed record may be tried again from the first time on, and must be from the second on
    again_at: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: no further attempt: parked, or with its dead letter on the way
    exhausted: set[int] = field(default_factory=set)
    #: whether the attempt counts is the runtime's business: its time was over, or nearly
    unsure: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Call:
    """One call of a handler."""

    number: int
    member: str
    places: list[Place]
    lives: dict[int, Life]
    began: float
    #: places that are still the handler's
    open: set[Place]
    #: the thread it is on
    task: object = None
    #: outputs on their way, by the place they were returned for
    outputs: dict[Place, list[int]] = field(default_factory=dict)
    #: handled, and their acknowledgement by another thread has not returned
    acking: set[Place] = field(default_factory=set)
    ended: float | None = None

    def let_go(self) -> None:
        """It is about to end: what is being acknowledged may come behind that."""
        for number, offset in self.acking:
            self.lives[number].unsure.add(offset)


def of_dead_letter(message: OutMessage) -> Place:
    """The place of the record that it is of."""
    headers = dict(message.headers)
    number, offset = headers["__dlq.errors.partition"], headers["__dlq.errors.offset"]
    return int(number or b""), int(offset or b"")
