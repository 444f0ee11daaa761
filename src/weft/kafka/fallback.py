"""What clib.py does, by confluent-kafka's public calls, where librdkafka is out of reach.

Weft still reads what Weft wrote. What it cannot do: metadata that the Java Parallel Consumer
can read (a NUL is appended), reading others' metadata safely, waking without a delay.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from weft.kafka.answers import CommitAnswer, Committed, ToCommit

#: Longest that a record waits unseen: there is no signal to wake us for it.
_LOOK_EVERY_S = 0.01

#: Longest that reading a commit back may hold up the polling thread.
_READ_BACK_S = 0.05

#: librdkafka's own code; confluent-kafka has it only under a private name.
_BAD_MESSAGE = -199


def _to_public(offsets: Sequence[tuple[str, int, int, str]]) -> list[TopicPartition]:
    """confluent-kafka's objects for these offsets."""
    return [
        TopicPartition(one.topic, one.partition, one.offset, one.metadata)
        for one in (ToCommit(*offset) for offset in offsets)
    ]


def _from_public(partition: TopicPartition) -> Committed:
    """Plain data of confluent-kafka's object."""
    error = partition.error.code() if partition.error else 0
    offset = None if partition.offset < 0 else partition.offset
    metadata = getattr(partition, "metadata", None) or ""
    return Committed(partition.topic, partition.partition, offset, metadata, error)


def committed(
    consumer: Consumer, partitions: Sequence[tuple[str, int]], timeout_s: float
) -> list[Committed]:
    """What the group has committed, as clib.committed; metadata only if Weft wrote it."""
    asked = [TopicPartition(topic, partition) for topic, partition in partitions]
    try:
        return [_from_public(one) for one in consumer.committed(asked, timeout=timeout_s)]
    except UnicodeDecodeError as error:
        # The offsets are unreadable too, so this is a failed read, not an empty map.
        raise KafkaException(
            KafkaError(_BAD_MESSAGE, "another client's commit metadata cannot be read")
        ) from error


class CommitQueue:
    """Commits and their answers, as clib.CommitQueue, by committing and reading back.

    confluent-kafka serves ``on_commit`` to nobody inside a rebalance callback, and holds
    other threads' calls back meanwhile. A read sent after the commit on the same connection
    sees its effect. What the read does not show stays unanswered: the caller's deadline
    makes it a commit in doubt.
    """

    def __init__(self, consumer: Consumer) -> None:
        """A queue for this consumer's commits."""
        self._consumer: Consumer | None = consumer
        self._pending: dict[int, list[ToCommit]] = {}
        self._token = 0

    def send(self, offsets: Sequence[tuple[str, int, int, str]]) -> int:
        """Start a commit and return at once with the token its answer will carry."""
        self._open().commit(offsets=_to_public(offsets), asynchronous=True)
        self._token += 1
        self._pending[self._token] = [ToCommit(*offset) for offset in offsets]
        return self._token

    def signal(self, wakeable: object) -> None:
        """Nothing signals here: the waiting thread looks often enough by itself."""

    def poll(self, timeout_s: float) -> list[CommitAnswer]:
        """The answers of commits that took effect; may block for ``_READ_BACK_S``."""
        consumer = self._open()
        answers = []
        for token, sent in list(self._pending.items()):
            stored = _read_back(consumer, sent, max(timeout_s, _READ_BACK_S))
            if stored is not None:
                del self._pending[token]
                answers.append(CommitAnswer(token, 0, stored))
        return answers

    def close(self) -> None:
        """Forget what is unanswered. May be called again."""
        self._consumer = None

    def _open(self) -> Consumer:
        """The consumer."""
        if self._consumer is None:
            raise RuntimeError("the commit queue is closed")
        return self._consumer


def _read_back(
    consumer: Consumer, sent: Sequence[ToCommit], timeout_s: float
) -> tuple[Committed, ...] | None:
    """What the broker holds for these partitions, or None while it is not what was sent."""
    try:
        stored = committed(consumer, [(one.topic, one.partition) for one in sent], timeout_s)
    except KafkaException:
        return None
    stored = [replace(one, metadata=one.metadata.removesuffix("\x00")) for one in stored]
    held = [ToCommit(one.topic, one.partition, one.offset or 0, one.metadata) for one in stored]
    return tuple(stored) if held == list(sent) else None


class GroupMetadata:
    """A consumer's membership at one moment, as clib.GroupMetadata."""

    def __init__(self, consumer: Consumer) -> None:
        """The membership now."""
        self.public: Any = consumer.consumer_group_metadata()

    def close(self) -> None:
        """Nothing to free: confluent-kafka owns it."""


def group_metadata(consumer: Consumer) -> GroupMetadata:
    """The consumer's membership now."""
    return GroupMetadata(consumer)


def send_offsets_to_transaction(
    producer: Producer,
    offsets: Sequence[tuple[str, int, int, str]],
    membership: GroupMetadata,
    timeout_s: float,
) -> None:
    """Put offsets and metadata into the producer's open transaction."""
    producer.send_offsets_to_transaction(_to_public(offsets), membership.public, timeout_s)


class WakeableQueue:
    """As wakeable.WakeableQueue, but looks for records every 10 ms: nothing signals them."""

    def __init__(self, consumer: Consumer) -> None:
        """Takes the consumer only to be made like the other one."""
        self._woken = threading.Event()

    def wake(self) -> None:
        """Make the waiting thread return, or its next wait. Any thread, never blocks."""
        self._woken.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until woken or until it is time to look for records."""
        self._woken.wait(max(0.0, min(timeout_s, _LOOK_EVERY_S)))
        self._woken.clear()
        return True

    def close(self) -> None:
        """Nothing to give back."""
