"""How much librdkafka may hold in its queues, as a share of the member's budget."""

from __future__ import annotations

from typing import Any

from weft.kafka.properties import canonical, properties

Config = dict[str, Any]

#: Parts of `buffer_bytes`: fetched records not yet polled; one broker's next response, by which
#: that queue is overshot; what is produced and not yet acknowledged. With 64 partitions of 1 MB
#: records a process then stays about 80 MB over `buffer_bytes` (133 MB with twice the parts).
_QUEUE_PART, _FETCH_PART, _PRODUCER_PART = 8, 16, 4

#: librdkafka keeps about so much beside each queued record; small records are mostly that.
RECORD_OVERHEAD_BYTES = 512

#: Below so many queued records librdkafka fetches again; one response of 1 MB a partition comes on
#: top. Its default of 100,000 is no faster, and the last of ten million records then find 13 %
#: more memory in use than the second million did (with this: 2 %; benchmarks/run.py memory).
_QUEUE_MAX_RECORDS = 10_000
#: librdkafka's own defaults, which a large budget does not exceed: more only delays a revoke.
_QUEUE_MAX_KBYTES = 65_536
_FETCH_MAX_BYTES = 52_428_800
_PARTITION_FETCH_MAX_BYTES = 1_048_576
_MESSAGE_MAX_BYTES = 1_000_000
_QUEUE_MIN_BYTES = 1024
#: librdkafka does not accept less.
_MESSAGE_MIN_BYTES = 1000
#: Below the 100 MB that a broker reads by default.
_REQUEST_MAX_BYTES = 64 * 2**20
#: What a response may have around its records, by librdkafka's own check.
_RESPONSE_FRAME_BYTES = 512


def number(config: Config, name: str, default: int) -> int:
    """A whole number of the configuration, by whichever of its names."""
    for given, value in config.items():
        if canonical(given) == canonical(name):
            return int(value)
    return default


def consumer_budget(config: Config, records: int, size_bytes: int) -> Config:
    """Queue and fetch sizes of a consumer, beside what the user has set.

    librdkafka refuses a `fetch.max.bytes` below `message.max.bytes`, and a
    `receive.message.max.bytes` below `fetch.max.bytes` and its frame.
    """
    queue_bytes = max(size_bytes // _QUEUE_PART, _QUEUE_MIN_BYTES)
    response_bytes = max(size_bytes // _FETCH_PART, _QUEUE_MIN_BYTES)
    message_bytes = number(config, "message.max.bytes", _MESSAGE_MAX_BYTES)
    fetch_bytes = min(response_bytes, _FETCH_MAX_BYTES)
    receive_bytes = number(config, "receive.message.max.bytes", 0)
    if receive_bytes:
        fetch_bytes = min(fetch_bytes, receive_bytes - _RESPONSE_FRAME_BYTES)
    queued = min(records, queue_bytes // RECORD_OVERHEAD_BYTES, _QUEUE_MAX_RECORDS)
    return {
        "queued.min.messages": max(queued, 1),
        "queued.max.messages.kbytes": min(queue_bytes // 1024, _QUEUE_MAX_KBYTES),
        "fetch.max.bytes": max(fetch_bytes, message_bytes),
        "max.partition.fetch.bytes": min(response_bytes, _PARTITION_FETCH_MAX_BYTES),
    }


def producer_budget(config: Config, size_bytes: int) -> Config:
    """The producer's queue: its part of the budget, but always room for some large messages."""
    message_bytes = number(config, "message.max.bytes", _MESSAGE_MAX_BYTES)
    limit = properties()["queue.buffering.max.kbytes"].limits
    kbytes = max(size_bytes // _PRODUCER_PART, 4 * message_bytes) // 1024
    kbytes = min(kbytes, limit[1] if limit else kbytes)
    queue_bytes = 1024 * number(config, "queue.buffering.max.kbytes", kbytes)
    return {
        "queue.buffering.max.kbytes": kbytes,
        # The broker decides what is too large. One that is larger than the queue would wait for
        # room for ever; a request past the broker's socket.request.max.bytes cuts the connection.
        "message.max.bytes": max(_MESSAGE_MIN_BYTES, min(queue_bytes, _REQUEST_MAX_BYTES)),
    }
