"""A task's reading of its range: gaps, ends, and logs that change meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition

from perkey.spark.source import fetch as fetch_module
from perkey.spark.source.errors import (
    AUTO_OFFSET_RESET,
    PARTITION_EOF,
    TRANSPORT,
    UNKNOWN_TOPIC_OR_PART,
    DataLoss,
    SourceError,
)
from perkey.spark.source.fetch import FetchSettings, RangeFetch, consumer_config
from perkey.spark.source.ranges import OffsetRange


class FakeMessage:
    """A record, or an event of librdkafka when it has a code."""

    def __init__(self, offset: int, code: int | None = None, size_bytes: int = 1):
        self._offset, self._code, self._size_bytes = offset, code, size_bytes

    def __len__(self):
        return self._size_bytes

    def offset(self):
        return self._offset

    def error(self):
        return None if self._code is None else KafkaError(self._code)


class FakeConsumer:
    """Answers `consume` from a script; the position follows the script, too."""

    def __init__(self, *answers, low=0, high=1_000):
        self.answers, self.low, self.high = list(answers), low, high
        self.assigned: list[int] = []
        self.at = OFFSET_INVALID

    def assign(self, partitions):
        self.assigned.append(partitions[0].offset)

    def consume(self, wanted, timeout):
        if not self.answers:
            return []
        answer = self.answers.pop(0)
        if isinstance(answer, int):  # Only the position moves: markers, aborted records.
            self.at = answer
            return []
        offsets = [m.offset() for m in answer if m.error() is None]
        self.at = offsets[-1] + 1 if offsets else self.at
        return answer

    def position(self, partitions):
        return [TopicPartition("t", 0, self.at)]

    def get_watermark_offsets(self, partition, timeout, cached):
        return self.low, self.high


def records(*offsets: int):
    return [FakeMessage(offset) for offset in offsets]


def event(code: int, offset: int = 0):
    return [FakeMessage(offset, code)]


@pytest.fixture(autouse=True)
def fake_messages(monkeypatch):
    """Messages cannot be made by hand."""
    monkeypatch.setattr(fetch_module, "Message", FakeMessage)


def started(consumer, start=0, end=10, *, fail=True, timeout_s=60.0) -> RangeFetch:
    settings = FetchSettings({"bootstrap.servers": "x:1"}, "group", fail, timeout_s, 500)
    fetching = RangeFetch(OffsetRange("t", 0, start, end), settings)
    fetching.start(consumer)
    return fetching


def offsets(consumer, start=0, end=10, *, fail=True) -> list[int]:
    """Everything that the range gives."""
    fetching = started(consumer, start, end, fail=fail)
    found: list[int] = []
    while batch := fetching.next_batch():
        found += [m.offset() for m in batch]
    return found


def test_a_range_without_gaps_ends_at_its_last_record():
    """Nothing after the last record is waited for."""
    assert offsets(FakeConsumer(records(*range(6)), records(*range(6, 10)))) == list(range(10))


def test_a_record_past_the_end_ends_it():
    """A gap at the end is seen by what comes behind it, which belongs to the next range."""
    assert offsets(FakeConsumer(records(0, 3, 9), records(12, 13))) == [0, 3, 9]
    assert offsets(FakeConsumer(records(0, 3, 12))) == [0, 3]


@pytest.mark.parametrize("at", [10, 11])
def test_the_position_ends_it(at):
    """Markers at the end give no record, but move the position."""
    assert offsets(FakeConsumer(records(0, 1), 5, at)) == [0, 1]


def test_the_end_of_the_log_ends_it():
    """An event of the end of the log stands for a gap that nothing follows."""
    assert offsets(FakeConsumer(records(0, 1), event(PARTITION_EOF, 10))) == [0, 1]


def test_an_end_inside_the_range_is_believed_of_the_leader_alone():
    """A follower may lag; the leader has the rest."""
    answers = (records(0, 1), event(PARTITION_EOF, 2), records(*range(2, 10)))
    assert offsets(FakeConsumer(*answers, high=10)) == list(range(10))


def test_a_log_that_was_cut_is_a_loss():
    """The leader, too, says that the log ends inside the range."""
    answers = (records(0, 1), event(PARTITION_EOF, 2))
    with pytest.raises(DataLoss, match="was cut: it ends at 2 now"):
        offsets(FakeConsumer(*answers, high=2))
    assert offsets(FakeConsumer(*answers, high=2), fail=False) == [0, 1]


def test_records_that_retention_took_are_a_loss():
    """Out of range below the log: an error, or on from the start of the log."""
    answers = (records(0, 1), event(AUTO_OFFSET_RESET), records(6, 7, 8, 9))
    with pytest.raises(DataLoss, match="offsets 2 to 5 of"):
        offsets(FakeConsumer(*answers, low=6))
    consumer = FakeConsumer(*answers, low=6)
    assert offsets(consumer, fail=False) == [0, 1, 6, 7, 8, 9]
    assert consumer.assigned == [0, 6]


@pytest.mark.parametrize(("low", "left"), [(9, [9]), (10, []), (11, [])])
def test_retention_up_to_and_past_the_end(low, left):
    """The start of the log at the last record, at the end and after it."""
    consumer = FakeConsumer(event(AUTO_OFFSET_RESET), records(9), low=low)
    assert offsets(consumer, fail=False) == left
    assert consumer.assigned == ([0, 9] if left else [0])


def test_out_of_range_above_the_log_is_a_cut_log():
    """The range begins after the end of the log."""
    with pytest.raises(DataLoss, match="was cut"):
        offsets(FakeConsumer(event(AUTO_OFFSET_RESET), high=3), start=5)
    assert offsets(FakeConsumer(event(AUTO_OFFSET_RESET), high=3), start=5, fail=False) == []


def test_a_topic_that_is_gone_is_a_loss():
    """Deleted while the task reads."""
    consumer = FakeConsumer(records(0), event(UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(DataLoss, match="is gone"):
        offsets(consumer)
    consumer = FakeConsumer(records(0), event(UNKNOWN_TOPIC_OR_PART))
    assert offsets(consumer, fail=False) == [0]


def test_a_lost_connection_is_waited_out():
    """Librdkafka connects again by itself."""
    assert offsets(FakeConsumer(event(TRANSPORT), records(*range(10)))) == list(range(10))


def test_other_errors_end_the_task():
    """Such as a missing right to read."""
    answers = (event(KafkaError.TOPIC_AUTHORIZATION_FAILED),)
    with pytest.raises(SourceError, match=r"reading t-0\[0, 10\) failed"):
        offsets(FakeConsumer(*answers))


def test_silence_ends_the_task_after_the_poll_timeout():
    """With what librdkafka said last, and the option that waits longer."""
    fetching = started(FakeConsumer(), timeout_s=0.001)
    fetching.on_client_error(KafkaError(TRANSPORT, "no route"))
    with pytest.raises(SourceError, match=r"came for 0\.001 s, at offset 0 \(last: no route\)"):
        fetching.next_batch()


def test_a_batch_is_bounded_in_rows_and_bytes(monkeypatch):
    """A batch closes at the first poll that reaches a limit."""
    for limit, rows in ((3, 4), (4, 4), (5, 6)):
        monkeypatch.setattr(fetch_module, "BATCH_ROWS_MAX", limit)
        consumer = FakeConsumer(*[records(n, n + 1) for n in range(0, 10, 2)])
        assert len(started(consumer).next_batch()) == rows
    monkeypatch.setattr(fetch_module, "BATCH_ROWS_MAX", 1_000)
    monkeypatch.setattr(fetch_module, "BATCH_BYTES_MAX", 20)
    consumer = FakeConsumer(*[[FakeMessage(n, size_bytes=10)] for n in range(10)])
    assert len(started(consumer).next_batch()) == 2


def test_what_the_source_owns_cannot_be_changed():
    """No commit, no jump to another offset, whatever the options say; the rest is the user's."""
    kafka = {"enable.auto.commit": "true", "auto.offset.reset": "latest", "fetch.wait.max.ms": "9"}
    settings = FetchSettings(kafka, "group", True, 1.0, 500)
    config = consumer_config(OffsetRange("t", 0, 0, 7), settings)
    assert (config["enable.auto.commit"], config["auto.offset.reset"]) == (False, "error")
    assert config["fetch.wait.max.ms"] == "9"
    assert config["isolation.level"] == "read_uncommitted"
    assert config["queued.min.messages"] == 16


def test_settings_show_no_secret():
    """They travel to the executors; what is logged of them holds no property."""
    settings = FetchSettings({"sasl.password": "hunter2"}, "group", True, 1.0, 500)
    assert "hunter2" not in repr(settings)


def test_a_kept_consumer_is_not_believed_when_it_has_trouble():
    """What it says may be old: a new one goes on at the next record, and nothing comes twice."""
    for trouble in (UNKNOWN_TOPIC_OR_PART, AUTO_OFFSET_RESET):
        kept = FakeConsumer([*records(0, 1, 2), *event(trouble)])
        new = FakeConsumer(records(*range(3, 10)))
        settings = FetchSettings({"bootstrap.servers": "x:1"}, "group", True, 60.0, 500)
        fetching = RangeFetch(OffsetRange("t", 0, 0, 10), settings)
        fetching.start(kept, lambda new=new: new)
        found: list[int] = []
        while batch := fetching.next_batch():
            found += [m.offset() for m in batch]
        assert found == list(range(10))
        assert new.assigned == [3]


def test_a_kept_consumer_that_gets_nothing_is_replaced(monkeypatch):
    """Long before a query would end for it."""
    monkeypatch.setattr(fetch_module, "STALE_S", -1.0)
    new: Any = FakeConsumer(records(*range(10)))
    fetching = RangeFetch(
        OffsetRange("t", 0, 0, 10),
        FetchSettings({"bootstrap.servers": "x:1"}, "g", True, 60.0, 9),
    )
    fetching.start(FakeConsumer(), lambda: new)
    assert [m.offset() for m in fetching.next_batch()] == list(range(10))
