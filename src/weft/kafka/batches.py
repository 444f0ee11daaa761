"""Convert librdkafka's messages to records, by partition."""

from __future__ import annotations

import logging
from functools import partial
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any

from confluent_kafka import Message

from weft.kafka.ports import PolledBatch
from weft.sparse import Sparse
from weft.types import Record, TopicPartition

_make_record = partial(tuple.__new__, Record)
_where = itemgetter(0, 1)
_log = logging.getLogger("weft.kafka")
#: a topic full of such records is logged once per ten seconds
_sparse = Sparse()

#: What confluent-kafka raises for a name it cannot decode, depending on its version.
_UNREADABLE = (SystemError, UnicodeDecodeError)


def batches_of(messages: list[Message]) -> list[PolledBatch]:
    """Messages as records, by partition. Columns first: C loops over all messages at once."""
    values = list(map(Message.value, messages))
    keys = list(map(Message.key, messages))
    sizes = [len(v or b"") + len(k or b"") for v, k in zip(values, keys, strict=True)]
    headers = _all_headers(messages)
    if any(headers):
        sizes = [
            size + sum(len(name) + len(value or b"") for name, value in pairs or ())
            for size, pairs in zip(sizes, headers, strict=True)
        ]
    rows = zip(
        map(Message.topic, messages),
        map(Message.partition, messages),
        map(Message.offset, messages),
        map(itemgetter(1), map(Message.timestamp, messages)),
        keys,
        values,
        [tuple(h) if h else () for h in headers],
        repeat(1),
        repeat(None),
        repeat(None),
        strict=False,
    )
    return _by_partition(list(map(_make_record, rows)), sizes)


def _by_partition(records: list[Record], sizes: list[int]) -> list[PolledBatch]:
    batches: dict[TopicPartition, PolledBatch] = {}
    start = 0
    for where, group in groupby(records, _where):
        run = list(group)
        end = start + len(run)
        batch = batches.get(where)
        if batch is None:
            topic, partition = where
            batches[where] = PolledBatch(topic, partition, run, sizes[start:end])
        else:
            batch.records.extend(run)
            batch.sizes.extend(sizes[start:end])
        start = end
    return list(batches.values())


def _all_headers(messages: list[Message]) -> list[Any]:
    """The headers of each; None where confluent-kafka cannot read them.

    Only a foreign client writes names that are not UTF-8. Its record must not stop all others,
    and it may be asked once only: asked again, confluent-kafka 2.16 gives a list of null pointers.
    """
    found: list[Any] = []
    reading = map(Message.headers, messages)
    while len(found) < len(messages):
        try:
            found.extend(reading)
        except _UNREADABLE:
            bad = messages[len(found)]
            left_out = _sparse.left_out(str(bad.topic()))
            if left_out is not None:
                where = f"{bad.topic()}[{bad.partition()}]@{bad.offset()}"
                more = f" ({left_out} similar lines omitted)" if left_out else ""
                _log.warning(
                    "%s: a header's name is not UTF-8: its headers are omitted%s", where, more
                )
            found.append(None)
    return found
