"""Messages become records, also those of a foreign client with unreadable header names."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Message

from perkey.kafka import batches


class Foreign:
    """As much of a Message as the reading of headers needs."""

    def headers(self) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "not UTF-8")

    def topic(self) -> str:
        return "t-many"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


def test_records_share_the_text_of_a_topic_that_is_known() -> None:
    """A buffer of them keeps one text; they are the same records otherwise."""
    messages = [
        Message(topic="t-some", partition=number % 2, offset=number, key=b"k", value=b"v")
        for number in range(9)
    ]
    topic = str(b"t-some", "utf-8")
    (even, odd) = found = batches.batches_of(messages, topic)
    assert found == batches.batches_of(messages)
    assert all(record.topic is topic for record in (*even.records, *odd.records))
    assert [record.offset for record in odd.records] == [1, 3, 5, 7]


@pytest.mark.parametrize("topics", [["a"], ["a", "b"]])
@pytest.mark.parametrize("numbers", [[0], [0, 1]])
def test_each_partition_of_a_poll_is_one_batch(topics: list[str], numbers: list[int]) -> None:
    """Also if all is of one, and if two topics have the same number."""
    messages = [
        Message(topic=topic, partition=number, offset=offset, key=b"k", value=b"v")
        for topic in topics
        for number in numbers
        for offset in (7, 8)
    ]
    found = batches.batches_of(messages)
    assert [(batch.topic, batch.partition) for batch in found] == [
        (topic, number) for topic in topics for number in numbers
    ]
    assert all([record.offset for record in batch.records] == [7, 8] for batch in found)
    assert all(batch.sizes == [2, 2] for batch in found)
    assert batches.batches_of([]) == []


def test_many_unreadable_headers_are_reported_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """5,000 of them gave 5,000 warnings."""
    monkeypatch.setattr(batches, "Message", Foreign)
    with caplog.at_level(logging.WARNING):
        found = batches._all_headers([Foreign()] * 5000)
    assert found == [None] * 5000
    assert len(caplog.records) == 1
