"""Convert librdkafka's messages to records, by partition."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby, repeat
from operator import add, itemgetter
from typing import Any

from confluent_kafka import Message

from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import PolledBatch
from perkey.types import Record, TopicPartition

_log = logging.getLogger("perkey.kafka")
#: limits the log line about a topic full of such records to one per ten seconds
_sparse = Sparse()

#: What confluent-kafka raises for a name it cannot decode, depending on its version.
_UNREADABLE = (SystemError, UnicodeDecodeError)


def batches_of(messages: list[Message], topic: str | None = None) -> list[PolledBatch]:
    """Group messages by partition. By columns first: C loops over all messages.

    `topic`: the topic of all messages if known; otherwise each record keeps a separate text.
    """
    topics = list(map(Message.topic, messages)) if topic is None else [topic] * len(messages)
    numbers = list(map(Message.partition, messages))
    values = list(map(Message.value, messages))
    keys = list(map(Message.key, messages))
    try:
        sizes = list(map(add, map(len, values), map(len, keys)))  # type: ignore[arg-type]  # see below
    except TypeError:  # some have none
        sizes = [len(v or b"") + len(k or b"") for v, k in zip(values, keys, strict=True)]
    headers: Iterable[Any] = _all_headers(messages)
    if any(headers):
        sizes = [
            size + sum(len(name) + len(value or b"") for name, value in pairs or ())
            for size, pairs in zip(sizes, headers, strict=True)
        ]
        headers = [tuple(h) if h else () for h in headers]
    else:
        headers = repeat(())
    rows = zip(
        topics,
        numbers,
        map(Message.offset, messages),
        map(itemgetter(1), map(Message.timestamp, messages)),
        keys,
        values,
        headers,
        repeat(1),
        repeat(None),
        repeat(None),
        strict=False,
    )
    records = list(map(tuple.__new__, repeat(Record), rows))
    return _by_partition(topics, numbers, records, sizes)


def _by_partition(
    topics: list[Any], numbers: list[Any], records: list[Record], sizes: list[int]
) -> list[PolledBatch]:
    if records and topics.count(topics[0]) == numbers.count(numbers[0]) == len(records):
        return [PolledBatch(topics[0], numbers[0], records, sizes)]  # mostly all of one partition
    batches: dict[TopicPartition, PolledBatch] = {}
    start = 0
    # Two nested columns: a key for each record would be a tuple for each.
    for number, of_number in groupby(numbers):
        for topic, run in groupby(topics[start : start + len(list(of_number))]):
            end = start + len(list(run))
            batch = batches.get((topic, number))
            if batch is None:
                batches[topic, number] = PolledBatch(
                    topic, number, records[start:end], sizes[start:end]
                )
            else:
                batch.records.extend(records[start:end])
                batch.sizes.extend(sizes[start:end])
            start = end
    return list(batches.values())


def _all_headers(messages: list[Message]) -> list[Any]:
    """The headers of each message; None where confluent-kafka cannot read them.

    Only a foreign client writes names that are not UTF-8. Its record must not stop all others, and
    its headers may be read once only: the second time confluent-kafka 2.16 returns null pointers.
    """
    taken: list[Any] = []
    reading = map(Message.headers, messages)
    while len(taken) < len(messages):
        try:
            taken.extend(reading)
        except _UNREADABLE:
            bad = messages[len(taken)]
            left_out = _sparse.left_out(str(bad.topic()))
            if left_out is not None:
                where = f"{bad.topic()}[{bad.partition()}]@{bad.offset()}"
                omitted = f" ({left_out} similar lines omitted)" if left_out else ""
                _log.warning(
                    "%s: a header's name is not UTF-8: its headers are omitted%s", where, omitted
                )
            taken.append(None)
    return taken
