"""The calls that carry commit metadata: librdkafka's own, where it can be reached.

confluent-kafka's public calls write maps that the Java Parallel Consumer cannot read, and read past
the end of what others wrote. So there is nothing in their place: without librdkafka Weft says what
to install and does not start.
"""

from collections.abc import Sequence

from confluent_kafka import Consumer, Producer

from weft.errors import ConfigError
from weft.kafka import clib
from weft.kafka.answers import CommitReply, CommittedOffset
from weft.kafka.clib import CommitQueue, GroupMetadata
from weft.kafka.clib_offsets import Bounds, Spec, bounds_soon, refresh
from weft.kafka.ports import ToCommit
from weft.kafka.wakeable import WakeableQueue

__all__ = [
    "Bounds",
    "CommitQueue",
    "CommitReply",
    "CommittedOffset",
    "GroupMetadata",
    "Spec",
    "ToCommit",
    "WakeableQueue",
    "bounds_soon",
    "commit_queue",
    "committed",
    "group_metadata",
    "refresh",
    "send_offsets_to_transaction",
    "wakeable_queue",
]


def _need_library() -> None:
    """Raise ConfigError where librdkafka's functions cannot be called."""
    if not clib.available():
        raise ConfigError(
            "librdkafka cannot be called inside this build of confluent-kafka: install its wheel "
            "(pip install --force-reinstall --only-binary :all: confluent-kafka), on Linux or macOS"
        )


def committed(
    consumer: Consumer, partitions: Sequence[tuple[str, int]], timeout_s: float
) -> list[CommittedOffset]:
    """What the consumer's group has committed; blocks, so not for the polling thread.

    Raises KafkaException when the whole request failed; a single partition's error is in
    its ``error``.
    """
    _need_library()
    return clib.committed(consumer, partitions, timeout_s)


def commit_queue(consumer: Consumer) -> CommitQueue:
    """A queue for this consumer's commits; close it before the consumer."""
    _need_library()
    return CommitQueue(consumer)


def wakeable_queue(consumer: Consumer) -> WakeableQueue:
    """What the polling thread waits on before ``consume(n, 0)``; close it before the consumer."""
    _need_library()
    return WakeableQueue(consumer)


def group_metadata(consumer: Consumer) -> GroupMetadata:
    """The consumer's membership now, for one transaction; the caller closes it."""
    _need_library()
    return clib.group_metadata(consumer)


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
    clib.send_offsets_to_transaction(producer, offsets, membership, timeout_s)
