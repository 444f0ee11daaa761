"""All input of the engine: its settings, and the arguments of its events.

`Engine` has one method per event. Besides the types below they take records, offsets and times. The
output is in effects.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perkey.policies import Batch, Brake, Budget, Commit, Hold, OnExhausted, Park, Retry
from perkey.types import DeliveryName, ErrorInfo, Ordering, Sent

if TYPE_CHECKING:
    from perkey.codec import Remembered
    from perkey.core.partition import Partition
    from perkey.core.work import Work
    from perkey.policies import GivenUp

# -- settings --------------------------------------------------------------------------------------

ALL_STARTS_PER_S = float("inf")
NEVER = 2**63  # records
#: the longest delay that a callable may ask for, and the longest hold
DELAY_MAX_S = 7 * 86_400.0
HOLD_MAX_S = 30 * 86_400.0

# Orderings and deliveries are compared once per record: short strings, interned by Python.
KEY: Final = "key"
PARTITION: Final = "partition"
UNORDERED: Final = "unordered"
AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
EXACTLY_ONCE: Final = "exactly_once"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """The rules of one handler, as the engine needs them."""

    name: str
    ordering: Ordering = KEY
    concurrency: int = 100
    #: calls granted beyond `concurrency`, to keep the pipes to worker processes full
    ahead: int = 0
    retry: Retry = field(default_factory=Retry)
    on_exhausted: OnExhausted = field(default_factory=Park)
    hold: Hold | None = None
    brake: Brake | None = None
    budget: Budget | None = None
    timeout_s: float | None = None
    delivery: DeliveryName = AT_LEAST_ONCE
    commit_each: bool = False
    rate_limit_per_s: float = ALL_STARTS_PER_S
    batch: Batch | None = None

    @property
    def exact(self) -> bool:
        """Outputs and offsets go into transactions."""
        return self.delivery == EXACTLY_ONCE

    @property
    def plain(self) -> bool:
        """A record is done as soon as its call returns and has nothing to send."""
        return self.delivery == AT_LEAST_ONCE and not self.commit_each


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one member; the engine never holds or sends more."""

    buffer_records: int = 50_000
    buffer_bytes: int = 128 * 2**20
    commit: Commit = field(default_factory=Commit)
    #: commit also when so many records are done since the last commit
    commit_after: int = NEVER
    #: but not before it was this long ago
    commit_apart_s: float = 0.05
    #: seconds without an answer after which a commit is in doubt and the stored value is read
    commit_answer_s: float = 5.0
    #: delay before a commit that was temporarily refused is sent again
    commit_retry_s: float = 0.2
    #: most outputs in one transaction; less while transactions time out
    transaction_bytes: int = 8 * 2**20
    #: parked and held lanes keep offsets, not bytes: the runtime answers `effects.Refetch`
    forget_parked: bool = False
    #: what the broker stores of commit metadata, in characters (offset.metadata.max.bytes)
    map_chars: int = 4096


# -- partitions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assigned partition with its start position (see `commits.resolve`)."""

    topic: str
    partition: int
    handler: int
    start: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    #: there was no committed offset: commit the start immediately, so that a crash before the
    #: first commit does not skip (with "latest") records that came meanwhile
    commit_start: bool = False
    #: what the group has committed for it, and the end of its log, if known; else -1
    committed: int = -1
    log_end: int = -1
    #: what the commit remembers of records that are not done, ascending
    remembered: tuple[Remembered, ...] = ()
    #: this moment in UNIX seconds, as used for times in commits
    unix_s: float = 0.0


# -- calls of a handler ----------------------------------------------------------------------------


class Returned(NamedTuple):
    """The call returned outputs that must be acknowledged before the record is done."""

    work: Work
    outputs: Any


class Failed(NamedTuple):
    """The call failed. `delay_s`: from RetryAfter, NotNow or the policy's callable."""

    work: Work
    error: ErrorInfo
    final: bool = False
    delay_s: float | None = None
    #: whether `Hold.on` names the error
    away: bool = False
    #: the service asks its callers to wait so long (RetryAfter, or a 429's Retry-After): nothing
    #: else of the handler's budget starts before
    budget_s: float | None = None
    #: the handler raised NotNow: no failure, unless nothing may be handled twice
    not_now: bool = False


class Unhandled(NamedTuple):
    """The call never started, or was cancelled: the record goes back to the head of its lane."""

    work: Work
    #: it had started: its partition is being revoked, or the member stops
    cancelled: bool = False


class Charged(NamedTuple):
    """The actual cost of a record's call, as its handler reports it (`record.charge`)."""

    handler: int
    topic: str
    partition: int
    offset: int
    cost: float
    #: the cost that this call reported before, if any
    before: float | None = None


class Decided(NamedTuple):
    """The result of an `on_exhausted` function for a record (`effects.AskExhausted`)."""

    work: Work
    number: int
    #: None: it raised, or its result is no outcome
    outcome: GivenUp | Retry | None
    #: the reason, then
    error: ErrorInfo | None = None
    #: from a callable in `Retry(delay_s=)`
    delay_s: float | None = None


#: how a call ended that did not simply return
Ended = Returned | Failed | Unhandled

# -- answers of the broker -------------------------------------------------------------------------

#: the stored outputs of a record, or why they were not stored
OutputsAnswer = tuple["Work", tuple[Sent, ...], ErrorInfo | None]
#: a record whose outputs failed in a transaction, and the reason
Stuck = tuple["Work", ErrorInfo]
Verdict = Literal["stored", "retry", "missing", "too_large", "gone", "stop"]


class Answer(NamedTuple):
    """The broker's answer for one partition of a commit."""

    partition: Partition
    sequence: int
    verdict: Verdict
    reason: str = ""


# -- what commands have in force -------------------------------------------------------------------


class Pause(NamedTuple):
    """Nothing of this topic, of this handler, or at all (both None) starts."""

    topic: str | None = None
    handler: int | None = None
    #: UNIX seconds, for views: the core has no clock
    until_s: float = 0.0
    reason: str = ""

    def holds(self, topic: str, handler: int) -> bool:
        """Whether it concerns a partition of this topic and handler."""
        return self.topic in (None, topic) and self.handler in (None, handler)


class Tuning(NamedTuple):
    """Settings of one handler by command; None: as declared."""

    concurrency: int | None = None
    rate_limit_per_s: float | None = None
    #: of one attempt
    timeout_s: float | None = None


class Steering(NamedTuple):
    """All commands in force. One that is missing has ended or was never given."""

    pauses: tuple[Pause, ...] = ()
    #: by the number of the handler
    tunings: Mapping[int, Tuning] = {}


AS_DECLARED = Tuning()

# -- commands to lanes and records -----------------------------------------------------------------

Action = Literal["hold", "release", "retry", "skip"]


class Target(NamedTuple):
    """A lane (topic and key), or one record (topic, partition, offset)."""

    topic: str
    key: bytes | None = None
    partition: int | None = None
    offset: int | None = None


class Command(NamedTuple):
    """An operator's request for a lane or a record; answered with `Answered`."""

    action: Action
    target: Target
    id: str = ""
    #: "hold": its end, in UNIX seconds
    until_s: float = 0.0
    reason: str = ""
    #: the sender's name, as given
    claimed_by: str = ""
    #: a dry run: only the answer, nothing changes
    dry_run: bool = False
