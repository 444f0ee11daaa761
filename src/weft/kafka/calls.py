"""The calls that carry commit metadata: librdkafka's own, or the public ones in their place."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer

from weft.kafka import clib, fallback, wakeable
from weft.kafka.answers import CommitAnswer, Committed, ToCommit

__all__ = [
    "CommitAnswer",
    "CommitQueue",
    "Committed",
    "GroupMetadata",
    "ToCommit",
    "WakeableQueue",
    "commit_queue",
    "committed",
    "group_metadata",
    "send_offsets_to_transaction",
    "wakeable_queue",
]

_log = logging.getLogger("weft.kafka")


class CommitQueue(Protocol):
    """Asynchronous commits of one consumer, answered on a queue of their own."""

    def send(self, offsets: Sequence[tuple[str, int, int, str]]) -> int:
        """Start a commit; the token its answer will carry."""

    def signal(self, wakeable: Any) -> None:
        """Have an answer end the wait on this WakeableQueue."""

    def poll(self, timeout_s: float) -> list[CommitAnswer]:
        """All answers there are; waits up to ``timeout_s`` for the first."""

    def close(self) -> None:
        """Give the queue back; before the consumer is closed."""


class WakeableQueue(Protocol):
    """Waits for a consumer's records and callbacks and for our own threads, all at once."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be something to consume or somebody woke us."""

    def wake(self) -> None:
        """Make the waiting thread return, or its next wait."""

    def close(self) -> None:
        """Give the queue back; before the consumer is closed."""


class GroupMetadata(Protocol):
    """A consumer's membership at one moment, for one transaction."""

    def close(self) -> None:
        """Free it."""


@cache
def _module() -> Any:
    """clib, or fallback with one warning about what then does not work."""
    if clib.available():
        return clib
    _log.warning(
        "librdkafka cannot be called directly: offset maps are readable by Weft alone, "
        "not by the Java Parallel Consumer"
    )
    return fallback


def committed(
    consumer: Consumer, partitions: Sequence[tuple[str, int]], timeout_s: float
) -> list[Committed]:
    """What the consumer's group has committed; blocks, so not for the polling thread.

    Raises KafkaException when the whole request failed; a single partition's error is in
    its ``error``.
    """
    answers: list[Committed] = _module().committed(consumer, partitions, timeout_s)
    return answers


def commit_queue(consumer: Consumer) -> CommitQueue:
    """A queue for this consumer's commits; close it before the consumer."""
    made: CommitQueue = _module().CommitQueue(consumer)
    return made


def wakeable_queue(consumer: Consumer) -> WakeableQueue:
    """What the polling thread waits on before ``consume(n, 0)``; close it before the consumer."""
    if _module() is clib:
        return wakeable.WakeableQueue(consumer)
    return fallback.WakeableQueue(consumer)


def group_metadata(consumer: Consumer) -> GroupMetadata:
    """The consumer's membership now, for one transaction; the caller closes it."""
    made: GroupMetadata = _module().group_metadata(consumer)
    return made


def send_offsets_to_transaction(
    producer: Producer,
    offsets: Sequence[tuple[str, int, int, str]],
    membership: GroupMetadata,
    timeout_s: float,
) -> None:
    """Put offsets and metadata into the producer's open transaction; blocks up to timeout_s.

    Raises KafkaException whose KafkaError says whether it is retriable, needs the
    transaction aborted, or is fatal.
    """
    _module().send_offsets_to_transaction(producer, offsets, membership, timeout_s)
