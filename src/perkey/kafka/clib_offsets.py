"""Query start and end of many logs in one request, over a consumer's own connections.

confluent-kafka queries one partition at a time (400 take 2.6 s, and one without a leader delays the
others until it times out), and in a read_committed consumer only up to open transactions.
librdkafka's ListOffsets works on any client and answers for each partition separately. An admin
client beside each consumer would cost a login, 6 threads and the connections to all brokers, and
answers later: 8.4 ms instead of 4.5 ms for 400 partitions on three mock brokers.

librdkafka (2.16) first finds the leaders on the calling thread, comparing each partition with each
other one. If the time-out expires before that, its own thread ends the request and the calling
thread reads freed memory: the process crashes. So many partitions are queried in portions, each
with a time-out of at least one second.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from itertools import product
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaException

from perkey.kafka import clib

Spec = Literal["start", "end", "stable_end"]

#: RD_KAFKA_ADMIN_OP_LISTOFFSETS
_LIST_OFFSETS = 21
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
#: added to the request's time limit, so that its own time-outs come first
_GRACE_S = 0.5
#: most partitions of one request: see above
PARTITIONS_MAX = 200
LEAST_S = 1.0
SETTLE_S = 1.0
AGAIN_S = 0.1
Item = TypeVar("Item")
#: most topics looked up one by one; for more the metadata of the whole cluster is cheaper
REFRESHED_MAX = 10

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rd_kafka_AdminOptions_new": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_AdminOptions_destroy": (None, (c_void_p,)),
    "rd_kafka_AdminOptions_set_request_timeout": (
        c_int,
        (c_void_p, c_int, c_char_p, c_size_t),
    ),
    "rd_kafka_AdminOptions_set_isolation_level": (c_void_p, (c_void_p, c_int)),
    "rd_kafka_AdminOptions_set_opaque": (None, (c_void_p, c_void_p)),
    "rd_kafka_ListOffsets": (None, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "rd_kafka_ListOffsets_result_infos": (POINTER(c_void_p), (c_void_p, POINTER(c_size_t))),
    "rd_kafka_ListOffsetsResultInfo_topic_partition": (POINTER(clib.Partition), (c_void_p,)),
}

#: spec -> librdkafka's offset spec and isolation level
_ASKED: dict[Spec, tuple[int, int]] = {
    "start": (_EARLIEST, _READ_UNCOMMITTED),
    "end": (_LATEST, _READ_UNCOMMITTED),
    "stable_end": (_LATEST, _READ_COMMITTED),
}


class Bounds(NamedTuple):
    """The bounds of one partition's log; only the requested ones are set."""

    start: int = -1
    #: the high watermark
    end: int = -1
    #: the end for a read_committed consumer: before the oldest open transaction
    stable_end: int = -1


def bounds(
    consumer: Consumer,
    partitions: Sequence[tuple[str, int]],
    specs: Sequence[Spec],
    timeout_s: float,
) -> dict[tuple[str, int], Bounds]:
    """The bounds of the partitions that were answered in full; the others are left out.

    Blocks, up to `timeout_s`. A request has at least `LEAST_S`: an answer after `timeout_s` is
    dropped.
    """
    answers: dict[tuple[str, int], dict[str, int]] = {where: {} for where in partitions}
    if not partitions:
        return {}
    asked_s = max(LEAST_S, timeout_s)
    requests = list(product(specs, portions(partitions)))
    with _queue(consumer) as queue:
        for number, (spec, wanted) in enumerate(requests):
            _send(consumer, queue, wanted, spec, number, asked_s)
        deadline = time.monotonic() + timeout_s + (_GRACE_S if timeout_s == asked_s else 0.0)
        for _ in requests:  # all are in flight together
            number, answer = _next_answer(queue, deadline - time.monotonic())
            for where, offset in answer:
                answers[where][requests[number][0]] = offset
    whole = {where: both for where, both in answers.items() if len(both) == len(specs)}
    return {where: Bounds(**both) for where, both in whole.items()}


def portions(partitions: Sequence[Item]) -> list[Sequence[Item]]:
    """Split the partitions into portions for one ListOffsets each."""
    starts = range(0, len(partitions), PARTITIONS_MAX)
    return [partitions[start : start + PARTITIONS_MAX] for start in starts]


def bounds_soon(
    consumer: Consumer,
    partitions: Sequence[tuple[str, int]],
    specs: Sequence[Spec],
    timeout_s: float,
) -> dict[tuple[str, int], Bounds]:
    """Like `bounds`, with a short retry, so that leaders that have just moved are found.

    ListOffsets takes leaders from the client's metadata and never refreshes it: it would query
    a former leader, or use a fenced leader epoch, forever.
    """
    deadline = time.monotonic() + timeout_s
    again_until = min(deadline, time.monotonic() + SETTLE_S)
    known_bounds, pause_s = bounds(consumer, partitions, specs, timeout_s), AGAIN_S
    while len(known_bounds) < len(partitions) and time.monotonic() < again_until:
        left = [where for where in partitions if where not in known_bounds]
        refresh(consumer, {topic for topic, _ in left}, again_until - time.monotonic())
        known_bounds |= bounds(consumer, left, specs, max(AGAIN_S, deadline - time.monotonic()))
        if len(known_bounds) < len(partitions):
            time.sleep(pause_s)
            pause_s *= 2
    return known_bounds


def refresh(consumer: Consumer, topics: Collection[str], timeout_s: float) -> None:
    """Make the client look up these topics' leaders, of all if none is given; blocks so long."""
    deadline = time.monotonic() + timeout_s
    for topic in sorted(topics) if 0 < len(topics) <= REFRESHED_MAX else [None]:
        with suppress(KafkaException):  # no broker answers: the caller retries
            clib.refresh_metadata(consumer, topic, max(AGAIN_S, deadline - time.monotonic()))


@cache
def _calls() -> Any:
    return clib.declared(clib.library(), _SIGNATURES)


@contextmanager
def _queue(consumer: Consumer) -> Iterator[int]:
    queue = _calls().rd_kafka_queue_new(clib.handle(consumer))
    try:
        yield queue
    finally:
        # A late answer is dropped with the queue.
        _calls().rd_kafka_queue_destroy(queue)


def _send(
    consumer: Consumer,
    queue: int,
    partitions: Sequence[tuple[str, int]],
    spec: Spec,
    number: int,
    timeout_s: float,
) -> None:
    calls, rk = _calls(), clib.handle(consumer)
    asked, level = _ASKED[spec]
    options = calls.rd_kafka_AdminOptions_new(rk, _LIST_OFFSETS)
    try:
        timeout_ms = max(1, int(min(timeout_s, clib.WAIT_MAX_S) * 1000))
        calls.rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, None, 0)
        refused = calls.rd_kafka_AdminOptions_set_isolation_level(options, level)
        if refused:
            raise KafkaException(clib.take_error(refused))
        calls.rd_kafka_AdminOptions_set_opaque(options, number)
        with clib.partition_list(len(partitions)) as wanted:
            for topic, partition in partitions:
                add = calls.rd_kafka_topic_partition_list_add
                add(wanted, topic.encode(), partition).contents.offset = asked
            calls.rd_kafka_ListOffsets(rk, wanted, options, queue)
    finally:
        calls.rd_kafka_AdminOptions_destroy(options)


def _next_answer(queue: int, timeout_s: float) -> tuple[int, list[tuple[tuple[str, int], int]]]:
    """The number of a completed request, and the result of each partition that has one."""
    calls = _calls()
    event = calls.rd_kafka_queue_poll(queue, max(0, int(timeout_s * 1000)))
    if not event:
        return 0, []
    try:
        number = calls.rd_kafka_event_opaque(event) or 0
        if calls.rd_kafka_event_error(event):
            return number, []
        count = c_size_t()
        infos = calls.rd_kafka_ListOffsets_result_infos(event, byref(count))
        offsets = []
        for place in range(count.value):
            result = calls.rd_kafka_ListOffsetsResultInfo_topic_partition(infos[place]).contents
            # A broker that did not answer in time leaves "no offset" and no error.
            if not result.err and result.offset >= 0:
                offsets.append(
                    (
                        (result.topic.decode(), result.partition),
                        result.offset,
                    )
                )
        return number, offsets
    finally:
        calls.rd_kafka_event_destroy(event)
