"""Ranges of offsets, read with a consumer that joins no group."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from perkey.kafka import log_reader
from perkey.kafka.log_reader import RangeReader

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
EOF = KafkaError(KafkaError._PARTITION_EOF)


class Message:
    """A record of topic "t", or an event with an error."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self.topic = lambda: "t"
        self.partition = lambda: partition
        self.offset = lambda: offset
        self.error = lambda: error


class Client:
    """A consumer that returns these messages, one list per call, and then nothing."""

    def __init__(self, *turns: list[Message]) -> None:
        self.turns, self.paused, self.assigned = list(turns), [], 0

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = len(partitions)

    def unassign(self) -> None:
        self.assigned = 0

    def resume(self, _partitions: list[Any]) -> None:
        """Nothing is paused at the start."""

    def pause(self, partitions: list[Any]) -> None:
        self.paused += [place.partition for place in partitions]

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        return self.turns.pop(0) if self.turns else []


def read(client: Any, ranges: dict[int, tuple[int, int]], **limits: Any) -> tuple[Any, Any]:
    """The offsets by partition in order of arrival, and the partitions that are not read."""
    reader = RangeReader(client, lambda *_: True)
    wanted = {("t", partition): bounds for partition, bounds in ranges.items()}
    found = [
        (message.partition(), message.offset())
        for messages in reader.read(wanted, **limits)
        for message in messages
    ]
    assert client.assigned == 0
    return found, sorted(partition for _, partition in reader.left)


def test_a_range_is_read_once_a_record_past_a_gap_comes() -> None:
    """Compacted and aborted records never come: the next record, or the end, is behind them."""
    client = Client([Message(0, 3), Message(1, 0)], [Message(0, 9)], [Message(1, 5, EOF)])
    assert read(client, {0: (3, 8), 1: (0, 5)}) == ([(0, 3), (1, 0), (0, 9)], [])
    assert client.paused == [0, 1]


def test_an_end_before_the_end_of_the_range_is_no_end() -> None:
    """The log grows up to it: a transaction is open, or a follower lags behind."""
    client = Client([Message(0, 1, EOF)], [Message(0, 1)], [Message(0, 2)])
    assert read(client, {0: (0, 3)}) == ([(0, 1), (0, 2)], [])


def test_empty_ranges_are_not_assigned() -> None:
    """A reader without ranges asks for nothing."""
    assert read(Client(), {0: (4, 4)}) == ([], [])


def test_a_partition_with_an_error_is_given_up_alone() -> None:
    """The others are read to their end; later messages of it are none of the ranges."""
    client = Client([Message(0, 0, DENIED), Message(1, 0)], [Message(0, 0, DENIED), Message(1, 1)])
    assert read(client, {0: (0, 2), 1: (0, 2)}) == ([(1, 0), (1, 1)], [])
    assert client.paused == [0, 1]


@pytest.mark.parametrize("limit", ["silent_s", "until"])
def test_limits_leave_the_partitions_that_were_not_read(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller decides whether that is an error."""
    start = time.monotonic()
    passed = iter(range(100))
    monkeypatch.setattr(log_reader.time, "monotonic", lambda: start + next(passed))
    limits = {limit: 5.0 if limit == "silent_s" else start + 5.0}
    client = Client([Message(0, 0)], [Message(1, 0)])
    assert read(client, {0: (0, 1), 1: (0, 2)}, **limits) == ([(0, 0), (1, 0)], [1])
    assert next(passed) < 12


def test_the_time_of_a_slow_caller_is_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that sends a batch for a minute then read no end and reported the broker as gone."""
    clock = [0.0]
    monkeypatch.setattr(log_reader.time, "monotonic", lambda: clock[0])
    client: Any = Client([Message(0, 0)], [], [Message(0, 1)])
    reader = RangeReader(client, lambda *_: True)
    for _ in reader.read({("t", 0): (0, 2)}, silent_s=5.0):
        clock[0] += 60.0
    assert not reader.left
