"""One record on its way through the core, and what is kept of a failing one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.core.states import QUEUED, RECORD_NAMES, RECORD_TABLE, InternalError
from weft.types import ErrorInfo, Record

if TYPE_CHECKING:
    from weft.core.partition import Partition

LaneKey = bytes | int | str

STORY_EVENTS_MAX = 32
RECORD_OVERHEAD_BYTES = 512  # what Python's objects around one record cost, measured


class StoryEvent(NamedTuple):
    """One thing that happened to a failing record, at a time of the engine's clock."""

    at: float
    what: str


class Failure:
    """What is known of a record that has failed at least once."""

    __slots__ = ("attempts", "batch_max", "due", "error", "given_up", "left_lane", "story")

    def __init__(self) -> None:
        self.attempts = 0
        self.error: ErrorInfo | None = None
        #: "skipped" or "dead_lettered" once its attempts are used up and that is its policy
        self.given_up: str | None = None
        #: exactly_once: its output was refused after its lane had gone on
        self.left_lane = False
        #: the size its next batch may have, after one failed whole; 0 is no limit
        self.batch_max = 0
        #: when the next attempt may start, on the engine's clock
        self.due = 0.0
        self.story: deque[StoryEvent] = deque(maxlen=STORY_EVENTS_MAX)

    def tell(self, at: float, what: str) -> None:
        """Add to the bounded history."""
        self.story.append(StoryEvent(at, what))


class LaneCharge:
    """What a lane with a failing record holds, so that it can be charged to the right budget.

    Made when a lane first fails and shared by all records that are in it then or join later:
    moving the whole lane between the two budgets is then one addition, not a walk.
    """

    __slots__ = ("blocked", "bytes", "parked", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.blocked = False
        #: the lane's head is parked: nothing of it moves any more
        self.parked = False


class Work:
    """A record that was received and is not done yet."""

    __slots__ = ("charge", "extra", "failure", "next", "partition", "record", "size", "state")

    def __init__(self, record: Record, partition: Partition, size: int) -> None:
        self.record = record
        #: the partition epoch it belongs to; never changes
        self.partition = partition
        self.size = size
        self.state = QUEUED
        #: the record behind it in its lane; a lane is this chain, its tail is in partition.lanes
        self.next: Work | None = None
        self.failure: Failure | None = None
        #: set while its lane has, or had, a failing record
        self.charge: LaneCharge | None = None
        #: what a delivery mode keeps with it: outputs of exactly_once
        self.extra: Any = None

    @property
    def attempts(self) -> int:
        """Calls of the handler that have failed so far."""
        return 0 if self.failure is None else self.failure.attempts

    def move(self, state: int) -> None:
        """Change the state, by the table."""
        if (self.state, state) not in RECORD_TABLE:
            raise InternalError(
                f"{self.record!r} cannot go from {RECORD_NAMES[self.state]} to "
                f"{RECORD_NAMES[state]}; its story: {self.story()}"
            )
        self.state = state

    def story(self) -> list[StoryEvent]:
        """The bounded history of its failures, oldest first."""
        return [] if self.failure is None else list(self.failure.story)

    def __repr__(self) -> str:
        return f"<Work {self.record!r} {RECORD_NAMES[self.state]}>"
