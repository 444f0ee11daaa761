"""One record on its way through the core (a `Work`), and the data of a failing one.

A work is created when its record is received and dropped when it is done. Its place is given by its
`state` (states.py); the other fields are for its lane, its batch and its failures.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perkey.codec.rider import error_hash
from perkey.core.states import PUT_OFF, QUEUED, RECORD_NAMES, RECORD_TABLE, InternalError
from perkey.policies import GivenUp, Park, Retry
from perkey.types import ErrorInfo, Record

if TYPE_CHECKING:
    from perkey.core.partition import Partition

LaneKey = bytes | int | str

STORY_EVENTS_MAX = 32
FAILURE_OVERHEAD_BYTES = 1_024  # measured: Python's objects for the data of a failing record
TEXTS_MAX = 512
TEXT_OVERHEAD_BYTES = 56
#: for a record whose last error is unknown: it occurred in another member
USED_UP = ErrorInfo("Exhausted", "its attempts were used up before its partition came here")


class Tags(NamedTuple):
    """Results of the user's functions for a record; the core cannot call them."""

    #: `Hold.by`
    hold: Hashable = None
    #: `Budget.by`
    budget: Hashable = None
    #: `Budget.cost`
    cost: float = 1.0


UNTAGGED: Final = Tags()


class Work:
    """A record that was received and is not done yet."""

    __slots__ = (
        "call", "charge", "failure", "next", "offset", "outputs", "partition", "record", "since",
        "size", "state", "tags",
    )  # fmt: skip

    record: Record
    offset: int
    #: the partition epoch it belongs to; never changes
    partition: Partition
    size: int
    state: int
    #: when its latest attempt was passed on, on the engine's clock; not set before the first
    since: float
    #: results of the user's functions for it; set only if there are such functions
    tags: Tags
    #: the next record in its lane; a lane is this chain, its tail is in partition.lanes
    next: Work | None
    failure: Failure | None
    #: set while its lane has, or had, a failing record
    charge: LaneCharge | None
    #: its outputs (exactly_once: until the transaction), later the stored results
    outputs: Any
    #: the batch call that it is in, or was in last
    call: Call | None

    @classmethod
    def several(
        cls, records: Sequence[Record], sizes: Sequence[int], partition: Partition
    ) -> list[Work]:
        """One per record. No `__init__`: its call would cost as much as the rest."""
        works = list(starmap(cls, repeat((), len(records))))
        for work, record, size in zip(works, records, sizes, strict=True):
            work.record = record
            work.offset = record[2]
            work.partition = partition
            work.size = size
            work.state = QUEUED
            work.next = None
            work.failure = None
            work.charge = None
            work.outputs = None
            work.call = None
        return works

    @classmethod
    def one(cls, record: Record, size: int, partition: Partition) -> Work:
        """For one record."""
        return cls.several((record,), (size,), partition)[0]

    def move(self, state: int) -> None:
        """Change the state, by the table."""
        if (self.state, state) not in RECORD_TABLE:
            raise InternalError(
                f"{self.record!r} cannot go from {RECORD_NAMES[self.state]} to "
                f"{RECORD_NAMES[state]}; its story: {self.story()}"
            )
        self.state = state

    def fail(self, now: float, error: ErrorInfo, texts: SharedTexts) -> Failure:
        """One more attempt has failed."""
        failure = self.failure
        if failure is None:
            failure = self.failure = Failure(texts)
            failure.note(now, f"first failure, epoch {self.partition.epoch}")
        failure.count(now, error)
        return failure

    def resume(self, attempts: int, texts: SharedTexts) -> Failure:
        """It has failed this many times before it was fetched here; it has not started here."""
        failure = self.failure = Failure(texts)
        failure.attempts = attempts
        self.try_again(failure)
        return failure

    def try_again(self, failure: Failure) -> None:
        """Prepare the next attempt: the handler gets the last attempt's number and error."""
        attempt, error = failure.attempts + 1, failure.handed_on()
        self.record = self.record._replace(attempt=attempt, last_error=error)

    def drop_traceback(self) -> None:
        """It waits for long: drop the traceback of the attempt before the last."""
        error = self.record.last_error
        if error is not None and error.traceback:
            self.record = self.record._replace(last_error=error._replace(traceback=""))

    @property
    def attempts(self) -> int:
        """Failed calls of the handler so far."""
        return 0 if self.failure is None else self.failure.attempts

    @property
    def attempts_spent(self) -> int:
        """Of these, those that count towards the limit of its policy."""
        return 0 if self.failure is None else self.failure.attempts - self.failure.shared

    @property
    def retry(self) -> Retry:
        """Its retry policy: the handler's, or the one that `on_exhausted` returned for it."""
        decision = None if self.failure is None else self.failure.decision
        if decision is None or decision.retry is None:
            return self.partition.handler.spec.retry
        return decision.retry

    @property
    def given_up_by(self) -> GivenUp | None:
        """Its policy once it is exhausted; None while a function has not decided."""
        policy = self.partition.handler.spec.on_exhausted
        if isinstance(policy, GivenUp):
            return policy
        decision = None if self.failure is None else self.failure.decision
        return None if decision is None else decision.policy

    @property
    def parked_by(self) -> Park | None:
        """Its Park policy; if it arrived parked, the last one that the function returned."""
        policy = self.given_up_by or self.partition.handler.park
        return policy if isinstance(policy, Park) else None

    @property
    def put_off(self) -> bool:
        """Whether it is parked, or held: nothing of its lane moves for long."""
        return self.state in PUT_OFF

    def story(self) -> list[StoryEvent]:
        """The bounded history of its failures, oldest first."""
        return [] if self.failure is None else self.failure.story

    def __repr__(self) -> str:
        return f"<Work {self.record!r} {RECORD_NAMES[self.state]}>"


class Call:
    """One call of a handler with several records, a batch, and their order within lanes.

    A record with its own slot needs none of this; the hot loops work without.
    """

    __slots__ = ("order", "works")

    def __init__(self, order: Mapping[Work, Work]) -> None:
        #: a record -> the one before it in its lane in this call, until that is finished. It
        #: outlives the call: records that failed together come back in order
        self.order = dict(order)
        #: at_most_once: the records while the call waits for their started-marks; otherwise empty
        self.works: list[Work] = []


@dataclass(slots=True, eq=False)
class LaneCharge:
    """What a lane with a failing record holds, so that it can be charged to the right budget.

    Created when a lane first fails, and shared by all records in it then or later: moving the whole
    lane between the two budgets is one addition, not a walk.
    """

    records: int = 0
    bytes: int = 0
    blocked: bool = False
    #: the lane's head is parked: nothing of it moves any more
    parked: bool = False


# -- the data of a failing record ------------------------------------------------------------------


class StoryEvent(NamedTuple):
    """One event of a failing record, at a time of the engine's clock."""

    at: float
    what: str


class SharedTexts:
    """Stores texts that many failing records have in common once.

    A dependency that is down fails thousands of records with one traceback, of up to 2,000
    characters. The table of known texts is bounded; a text dropped from it stays shared by the
    records that have it.
    """

    def __init__(self) -> None:
        #: a dictionary keeps its order: the least recently used text comes first
        self._texts: dict[str, str] = {}

    def same(self, text: str) -> tuple[str, int]:
        """The stored copy of the text, and how many more bytes it takes if it is new."""
        known = self._texts.pop(text, None)
        kept = self._texts[text if known is None else known] = text if known is None else known
        if len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        return kept, size_bytes(kept) if known is None else 0


def size_bytes(text: str) -> int:
    """The approximate size of a text in memory; the empty text costs nothing."""
    return TEXT_OVERHEAD_BYTES + len(text) * (1 if text.isascii() else 4) if text else 0


def last_frame(traceback: str) -> str:
    """Where the error was raised: the file, line and function of the innermost frame."""
    begin = traceback.rfind('  File "')
    return traceback[begin : traceback.find("\n", begin)] if begin >= 0 else ""


class HeldBy(NamedTuple):
    """A command that holds a lane or a record."""

    #: on the engine's clock
    until: float
    reason: str = ""
    #: the sender, by its own account
    claimed_by: str = ""


@dataclass(slots=True, eq=False)
class Decision:
    """The decision of an `on_exhausted` function about one record."""

    #: number of the last question
    asked: int = 0
    #: the returned outcome
    policy: GivenUp | None = None
    #: the returned retry policy
    retry: Retry | None = None
    #: how often it returned one
    retries: int = 0


@dataclass(slots=True, eq=False)
class Failure:
    """The data of a record that has failed at least once."""

    _texts: SharedTexts
    #: the last error: type, message, and its traceback before and after the message
    _error: tuple[str, str, str, str] | None = None
    #: the last events, in two columns: a tuple for each takes four times as much
    _at: array[float] = field(default_factory=lambda: array("d"))
    _what: list[str] = field(default_factory=list)
    #: bytes of the error, of the story, and of the data for the next attempt, without texts
    #: shared with others; and how many of them are included in the record's size
    _bytes: list[int] = field(default_factory=lambda: [0] * 3)
    counted_bytes: int = 0
    #: failed calls of the handler with this record
    attempts: int = 0
    #: of these, those that cost no attempt: batch calls that failed as one, and `Hold.on`
    shared: int = 0
    #: of these, those in a row without a successful batch of the handler in between
    rounds: int = 0
    good_calls: int = 0
    #: "skipped" or "dead_lettered" once its attempts are used up and that is its policy
    given_up: str | None = None
    #: exactly_once: its output was refused after its lane had continued
    left_lane: bool = False
    #: the size limit of its next batch, after one failed as a whole; 0 is no limit
    batch_max: int = 0
    #: when the next attempt may start, or it is released, on the engine's clock
    due: float = 0.0
    #: the same without a hold; of a refused dead letter, when it may be sent again
    own_due: float = 0.0
    #: of a parked record whose dead letter is on its way: its `due`, if the letter is refused
    parked_until: float | None = None
    #: number of its entry in the schedule: older entries are ignored
    ticket: int = -1
    #: time of its first free failure with an error of `Hold.on`
    waits_since: float | None = None
    #: the command that held it last; without reason and sender if restored from the commit
    held_by: HeldBy | None = None
    #: how its attempts were used up (`codec.rider.EXHAUSTED_BY`), while they are
    exhausted_by: str = ""
    #: hash of the last error before it was fetched here
    known_hash: int | None = None
    #: hash of the current error, once a commit needs it
    _hash: int | None = None
    #: for an `on_exhausted` function, once it was called
    decision: Decision | None = None

    def count(self, now: float, error: ErrorInfo) -> None:
        """Count one more failed attempt."""
        self.attempts += 1
        again = self._error is not None and self._error[:2] == error[:2]
        self.keep(error)
        line = error.type if again else error._replace(message=error.message[:100]).line
        self.note(now, f"attempt {self.attempts} failed: {line}")

    def keep(self, error: ErrorInfo) -> None:
        """Keep this error. Without the message, tracebacks of one kind are equal: stored once."""
        kind, message, trace = error
        before, _, after = trace.rpartition(message) if message else ("", "", trace)
        after = after if before else trace
        kept = [self._texts.same(text) for text in (kind, message, before, after)]
        self._error = (kept[0][0], kept[1][0], kept[2][0], kept[3][0])
        self.known_hash = self._hash = None
        self._bytes[0], self._bytes[2] = sum([size for _, size in kept]), 0

    def replace(self, error: ErrorInfo) -> None:
        """Set the reported error, if none was kept."""
        known = self.known_hash
        self.keep(error)
        self.known_hash = known

    @property
    def error_hash(self) -> int | None:
        """A hash of the type of its last error and the place where it was raised."""
        if self._error is None or self.known_hash is not None:
            return self.known_hash
        if self._hash is None:
            kind, _, before, after = self._error
            self._hash = error_hash(kind, last_frame(before or after))
        return self._hash

    @property
    def error(self) -> ErrorInfo | None:
        """Its last error."""
        if self._error is None:
            return None
        kind, message, before, after = self._error
        return ErrorInfo(kind, message, f"{before}{message}{after}" if before else after)

    def handed_on(self) -> ErrorInfo | None:
        """Its last error, for the next attempt."""
        error = self.error
        if error is None:
            return None
        trace, self._bytes[2] = self._texts.same(error.traceback)
        return error._replace(traceback=trace)

    def uncharged(self) -> int:
        """Bytes that were not charged to the buffers yet; marks them as charged."""
        added = FAILURE_OVERHEAD_BYTES + sum(self._bytes) - self.counted_bytes
        self.counted_bytes += added
        return added

    def note(self, at: float, event: str) -> None:
        """Add an event to the bounded history."""
        if len(self._what) == STORY_EVENTS_MAX:
            self._bytes[1] = max(0, self._bytes[1] - size_bytes(self._what[0]))
            del self._what[0], self._at[0]
        event, added = self._texts.same(event)
        self._what.append(event)
        self._at.append(at)
        self._bytes[1] += added

    @property
    def story(self) -> list[StoryEvent]:
        """The last events, oldest first."""
        return list(map(StoryEvent, self._at, self._what))

    @property
    def noted_at(self) -> float | None:
        """When the last of them was."""
        return self._at[-1] if self._at else None
