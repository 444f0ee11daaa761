"""Everything that the core can request. The runtime performs it and reports back by an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from perkey.types import Committed, ErrorInfo, OutcomeName, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perkey.core.events import Command
    from perkey.core.partition import Partition
    from perkey.core.work import Work

Trouble = Literal["failed", "parked", "dead_lettered", "skipped"]


class Start(NamedTuple):
    """Call the handler for each of these records, or once with all of them (a batch)."""

    handler: int
    works: list[Work]
    together: bool = False


class Send(NamedTuple):
    """Produce the outputs of a handled record; answer with `outputs_answered`."""

    work: Work
    outputs: Any


class SendDeadLetter(NamedTuple):
    """Produce the record to its dead-letter topic; answer with `outputs_answered`."""

    work: Work
    topic: str
    error: ErrorInfo


class AskExhausted(NamedTuple):
    """Call the function given as `on_exhausted`; answer with `decided` and this number."""

    work: Work
    number: int
    #: as it was last handled
    record: Record
    error: ErrorInfo


class PlanItem(NamedTuple):
    """The content of a commit for one partition: all of it from one snapshot."""

    partition: Partition
    frontier: int
    metadata: str
    done_beyond: int
    #: records whose next step waits for this commit
    claims: list[Work]
    #: characters of the metadata that belong to the rider
    rider_chars: int = 0


class CommitOffsets(NamedTuple):
    """Commit these; answer each partition with `commit_answered`."""

    sequence: int
    items: list[PlanItem]


class Transact(NamedTuple):
    """Produce the claims' outputs and commit the offsets in one transaction."""

    sequence: int
    items: list[PlanItem]


class ReadCommitted(NamedTuple):
    """A commit is in doubt: read what the broker stores, answer with `committed_read`."""

    partitions: list[Partition]


class PauseIntake(NamedTuple):
    """Pause the fetch of these partitions; polling continues."""

    partitions: list[Partition]


class ResumeIntake(NamedTuple):
    """Fetch these partitions again."""

    partitions: list[Partition]


class Refetch(NamedTuple):
    """Read these offsets again; answer with `refetched` and this number."""

    partition: Partition
    number: int
    #: ascending
    offsets: list[int]


class Finished(NamedTuple):
    """One record is finished; sent only while results are read."""

    work: Work
    outcome: OutcomeName
    error: ErrorInfo | None
    outputs: Any
    #: as it was then: parked records are not kept
    record: Record


class BatchFinished(NamedTuple):
    """Calls for these records returned nothing to send; sent only if batches are reported."""

    works: Sequence[Work]


class Troubled(NamedTuple):
    """An attempt failed, or the record was given up: for the log."""

    work: Work
    outcome: Trouble
    attempts: int
    error: ErrorInfo
    #: as it was then: records that wait for long lose their bytes
    record: Record


class CommitsStored(NamedTuple):
    """The broker has acknowledged these commits."""

    committed: list[Committed]


class Obeyed(NamedTuple):
    """The result of a command in one partition."""

    topic: str
    partition: int
    #: -1 for a lane without a record
    offset: int
    #: "held", "released", "retried", "skipped", "unchanged", "refused", "not here", "lost"
    outcome: str
    #: the reason, in one line
    detail: str


class Answered(NamedTuple):
    """The answer to a command.

    For a skip it comes when its commit is stored.
    """

    command: Command
    rows: list[Obeyed]


class Note(NamedTuple):
    """A line for the log."""

    level: str
    event: str
    fields: dict[str, Any]


class Drained(NamedTuple):
    """A requested stop has finished its work: commit and leave."""


class Fatal(NamedTuple):
    """The run must end with exit code 1."""

    reason: str
    error: ErrorInfo | None


Effect = (
    Start | Send | SendDeadLetter | AskExhausted | CommitOffsets
    | Transact | ReadCommitted | PauseIntake | ResumeIntake | Refetch | Finished | Troubled
    | BatchFinished | CommitsStored | Answered | Note | Drained | Fatal
)  # fmt: skip
