"""Topics with known records: record i has key i modulo keys and lies in its key's partition."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_PROGRESS_EVERY = 20_000
_PRODUCER = {
    "linger.ms": 20,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
}


@dataclass(frozen=True)
class TopicSpec:
    """Shape of a benchmark topic."""

    records: int
    keys: int
    partitions: int
    value_bytes: int


def create(bootstrap: str, spec: TopicSpec) -> str:
    """Make an empty topic with a fresh name and return that name."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, spec.partitions, 1)])[name].result(30)
    return name


def delete(bootstrap: str, topic: str) -> None:
    """Delete the topic so that its log does not fill the disk during the next workload."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def fill(bootstrap: str, topic: str, spec: TopicSpec, advanced: Callable[[int], object]) -> None:
    """Produce the records; `advanced(n)` is called for each n more. Raises RuntimeError on loss."""
    producer = Producer({**_PRODUCER, "bootstrap.servers": bootstrap})
    failures: list[str] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(str(error))

    keys = [b"key-%d" % key for key in range(spec.keys)]
    value = b"x" * spec.value_bytes
    for i in range(spec.records):
        key = i % spec.keys
        partition = key % spec.partitions
        produce = partial(producer.produce, topic, value, keys[key], partition, delivered)
        _unless_full(producer, produce)
        if (i + 1) % _PROGRESS_EVERY == 0:
            advanced(_PROGRESS_EVERY)
    advanced(spec.records % _PROGRESS_EVERY)
    left = producer.flush(60)
    if left or failures:
        raise RuntimeError(
            f"{topic}: {left} records unsent, {len(failures)} refused {failures[:1]}"
        )


def _unless_full(producer: Producer, produce: Callable[[], None]) -> None:
    """Produce, waiting for room in the queue as often as needed."""
    while True:
        try:
            produce()
        except BufferError:
            producer.poll(0.05)
        else:
            return
