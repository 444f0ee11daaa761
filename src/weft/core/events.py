"""All that goes in: what is reported to the engine, beside records, offsets and times.

`Engine` has one method for each event; these are what the methods take. What comes out is in
effects.py.
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
    """One partition that was assigned, with the place it starts from (see `epochs.resolve`)."""

    topic: str
    partition: int
    handler: int
    start: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    #: there was no committed offset: commit the start at once, so that a crash before the first
    #: commit does not skip (with "latest") what came meanwhile
    commit_start: bool = False
    #: what the group has committed for it, and the end of its log, as far as known; else -1
    committed: int = -1
    log_end: int = -1
    #: what the commit remembers of records that are not done, ascending
    remembered: tuple[Remembered, ...] = ()
    #: this moment in UNIX seconds: times in commits are such
    unix_s: float = 0.0


# -- commands ----------------------------------------------------------------------------------


class Pause(NamedTuple):
    """Nothing of this topic, of this handler, or of anything (both None) starts."""

    topic: str | None = None
    handler: int | None = None
    #: UNIX seconds, for views: the core has no clock
    until_s: float = 0.0
    reason: str = ""

    def holds(self, topic: str, handler: int) -> bool:
        """Whether a partition of this topic and handler is meant."""
        return self.topic in (None, topic) and self.handler in (None, handler)


class Tuning(NamedTuple):
    """What is set of one handler; None: as it was declared."""

    concurrency: int | None = None
    rate_limit_per_s: float | None = None
    #: of one attempt
    timeout_s: float | None = None


class Steering(NamedTuple):
    """All that is in force by command. What is not in it has ended or was never asked for."""

    pauses: tuple[Pause, ...] = ()
    #: by the number of the handler
    tunings: Mapping[int, Tuning] = {}


AS_DECLARED = Tuning()

# -- calls of a handler ----------------------------------------------------------------------------


class Returned(NamedTuple):
    """The call returned outputs that must be acknowledged before the record is done."""

    work: Work
    outputs: Any


class Failed(NamedTuple):
    """The call failed. `delay_s` is what RetryAfter or the policy's callable asked for."""

    work: Work
    error: ErrorInfo
    final: bool = False
    delay_s: float | None = None
    #: `Hold.on` names the error
    away: bool = False
    #: the service asks its callers to wait so long (RetryAfter, or a 429's Retry-After): nothing
    #: else of the handler's budget starts before
    budget_s: float | None = None


class GivenBack(NamedTuple):
    """The call never started: the record goes back to the head of its lane."""

    work: Work


class Charged(NamedTuple):
    """What the call of a record really costs, as its handler found out (`record.charge`)."""

    handler: int
    topic: str
    partition: int
    offset: int
    cost: float
    #: what this call reported before, if it did
    before: float | None = None


class Decided(NamedTuple):
    """What a function as `on_exhausted` returned for a record (`effects.AskExhausted`)."""

    work: Work
    number: int
    #: None: it raised, or what it returned is no outcome
    outcome: GivenUp | Retry | None
    #: why, then
    error: ErrorInfo | None = None
    #: what a callable in `Retry(delay_s=)` asked for
    delay_s: float | None = None


#: how a call ended that did not just return
Ended = Returned | Failed | GivenBack

# -- commands --------------------------------------------------------------------------------------

Action = Literal["hold", "release", "retry", "skip", "redo"]


class Target(NamedTuple):
    """A lane (topic and key), or one record (topic, partition, offset)."""

    topic: str
    key: bytes | None = None
    partition: int | None = None
    offset: int | None = None


class Command(NamedTuple):
    """What a person wants of a lane or a record; answered with `Answered`."""

    action: Action
    target: Target
    id: str = ""
    #: "hold": until then, UNIX seconds
    until_s: float = 0.0
    reason: str = ""
    #: "redo": as the log has it; None: the log has it no more
    record: Record | None = None
    #: the sender, by its own account
    claimed_by: str = ""
    #: only the answer, as it would be now: nothing changes
    dry: bool = False


# -- answers of the broker -------------------------------------------------------------------------

#: what was stored of a record's outputs, or why it was not
OutputsAnswer = tuple["Work", tuple[Sent, ...], ErrorInfo | None]
#: a record whose outputs did not get through a transaction, and the reason
Stuck = tuple["Work", ErrorInfo]
Verdict = Literal["stored", "retry", "too_large", "gone", "stop"]


class Answer(NamedTuple):
    """The broker's answer for one partition of a commit."""

    partition: Partition
    sequence: int
    verdict: Verdict
    reason: str = ""
