"""What a read_committed reader finds, and the judge of a copy: Kafka's own copy test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

READ_S = 60.0


def read_committed(bootstrap: str, topic: str, timeout_s: float = READ_S) -> list[Message]:
    """Everything committed in the topic, partition by partition.

    A transaction's markers are written after the client hears that it is committed, so the end
    is read only once it stands still behind no open transaction.
    """
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "exactness",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + timeout_s
    try:
        partitions = reader.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        ends = _stable_ends(reader, topic, sorted(partitions), deadline)
        found: list[Message] = []
        for partition, end in ends.items():
            found += _read(reader, topic, partition, end, deadline)
    finally:
        reader.close()
    return found


def _stable_ends(
    reader: Consumer, topic: str, partitions: list[int], deadline: float
) -> dict[int, int]:
    """The ends for a read_committed reader, once no open transaction is below the log's end."""
    plain = Consumer(
        {
            "bootstrap.servers": reader_bootstrap(reader),
            "group.id": "exactness",
            "isolation.level": "read_uncommitted",
            "log_level": 0,
        }
    )
    try:
        while True:
            stable = {p: _end(reader, topic, p, deadline) for p in partitions}
            if stable == {p: _end(plain, topic, p, deadline) for p in partitions}:
                return stable
            assert time.monotonic() < deadline, f"a transaction on {topic} stays open: {stable}"
            threading.Event().wait(0.1)
    finally:
        plain.close()


def reader_bootstrap(reader: Consumer) -> str:
    """The addresses of the brokers this client knows."""
    brokers = reader.list_topics(timeout=60).brokers.values()
    return ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


def _end(reader: Consumer, topic: str, partition: int, deadline: float) -> int:
    left_s = max(0.1, deadline - time.monotonic())
    return reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=left_s)[1]


def _read(reader: Consumer, topic: str, partition: int, end: int, deadline: float) -> list[Message]:
    reader.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    while end:
        assert time.monotonic() < deadline, f"{topic}[{partition}] cannot be read up to {end}"
        for message in reader.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                return found
    return found


@dataclass
class Copy:
    """How a copy compares with what was to be copied; all four lists empty: exactly once."""

    inputs: int
    outputs: int
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line for people."""
        return (
            f"inputs={self.inputs} outputs={self.outputs} lost={len(self.lost)} "
            f"repeated={len(self.repeated)} invented={len(self.invented)} "
            f"out of order={len(self.out_of_order)}"
        )

    @property
    def exact(self) -> bool:
        """Each input once, in lane order, and nothing else."""
        return not (self.lost or self.repeated or self.invented or self.out_of_order)


def compare(inputs: dict[tuple[int, int], str], outputs: list[Message]) -> Copy:
    """Each output's value is `partition:offset` of its input; `inputs` gives the keys.

    The lanes of one input partition and key must be in offset order in the output; a key has one
    output partition, so its order is the log's.
    """
    wanted = {f"{partition}:{offset}" for partition, offset in inputs}
    seen = Counter((message.value() or b"").decode() for message in outputs)
    copy = Copy(len(wanted), len(outputs))
    copy.lost = sorted(wanted - seen.keys())
    copy.invented = sorted(seen.keys() - wanted)
    copy.repeated = sorted(value for value, count in seen.items() if count > 1)
    last: dict[tuple[str, bytes | None], int] = {}
    for message in outputs:
        partition, _, offset = (message.value() or b"").decode().partition(":")
        lane = (partition, message.key())
        if last.get(lane, -1) >= int(offset or 0):
            copy.out_of_order.append(f"{lane}: {offset} after {last[lane]}")
        last[lane] = int(offset or 0)
    return copy
