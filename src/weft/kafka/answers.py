"""What is committed and what the broker answers, as plain data."""

from dataclasses import dataclass


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
    #: reading the committed values back tells which were.
    partitions: tuple[CommittedOffset, ...]
