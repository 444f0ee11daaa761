"""Convert the arguments of `weft.testing.run` to records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from weft.errors import ConfigError
from weft.kafka.ports import OutMessage
from weft.testing.cluster import MemoryCluster
from weft.types import Record


def put(
    kafka: MemoryCluster, records: Iterable[Any], topics: Sequence[str], partitions: int
) -> None:
    """Write these; topics that do not exist are made with so many partitions.

    A `weft.Record` goes to its own topic, partition and offset (offsets ascend, and what they
    leave out is a gap). A pair is (key, value). Anything else is a value: bytes, str, None, a
    pydantic model, or what JSON can hold. Pairs and values go to the one topic of the app, to the
    partition that Kafka's own producers would choose. A topic has at least the partitions that
    its Records name.
    """
    for record in records:
        if isinstance(record, Record):
            _put_record(kafka, record, partitions)
        else:
            key, value = _pair(record)
            kafka.produce(_only(topics), value, key)


def _put_record(kafka: MemoryCluster, record: Record, partitions: int) -> None:
    ensure_topic(kafka, record.topic, max(partitions, record.partition + 1))
    with kafka.changed:
        if record.partition >= kafka.broker.partition_counts[record.topic]:
            kafka.add_partitions(record.topic, record.partition + 1)
        log = kafka.broker.logs[record.topic, record.partition]
        if record.offset < log.end:
            raise ConfigError(
                f"{record!r}: offset {record.offset} is taken, the next is {log.end}: give "
                "ascending offsets, or (key, value) pairs instead of Records"
            )
        log.gap(record.offset - log.end)
        key, value, headers = record.key, value_bytes(record.value), record.headers
        where = (record.topic, value, key, headers, record.partition, record.timestamp_ms)
        kafka.store(OutMessage(*where))


def _pair(record: Any) -> tuple[bytes | None, bytes | None]:
    if not isinstance(record, tuple):
        return None, value_bytes(record)
    if len(record) != 2:
        raise ConfigError(
            f"a tuple of {len(record)} is not a record: give (key, value), a value or a weft.Record"
        )
    key, value = record
    if isinstance(key, str):
        key = key.encode()
    if key is not None and not isinstance(key, bytes):
        raise ConfigError(f"key {key!r:.60}: give bytes, str or None")
    return key, value_bytes(value)


def value_bytes(value: Any) -> bytes | None:
    """A value as Kafka stores it."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump()).encode()
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a value of type {type(value).__name__} is none: give bytes, str, None, a pydantic "
            f"model or what JSON can hold ({error})"
        ) from error


def _only(topics: Sequence[str]) -> str:
    if len(topics) != 1:
        raise ConfigError(
            f"the app reads {', '.join(topics) or 'patterns only'}: give weft.Record(topic, ...), "
            "so that each record has a topic"
        )
    return topics[0]


def ensure_topic(kafka: MemoryCluster, topic: str, partitions: int) -> None:
    """Make the topic unless it exists."""
    with kafka.changed:
        if topic not in kafka.broker.partition_counts:
            kafka.create_topic(topic, partitions)
