"""All input of the engine, besides records, offsets and times.

`Engine` has one method per event; these are their arguments. The output is in effects.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from weft.types import ErrorInfo, Record, Sent

if TYPE_CHECKING:
    from weft.codec import Remembered
    from weft.core.partition import Partition
    from weft.core.work import Work
    from weft.policies import GivenUp, Retry


# -- partitions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assigned partition with its start position (see `epochs.resolve`)."""

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
    """The call failed. `delay_s`: from RetryAfter or the policy's callable."""

    work: Work
    error: ErrorInfo
    final: bool = False
    delay_s: float | None = None
    #: whether `Hold.on` names the error
    away: bool = False
    #: the service asks its callers to wait so long (RetryAfter, or a 429's Retry-After): nothing
    #: else of the handler's budget starts before
    budget_s: float | None = None


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
Verdict = Literal["stored", "retry", "too_large", "gone", "stop"]


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

Action = Literal["hold", "release", "retry", "skip", "redo"]


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
    #: "redo": as read from the log; None: the log does not have it any more
    record: Record | None = None
    #: the sender's name, as given
    claimed_by: str = ""
    #: a dry run: only the answer, nothing changes
    dry: bool = False
