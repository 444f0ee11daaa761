"""One record on its way through the core (a `Work`), and what is kept of a failing one.

A work is made when its record is received and dropped when it is done. Where it stands is its
`state` (states.py); everything else here is what its lane, its batch and its failures need.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weft.codec.rider import error_hash
from weft.core.states import (
    PARKED,
    QUEUED,
    RECORD_NAMES,
    RECORD_TABLE,
    RETRYING,
    InternalError,
)
from weft.policies import GivenUp, Park, Retry
from weft.types import ErrorInfo, Record

if TYPE_CHECKING:
    from weft.core.partition import Partition

LaneKey = bytes | int | str

STORY_EVENTS_MAX = 32
FAILURE_OVERHEAD_BYTES = 1_024  # Python's objects around what is kept of a failing record, measured
TEXTS_MAX = 512
TEXT_OVERHEAD_BYTES = 56


class Tags(NamedTuple):
    """What functions of the user return for a record; the core cannot call them."""

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
        "call", "charge", "failure", "next", "outputs", "partition", "record", "since",
        "size", "state", "tags",
    )  # fmt: skip

    #: when its latest attempt was passed on, on the engine's clock; not set before the first
    since: float
    #: what functions of the user return for it; set only where there are such
    tags: Tags

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
        #: what it has to produce (exactly_once: until the transaction), then what was stored of it
        self.outputs: Any = None
        #: the batch it is, or was last, called in
        self.call: Call | None = None

    @classmethod
    def several(
        cls, records: Sequence[Record], sizes: Sequence[int], partition: Partition
    ) -> list[Work]:
        """One for each record, as the constructor makes it, without a call for each."""
        works: list[Work] = list(map(object.__new__, repeat(cls, len(records))))
        for work, record, size in zip(works, records, sizes, strict=True):
            work.record = record
            work.partition = partition
            work.size = size
            work.state = QUEUED
            work.next = None
            work.failure = None
            work.charge = None
            work.outputs = None
            work.call = None
        return works

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
        """So many attempts failed before it came in; it has not started here."""
        failure = self.failure = Failure(texts)
        failure.attempts = attempts
        self.try_again(failure)
        return failure

    def try_again(self, failure: Failure) -> None:
        """The handler is given the attempt before and its error."""
        attempt, error = failure.attempts + 1, failure.handed_on()
        self.record = self.record._replace(attempt=attempt, last_error=error)

    def shed(self) -> None:
        """It waits: the traceback of the attempt before the last is not kept as long."""
        error = self.record.last_error
        if error is not None and error.traceback:
            self.record = self.record._replace(last_error=error._replace(traceback=""))

    @property
    def attempts(self) -> int:
        """Calls of the handler that have failed so far."""
        return 0 if self.failure is None else self.failure.attempts

    @property
    def retry(self) -> Retry:
        """How it is tried again: by its handler's policy, or the one that was decided for it."""
        decision = None if self.failure is None else self.failure.decision
        if decision is None or decision.retry is None:
            return self.partition.handler.spec.retry
        return decision.retry

    @property
    def given_up_by(self) -> GivenUp | None:
        """What becomes of it once it is exhausted; None while a function has not decided that."""
        policy = self.partition.handler.spec.on_exhausted
        if isinstance(policy, GivenUp):
            return policy
        decision = None if self.failure is None else self.failure.decision
        return None if decision is None else decision.policy

    @property
    def put_off(self) -> bool:
        """It is parked, or held: nothing of its lane moves, and that is for long."""
        failure = self.failure
        held = self.state == RETRYING and failure is not None and failure.held
        return held or self.state == PARKED

    @property
    def parked_by(self) -> Park | None:
        """What it is parked by; one that came parked: what its handler's function returned last."""
        policy = self.given_up_by or self.partition.handler.valve
        return policy if isinstance(policy, Park) else None

    @property
    def exported_in_time(self) -> bool:
        """Where it stays parked for `after_s`, it is exported then, not released."""
        policy = self.parked_by
        return policy is not None and policy.after_s is not None

    def story(self) -> list[StoryEvent]:
        """The bounded history of its failures, oldest first."""
        return [] if self.failure is None else self.failure.story

    def __repr__(self) -> str:
        return f"<Work {self.record!r} {RECORD_NAMES[self.state]}>"


class Call:
    """One call of a handler with several records, a batch, and who of them goes before whom.

    A record that has a slot of its own needs none of this; the hot loops do without.
    """

    __slots__ = ("first", "order", "running", "works")

    def __init__(self, order: Mapping[Work, Work], first: Work) -> None:
        #: a record of it that names it, also once all are acknowledged
        self.first = first
        #: records that have not ended yet, where calls have a time-out (`Slots.time`). One that
        #: was acknowledged and whose outputs were refused may be in another call by now
        self.running: dict[Work, None] = {}
        #: a record -> the one before it in its lane in this call, until that is finished with.
        #: Outlives the call: what failed together comes back in its order
        self.order = dict(order)
        #: at_most_once: the records while the call waits for their started-marks; else empty
        self.works: list[Work] = []


@dataclass(slots=True, eq=False)
class LaneCharge:
    """What a lane with a failing record holds, so that it can be charged to the right budget.

    Made when a lane first fails and shared by all records that are in it then or join later:
    moving the whole lane between the two budgets is then one addition, not a walk.
    """

    records: int = 0
    bytes: int = 0
    blocked: bool = False
    #: the lane's head is parked: nothing of it moves any more
    parked: bool = False


# -- what is kept of a failing record --------------------------------------------------------------


class StoryEvent(NamedTuple):
    """One thing that happened to a failing record, at a time of the engine's clock."""

    at: float
    what: str


class SharedTexts:
    """Texts that many failing records have in common are kept once.

    A dependency that is down fails thousands of records with one traceback, of up to 2,000
    characters. The table that finds equal ones is bounded; what it forgets stays shared by those
    that have it.
    """

    def __init__(self) -> None:
        #: a dictionary keeps its order: the one that was asked for least lately comes first
        self._texts: dict[str, str] = {}

    def same(self, text: str) -> tuple[str, int]:
        """The text as it is kept already, and how many bytes it takes more if it is not."""
        known = self._texts.pop(text, None)
        kept = self._texts[text if known is None else known] = text if known is None else known
        if len(self._texts) > TEXTS_MAX:
            del self._texts[next(iter(self._texts))]
        return kept, size_bytes(kept) if known is None else 0


def size_bytes(text: str) -> int:
    """About what a text takes in memory; the empty one is everywhere the same."""
    return TEXT_OVERHEAD_BYTES + len(text) * (1 if text.isascii() else 4) if text else 0


class HeldBy(NamedTuple):
    """A command that holds a lane or a record."""

    #: on the engine's clock
    until: float
    reason: str = ""
    #: the sender, by its own account
    claimed_by: str = ""


@dataclass(slots=True, eq=False)
class Decision:
    """What a function as `on_exhausted` decides of one record."""

    #: the number of the question that waits for its answer; 0: none does
    asked: int = 0
    #: it returned that: what becomes of the record
    policy: GivenUp | None = None
    #: it returned that: how the record is tried again
    retry: Retry | None = None
    #: so often
    retries: int = 0


@dataclass(slots=True, eq=False)
class Failure:
    """What is known of a record that has failed at least once."""

    _texts: SharedTexts
    #: the last error: type, message, and its traceback before and after the message
    _error: tuple[str, str, str, str] | None = None
    #: the last events, in two columns: a tuple for each takes four times as much
    _at: array[float] = field(default_factory=lambda: array("d"))
    _what: list[str] = field(default_factory=list)
    #: bytes of the error, of the story, and of what the next attempt is given, beside what is
    #: shared with others; and how many of all were charged
    _bytes: list[int] = field(default_factory=lambda: [0] * 3)
    _charged: int = 0
    #: calls of the handler with this record that failed
    attempts: int = 0
    #: of these, those that cost no attempt: calls of a batch that failed as one, and `Hold.on`
    shared: int = 0
    #: of these, those in a row without a batch of the handler that succeeded in between
    rounds: int = 0
    good_calls: int = 0
    #: "skipped" or "dead_lettered" once its attempts are used up and that is its policy
    given_up: str | None = None
    #: exactly_once: its output was refused after its lane had gone on
    left_lane: bool = False
    #: the size its next batch may have, after one failed whole; 0 is no limit
    batch_max: int = 0
    #: when the next attempt may start, or it is released, on the engine's clock
    due: float = 0.0
    #: the same without a hold
    own_due: float = 0.0
    #: of its entry in the schedule: a former one is of no account
    ticket: int = -1
    #: it waits for the end of a hold
    held: bool = False
    #: when it failed first with an error that `Hold.on` names, and that cost no attempt
    waits_since: float | None = None
    #: the end of a hold of this very record
    held_until: float = 0.0
    #: what held it last; None for a hold that came with the commit
    held_by: HeldBy | None = None
    #: how its attempts were used up (`codec.rider.EXHAUSTED_BY`), as long as they are
    exhausted_by: str = ""
    #: of the last error before it came here
    known_hash: int | None = None
    #: of the present one, once a commit has asked
    _hash: int | None = None
    #: of a function as `on_exhausted`, once it was asked
    decision: Decision | None = None

    @property
    def asked(self) -> bool:
        """It waits for what `on_exhausted` returns."""
        return self.decision is not None and self.decision.asked > 0

    def count(self, now: float, error: ErrorInfo) -> None:
        """One more attempt."""
        self.attempts += 1
        again = self._error is not None and self._error[:2] == error[:2]
        self.keep(error)
        line = error.type if again else error._replace(message=error.message[:100]).line
        self.note(now, f"attempt {self.attempts} failed: {line}")

    def keep(self, error: ErrorInfo) -> None:
        """It failed with this. Without the message tracebacks of one kind are equal: kept once."""
        kind, message, trace = error
        before, _, after = trace.rpartition(message) if message else ("", "", trace)
        after = after if before else trace
        kept = [self._texts.same(text) for text in (kind, message, before, after)]
        self._error = (kept[0][0], kept[1][0], kept[2][0], kept[3][0])
        self.known_hash = self._hash = None
        self._bytes[0], self._bytes[2] = sum([size for _, size in kept]), 0

    def replace(self, error: ErrorInfo) -> None:
        """What is reported of its error, where that was not kept."""
        known = self.known_hash
        self.keep(error)
        self.known_hash = known

    @property
    def error_hash(self) -> int | None:
        """Of the type of its last error and the place where that was raised."""
        if self._error is None or self.known_hash is not None:
            return self.known_hash
        if self._hash is None:
            kind, _, before, after = self._error
            trace = before or after
            begin = trace.rfind('  File "')
            last = trace[begin : trace.find("\n", begin)] if begin >= 0 else ""  # frame
            self._hash = error_hash(kind, last)
        return self._hash

    @property
    def error(self) -> ErrorInfo | None:
        """What it failed with last."""
        if self._error is None:
            return None
        kind, message, before, after = self._error
        return ErrorInfo(kind, message, f"{before}{message}{after}" if before else after)

    def handed_on(self) -> ErrorInfo | None:
        """What it failed with last, for the next attempt."""
        error = self.error
        if error is None:
            return None
        trace, self._bytes[2] = self._texts.same(error.traceback)
        return error._replace(traceback=trace)

    @property
    def charged(self) -> int:
        """Bytes of it that the record's size contains."""
        return self._charged

    def uncharged(self) -> int:
        """Bytes it keeps that were not charged to the buffers yet; now they are."""
        more = FAILURE_OVERHEAD_BYTES + sum(self._bytes) - self._charged
        self._charged += more
        return more

    def note(self, at: float, what: str) -> None:
        """Add to the bounded history."""
        if len(self._what) == STORY_EVENTS_MAX:
            self._bytes[1] = max(0, self._bytes[1] - size_bytes(self._what[0]))
            del self._what[0], self._at[0]
        what, more = self._texts.same(what)
        self._what.append(what)
        self._at.append(at)
        self._bytes[1] += more

    @property
    def story(self) -> list[StoryEvent]:
        """The last events, oldest first."""
        return list(map(StoryEvent, self._at, self._what))

    @property
    def noted_at(self) -> float | None:
        """When the last of them was."""
        return self._at[-1] if self._at else None
