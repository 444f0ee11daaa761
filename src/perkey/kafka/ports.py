"""The runtime's interfaces to Kafka and to the clock; the test kit implements them, too.

Kafka and the broker in memory pass the same contract suite (tests/contract). A consumer is used by
one thread, the polling thread; other threads may call only the methods marked "any thread".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from perkey.errors import ConfigError
from perkey.types import ErrorInfo, Record, Sent
from perkey.types import TopicPartition as TopicPartition  # noqa: PLC0414  # used as ports.X, too

if TYPE_CHECKING:  # a worker process loads no engine
    from perkey.core.commits import Found
    from perkey.core.events import Verdict

Action = Literal["log", "stop", "recreate"]

POLL_RECORDS_MAX = 2_000

#: the remaining seconds of a wait; it is asked for repeatedly, as it may become less
LeftS = Callable[[], float]


def no_hurry() -> float:
    """A wait that has its own limit only."""
    return inf


class LoginRefused(ConfigError):
    """The brokers refuse the credentials or the security protocol."""


class PolledBatch(NamedTuple):
    """Records of one partition from one poll, ascending."""

    topic: str
    partition: int
    records: list[Record]
    sizes: list[int]


class ToCommit(NamedTuple):
    """One partition of a commit: the next offset to read, and the offset map's text."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""


class CommitAnswer(NamedTuple):
    """The broker's result for one partition of the commit with this token."""

    token: int
    topic: str
    partition: int
    verdict: Verdict
    reason: str


class Problem(NamedTuple):
    """A client error from a poll: log it, end the run, or recreate the consumer."""

    action: Action
    code: str
    reason: str


@dataclass(slots=True)
class Polled:
    """The result of one poll."""

    batches: list[PolledBatch] = field(default_factory=list)
    #: partitions read to their end: (topic, partition, position)
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    commits: list[CommitAnswer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: why the connection to the group's coordinator failed, if it has since the last poll
    coordinator: str = ""
    #: why the connection to any broker failed, if one has since the last poll
    connection: str = ""
    #: partitions whose position is out of the log's range; not fetched until `begin`
    out_of_range: list[TopicPartition] = field(default_factory=list)


class RebalanceListener(Protocol):
    """Called inside `poll`, on the polling thread."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """These were added to the assignment; returns the offset to start each from.

        One that is left out stays paused until `begin` is called for it.
        """

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These go to another member when this returns; commits still count."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are gone already; commits do not count."""


class ConsumerPort(Protocol):
    """One member of the group."""

    #: False under KIP-848, where `on_assigned` must return immediately: a heartbeat after an error
    #: lists what the member holds without the partitions that are just being assigned, and the
    #: broker takes that for giving them up: two members would own them (librdkafka 2.16)
    assign_may_block: bool

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics; names that start with ^ are patterns."""

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> Polled:
        """Serve callbacks and fetch; returns immediately when there is something."""

    def wake(self) -> None:
        """Make `poll` return soon. Any thread."""

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offset with metadata, and both ends of the log. Any thread.

        Partitions that cannot be read now, such as one without a leader, are left out.
        Raises KafkaUnavailable if nothing can be read.
        """

    def leader_of(self, partition: TopicPartition) -> str:
        """The broker that leads a partition whose log was not answered for, as a reason.

        Empty if that is not known. May wait for half a second; any thread.
        """

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int | None, str]]:
        """Committed offset and metadata alone: partitions need no leader for it. Any thread.

        None: no commit. Raises KafkaUnavailable if any of them cannot be read now.
        """

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Fetch an assigned partition from this offset on."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these for now."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue to fetch these."""

    def commit(self, offsets: Sequence[ToCommit]) -> int:
        """Send a commit; its token comes back in `Polled.commits`. Never blocks."""

    def commit_and_wait(self, offsets: Sequence[ToCommit], timeout_s: float) -> list[CommitAnswer]:
        """The same inside a rebalance callback or at the end; empty if no answer came."""

    def commit_answers(self, timeout_s: float) -> list[CommitAnswer]:
        """Answers to commits sent before; waits up to `timeout_s` for the first.

        For use inside a rebalance callback, where `poll` cannot be called.
        """

    def membership(self) -> Any:
        """This member's current membership of the group, for one transaction. Any thread."""

    def stable_ends(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Where open transactions start, for partitions whose leader answers. Any thread.

        Raises KafkaUnavailable if no broker answers.
        """

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """Look up these topics' leaders; any thread, may wait.

        Of all topics if none is given: the group learns changed partition counts from that alone.
        """

    def log_ends(self) -> dict[TopicPartition, int]:
        """Last known ends of the assigned partitions; sends no request."""

    def leave(self, timeout_s: float, left_s: LeftS = no_hurry) -> None:
        """Leave the group (callbacks are still served) and close.

        `left_s` is asked meanwhile: a caller in a hurry can make the time shorter.
        """


class Delivery(NamedTuple):
    """The result of one produced message: exactly one of the first two is set."""

    sent: Sent | None
    error: ErrorInfo | None
    #: with an error: not refused (no response in time, no broker), so produce it again
    again: bool = False


class OutMessage(NamedTuple):
    """A message to produce."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerPort(Protocol):
    """Produces without blocking; may be used from any thread."""

    def send(self, message: OutMessage, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue one message; `on_delivery` is called on the producer's thread.

        Raises BufferError when the queue is full.
        """

    def flush(self, timeout_s: float) -> int:
        """Wait until the queue is empty; returns how many messages remain."""

    def close(self, timeout_s: float) -> None:
        """Stop; messages that are still queued fail."""


class Word(NamedTuple):
    """The last value of a key in a compacted topic."""

    value: bytes
    #: UNIX seconds: stamped by the broker if the topic does so, else by the writer; never future
    at: float
    offset: int = -1


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """How a transaction ended. "unknown": committed or aborted; check again after `open`."""

    outcome: Literal["committed", "aborted", "fenced", "unknown"]
    #: one per message; None without an answer
    deliveries: Sequence[Delivery | None]
    reason: str = ""
    #: aborted because of one of its messages, but unknown which
    content: ErrorInfo | None = None
    #: a permanent error: it refuses a message that is alone in its transaction
    lasts: bool = False
    #: aborted because the metadata is too large for the broker
    maps_too_large: bool = False


#: the committed offsets of these partitions and their metadata; None for a partition that another
#: member may have committed meanwhile; None as a whole if they cannot be read now
ReadBack = Callable[[Sequence[ToCommit]], "Sequence[tuple[int | None, str] | None] | None"]


def which_way(
    sent: Sequence[ToCommit], held: Sequence[tuple[int | None, str] | None]
) -> Literal["committed", "aborted"]:
    """How a transaction of unknown outcome ended, from the offsets that the broker holds."""
    known = [(o, have) for o, have in zip(sent, held, strict=True) if have is not None]
    same = all((o.offset, o.metadata) == have for o, have in known)
    return "committed" if same else "aborted"


class TransactionsPort(Protocol):
    """Transactions of one member, one after another, on one thread."""

    def open(self) -> None:
        """Start under this member's id; ends what a predecessor left open."""

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Produce all messages and commit the offsets with them, or neither.

        `membership` is the group membership taken with the snapshot of the offsets: the broker
        refuses the offsets if the group has changed since.
        """

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """Whether the broker will never accept this message."""

    def close(self) -> None:
        """Abort an open transaction and stop."""


class KafkaUnavailable(Exception):
    """The brokers do not answer now; try again later."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What the broker stores, or answered, for one partition."""

    topic: str
    partition: int
    #: None: nothing is committed.
    offset: int | None
    #: Exactly as written by any client; bytes that are not UTF-8 are replaced.
    metadata: str
    #: Kafka's error code for this partition; 0 is success.
    error: int


@dataclass(frozen=True, slots=True)
class CommitReply:
    """The outcome of one ``CommitQueue.send``."""

    token: int
    #: Error of the whole request, or of its first failed partition; 0 is success.
    error: int
    #: The partitions of the request. librdkafka gives each of them the request's error, also
    #: stored ones (seen with code 12 for one of three): after an error, only reading the
    #: committed values back shows which were stored.
    partitions: tuple[CommittedOffset, ...]


class AdminPort(Protocol):
    """The runtime's queries to the cluster before and during consuming."""

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, Any]:
        """Name -> facts with `topic_id` and `partitions`; missing topics are absent."""

    def matching(self, patterns: Sequence[str], timeout_s: float) -> list[str]:
        """Existing topics that match one of the patterns."""

    def starts(self, topics: Sequence[str], *, timeout_s: float) -> dict[TopicPartition, int]:
        """First offsets of all partitions."""

    def ends(
        self, topics: Sequence[str], *, committed: bool, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Ends of all partitions; `committed`: up to open transactions."""

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """The group's committed offsets."""

    def group_state(self, group: str, timeout_s: float) -> tuple[str, int]:
        """Kafka's name for the state of the group, and the number of members."""

    def groups_reading(self, topic: str, partitions: int, timeout_s: float) -> list[str]:
        """The groups that read this topic now or have committed offsets of it, by name."""

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int = -1,
        timeout_s: float = 10.0,
        config: Mapping[str, str] | None = None,
    ) -> Any:
        """Create a topic; a no-op if it exists."""

    def close(self) -> None:
        """Stop its threads."""


class Clock(Protocol):
    """A steady clock."""

    @property
    def now(self) -> Callable[[], float]:
        """A function that reads it, in seconds from some point in the past."""

    def watch(self, under_way: Callable[[], int]) -> None:
        """Register the member's count of work in progress: a test's clock skips idle time only."""


class RealClock:
    """The machine's clock. `now` is the C function itself: it is called on the hot path."""

    now = staticmethod(time.monotonic)

    def watch(self, under_way: Callable[[], int]) -> None:
        """A no-op: real time needs no count."""


REAL_CLOCK = RealClock()
