"""What clib.py does, by confluent-kafka's public calls, where librdkafka is out of reach.

Weft still reads what Weft wrote. What it cannot do: metadata that the Java Parallel Consumer
can read (a NUL is appended), reading others' metadata safely, waking without a delay.
"""

import queue
import threading
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from weft.kafka.answers import CommitAnswer, Committed, ToCommit

#: Longest that a record waits unseen: there is no signal to wake us for it.
_LOOK_EVERY_S = 0.01

#: librdkafka's own codes; confluent-kafka has them only under private names.
_BAD_MESSAGE = -199
_DESTROY = -197


def _to_public(offsets: Sequence[tuple[str, int, int, str]]) -> list[TopicPartition]:
    """confluent-kafka's objects for these offsets."""
    return [
        TopicPartition(one.topic, one.partition, one.offset, one.metadata or None)
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
    """Commits answered on a queue, as clib.CommitQueue: one thread makes synchronous commits."""

    def __init__(self, consumer: Consumer) -> None:
        """A queue for this consumer's commits."""
        self._consumer = consumer
        self._requests: queue.SimpleQueue[tuple[int, list[TopicPartition]] | None]
        self._requests = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[CommitAnswer] = queue.SimpleQueue()
        self._token = 0
        self._is_open = True
        threading.Thread(target=self._serve, name="weft-commit", daemon=True).start()

    def send(self, offsets: Sequence[tuple[str, int, int, str]]) -> int:
        """Start a commit and return at once with the token its answer will carry."""
        if not self._is_open:
            raise RuntimeError("the commit queue is closed")
        self._token += 1
        self._requests.put((self._token, _to_public(offsets)))
        return self._token

    def poll(self, timeout_s: float) -> list[CommitAnswer]:
        """All answers there are; waits up to ``timeout_s`` for the first."""
        answers: list[CommitAnswer] = []
        try:
            answers.append(self._answers.get(timeout=max(timeout_s, 0.0)))
            while True:
                answers.append(self._answers.get_nowait())
        except queue.Empty:
            return answers

    def close(self) -> None:
        """End the thread when its commit in flight has ended. May be called again."""
        self._is_open = False
        self._requests.put(None)

    def _serve(self) -> None:
        """Make the commits one after another until closed."""
        while request := self._requests.get():
            token, offsets = request
            self._answers.put(self._commit(token, offsets))

    def _commit(self, token: int, offsets: list[TopicPartition]) -> CommitAnswer:
        """One synchronous commit as an answer."""
        try:
            stored = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as failure:
            return CommitAnswer(token, failure.args[0].code(), ())
        except RuntimeError:  # The consumer was closed meanwhile.
            return CommitAnswer(token, _DESTROY, ())
        partitions = tuple(_from_public(one) for one in stored or ())
        error = next((one.error for one in partitions if one.error), 0)
        return CommitAnswer(token, error, partitions)


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
