"""The interface between the runtime and Kafka, which the in-memory broker also implements.

Both sides pass the same contract suite (tests/contract). A consumer is touched by one thread, the
polling thread; only the methods marked so may be called from others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from weft.core.epochs import Found
from weft.core.events import Verdict
from weft.errors import ConfigError
from weft.types import ErrorInfo, Record, Sent
from weft.types import TopicPartition as TopicPartition  # noqa: PLC0414  # used as ports.X, too

Action = Literal["log", "stop", "recreate"]

POLL_RECORDS_MAX = 2_000


class LoginRefused(ConfigError):
    """The brokers refuse the credentials or the kind of connection."""


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
    """The broker's word on one partition of the commit with this token."""

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
    """What one poll brought."""

    batches: list[PolledBatch] = field(default_factory=list)
    #: partitions read to their end: (topic, partition, position)
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    commits: list[CommitAnswer] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: partitions whose position is out of the log's range; not fetched until `begin`
    out_of_range: list[TopicPartition] = field(default_factory=list)


class RebalanceListener(Protocol):
    """Called inside `poll`, on the polling thread."""

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """These were added to the assignment; where to begin each.

        One that is left out stays paused until `begin` is called for it.
        """

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These go to another member when this returns; commits still count."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are gone already; commits do not count."""


class ConsumerPort(Protocol):
    """One member of the group."""

    #: False under KIP-848, where `on_assigned` must return at once: a heartbeat after an error
    #: lists what the member holds, which is not yet what is just being assigned, and the broker
    #: takes that for giving it up: two members would own it (seen with librdkafka 2.16)
    assign_may_block: bool

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics; names that start with ^ are patterns."""

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> Polled:
        """Serve callbacks and fetch; returns at once when there is something."""

    def wake(self) -> None:
        """Make `poll` return soon. Any thread."""

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offset with metadata, and both ends of the log. Any thread.

        What cannot be read now of some partitions, as of one without a leader, is left out.
        Raises KafkaUnavailable when nothing can be read.
        """

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int | None, str]]:
        """Committed offset and metadata alone: partitions need no leader for it. Any thread.

        None is no commit. Raises KafkaUnavailable when any of them cannot be read now.
        """

    def begin(self, partition: TopicPartition, offset: int) -> None:
        """Fetch an assigned partition from this offset on."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch no more of these for now."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these again."""

    def commit(self, offsets: Sequence[ToCommit]) -> int:
        """Send a commit; its token comes back in `Polled.commits`. Never blocks."""

    def commit_and_wait(self, offsets: Sequence[ToCommit], timeout_s: float) -> list[CommitAnswer]:
        """The same inside a rebalance callback or at the end; empty when no answer came."""

    def commit_answers(self, timeout_s: float) -> list[CommitAnswer]:
        """Answers to commits sent before; waits up to `timeout_s` for the first.

        For use inside a rebalance callback, where `poll` cannot be called.
        """

    def membership(self) -> Any:
        """This member's place in the group now, for one transaction. Any thread."""

    def stable_ends(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Up to where no transaction is open, of those whose leader answers. Any thread.

        Raises KafkaUnavailable if no broker does.
        """

    def refresh(self, topics: Collection[str], timeout_s: float) -> None:
        """Look up these topics' leaders; any thread, may wait."""

    def log_ends(self) -> dict[TopicPartition, int]:
        """Last known ends of the assigned partitions; sends no request."""

    def leave(self, timeout_s: float) -> None:
        """Leave the group (callbacks are still served) and close."""


class Delivery(NamedTuple):
    """The result of one produced message: exactly one of the first two is set."""

    sent: Sent | None
    error: ErrorInfo | None
    #: with an error: not refused (no response in time, no broker); produce it again
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
        """Wait until the queue is empty; how many messages are left."""

    def close(self, timeout_s: float) -> None:
        """Stop; what is still queued is failed."""


class Word(NamedTuple):
    """What was written last under a key of a compacted topic."""

    value: bytes
    #: UNIX seconds: the broker's where the topic is made so, else the writer's, never the future
    at: float


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """How a transaction ended. "unknown": it may be either, ask again after `open`."""

    outcome: Literal["committed", "aborted", "fenced", "unknown"]
    #: one for each message; None where no answer came
    deliveries: Sequence[Delivery | None]
    reason: str = ""
    #: aborted because of one of its messages, which is unknown
    content: ErrorInfo | None = None
    #: that will not pass: a message alone in its transaction is refused by it
    lasts: bool = False
    #: aborted since the broker stores no metadata of such a size
    maps_too_large: bool = False


def which_way(
    sent: Sequence[ToCommit], held: Sequence[tuple[int | None, str]]
) -> Literal["committed", "aborted"]:
    """How a transaction of unknown outcome ended, by what the broker holds of its offsets."""
    same = all((o.offset, o.metadata) == have for o, have in zip(sent, held, strict=True))
    return "committed" if same else "aborted"


class TransactionsPort(Protocol):
    """Transactions of one member, one after another, on one thread."""

    def open(self) -> None:
        """Begin under this member's id, ending what a predecessor left open."""

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: Callable[[Sequence[ToCommit]], list[tuple[int | None, str]] | None],
    ) -> TransactionEnd:
        """Produce all messages and commit the offsets with them, or neither.

        `membership` is the group membership taken with the snapshot of the offsets: the broker
        refuses the offsets if the group has moved on since.
        """

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """The broker will never take this message."""

    def close(self) -> None:
        """Abort what is open and stop."""


class KafkaUnavailable(Exception):
    """The brokers do not answer now; try again later."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What the broker holds, or answered, for one partition."""

    topic: str
    partition: int
    #: None: nothing is committed.
    offset: int | None
    #: Exactly what was written, by whatever client; bytes that are not UTF-8 are replaced.
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
    #: those the broker stored (seen with code 12 for one of three): after an error, only
    #: reading the committed values back shows which were.
    partitions: tuple[CommittedOffset, ...]


class AdminPort(Protocol):
    """What the runtime asks of the cluster before and beside consuming."""

    def describe(self, topics: Sequence[str], timeout_s: float) -> Mapping[str, Any]:
        """Name -> facts with `topic_id` and `partitions`; missing topics are absent."""

    def matching(self, patterns: Sequence[str], timeout_s: float) -> list[str]:
        """Existing topics that match one of the patterns."""

    def starts(self, topics: Sequence[str], *, timeout_s: float) -> dict[TopicPartition, int]:
        """First offsets of all partitions."""

    def ends(
        self, topics: Sequence[str], *, committed: bool, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Ends of all partitions; `committed`: of what is not in an open transaction."""

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """What the group has committed."""

    def group_state(self, group: str, timeout_s: float) -> tuple[str, int]:
        """Kafka's word for the state of the group, and how many members it has."""

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
        """Make a topic; nothing when it exists."""

    def close(self) -> None:
        """Stop its threads."""
