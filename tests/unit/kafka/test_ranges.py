"""The offsets of a time range, as `perkey replay` reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from perkey.kafka import range_consumer
from perkey.kafka.clib_offsets import Bounds
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.range_consumer import ranges_of

MOVED = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)


class Answer:
    """One partition's answer: an offset, or an error, which has no offset."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self.topic, self.partition, self.offset, self.error = "t", 0, offset, error


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """Ranges of a log of 100 records, with these answers for its two times."""

    def ranges(*answers: Any) -> Any:
        left = list(answers)

        class Client:
            def __init__(self, _config: Any) -> None:
                """Connects to nothing."""

            def offsets_for_times(self, _asked: list[TopicPartition], **_: Any) -> list[Any]:
                if isinstance(left[0], Exception):
                    raise left.pop(0)
                return [left.pop(0)]

            def close(self) -> None:
                """Nothing is open."""

        monkeypatch.setattr(range_consumer, "Consumer", Client)
        monkeypatch.setattr(range_consumer.clib_offsets, "refresh", lambda *_: None)
        log = {("t", 0): Bounds(0, 100, 100)}
        monkeypatch.setattr(range_consumer.clib_offsets, "bounds_soon", lambda *_: log)
        return ranges_of(SimpleNamespace(consumer={}), "t", 1, 1_000, 2_000)

    return ranges


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [(10, 20, (10, 20)), (10, -1, (10, 100)), (-1, -1, None), (10, 10, None)],
)
def test_no_record_as_late_means_the_end_of_the_log(asked, first: int, last: int, found: Any):
    """And a range without records is left out."""
    assert asked(Answer(first), Answer(last)) == ({} if found is None else {("t", 0): found})


@pytest.mark.parametrize(
    "answers",
    [
        (Answer(-1, MOVED), Answer(20)),
        (Answer(10), Answer(-1, MOVED)),
        (KafkaException(KafkaError(KafkaError._TIMED_OUT)),),
    ],
    ids=["first", "last", "request"],
)
def test_an_error_is_not_taken_for_the_end_of_the_log(asked, answers: Any):
    """Else the partition would be left out, or handled beyond its range."""
    with pytest.raises(KafkaUnavailable, match="t"):
        asked(*answers)
