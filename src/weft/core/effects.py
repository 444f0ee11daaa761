"""Everything the core can ask for. The runtime does it and reports back by an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from weft.types import Committed, ErrorInfo, OutcomeName, Record

if TYPE_CHECKING:
    from weft.core.events import Command
    from weft.core.partition import Partition
    from weft.core.work import Work

Trouble = Literal["failed", "parked", "dead_lettered", "skipped"]
ExportReason = Literal["map", "time"]


class Start(NamedTuple):
    """Call the handler for each of these records, or once with all of them (a batch)."""

    handler: int
    works: list[Work]
    together: bool = False


class Cancel(NamedTuple):
    """This attempt ran longer than `timeout_s`: end it if that can be done."""

    handler: int
    work: Work


class Send(NamedTuple):
    """Produce the outputs of a handled record; answer with `outputs_answered`."""

    work: Work
    outputs: Any


class SendDeadLetter(NamedTuple):
    """Produce the record to its dead-letter topic; answer with `outputs_answered`."""

    work: Work
    topic: str
    error: ErrorInfo


class Exported(NamedTuple):
    """The pressure valve takes a parked lane: these go to the topic, one after the other."""

    partition: Partition
    #: in the order of the lane
    offsets: tuple[int, ...]
    topic: str
    #: so much of the map was taken, or the head was parked for so long
    why: ExportReason
    #: "map": of the room in the map, without the lanes that were taken before
    share: float


class ExportEnded(NamedTuple):
    """A letter was refused: these of its lane stay where they are, as that one does."""

    partition: Partition
    offsets: tuple[int, ...]


class AskExhausted(NamedTuple):
    """Call the function that is `on_exhausted`; answer with `decided` and this number."""

    work: Work
    number: int
    #: as it was handled last
    record: Record
    error: ErrorInfo


class PlanItem(NamedTuple):
    """What is committed for one partition: all of it from one snapshot."""

    partition: Partition
    frontier: int
    metadata: str
    done_beyond: int
    #: records whose own progress waits for this very commit
    claims: list[Work]
    #: characters of the metadata that are the rider's
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
    """A commit is in doubt: read what the broker holds, answer with `committed_read`."""

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
    """One record is finished with; sent only while someone listens."""

    work: Work
    outcome: OutcomeName
    error: ErrorInfo | None
    outputs: Any
    #: as it was then: what is parked is not kept
    record: Record


class Troubled(NamedTuple):
    """An attempt failed, or the record was given up: something for the log."""

    work: Work
    outcome: Trouble
    attempts: int
    error: ErrorInfo
    #: as it was then: what waits for long is shed
    record: Record


class CommitsStored(NamedTuple):
    """The broker has acknowledged these commits."""

    committed: list[Committed]


class Obeyed(NamedTuple):
    """What was done for a command in one partition."""

    topic: str
    partition: int
    #: -1 for a lane without a record
    offset: int
    #: "held", "released", "retried", "skipped", "redone";
    #: "failed", "unchanged", "refused", "not here", "lost"
    outcome: str
    #: the reason, in one line
    detail: str


class Answered(NamedTuple):
    """A command was obeyed, or could not be.

    That of a skip comes when its commit is stored, that of a redo when its call has ended.
    """

    command: Command
    rows: list[Obeyed]


class Note(NamedTuple):
    """Something a person may want to read in the log."""

    level: str
    event: str
    fields: dict[str, Any]


class ReportLease(NamedTuple):
    """The driver of the fleet is to know soon what `Engine.lease_reports` returns."""


class Drained(NamedTuple):
    """A stop was asked for and what it waits for is finished: commit and leave."""


class Fatal(NamedTuple):
    """The run must end with exit code 1."""

    reason: str
    error: ErrorInfo | None


Effect = (
    Start
    | Cancel
    | Send
    | SendDeadLetter
    | Exported
    | ExportEnded
    | AskExhausted
    | CommitOffsets
    | Transact
    | ReadCommitted
    | PauseIntake
    | ResumeIntake
    | Refetch
    | Finished
    | Troubled
    | CommitsStored
    | Answered
    | Note
    | ReportLease
    | Drained
    | Fatal
)
