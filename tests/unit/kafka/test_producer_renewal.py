"""A producer that meets a fatal error is made anew, and what it held is answered for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from weft.kafka import producer
from weft.kafka.ports import Delivery, OutMessage


class Stored:
    """A message as librdkafka hands it back."""

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"k"


class Breaks:
    """A client whose first instance breaks as confluent-kafka does after a fatal error."""

    made: list[Breaks]

    def __init__(self, config: Any) -> None:
        self.made.append(self)
        self.fatal = len(self.made) == 1
        self.waiting: list[Any] = []

    def produce(self, topic: str, *, on_delivery: Any, **_: Any) -> None:
        self.waiting.append(on_delivery)

    def poll(self, timeout: float) -> int:
        if self.fatal and self.waiting:
            raise SystemError("returned NULL without setting an exception")
        threading.Event().wait(0.005)
        return 0 if self.fatal else self._answer(None)

    def purge(self) -> None:
        """Everything is answered by the next flush."""

    def flush(self, timeout: float = 0) -> int:
        if self._answer(KafkaError(KafkaError._PURGE_QUEUE)):
            raise KafkaException(KafkaError(KafkaError._FATAL, fatal=True))
        return 0

    def _answer(self, error: KafkaError | None) -> int:
        waiting, self.waiting = self.waiting, []
        for on_delivery in waiting:
            on_delivery(error, Stored())
        return len(waiting)


def test_a_fatal_error_makes_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old one held is refused, so that it is tried again, and the new one delivers."""
    monkeypatch.setattr(producer, "Producer", Breaks)
    Breaks.made = []
    told: list[Delivery] = []
    changed = threading.Event()
    under_test = producer.KafkaProducer({}, changed.set)
    under_test.send(OutMessage("t", b"1", None), told.append)
    assert changed.wait(10)
    assert [one.error.type for one in told if one.error] == ["_PURGE_QUEUE"]
    changed.clear()
    under_test.send(OutMessage("t", b"2", None), told.append)
    assert changed.wait(10)
    assert told[1].sent is not None
    assert len(Breaks.made) == 2
    under_test.close(1.0)


def test_a_callback_with_an_exception_pending_is_told_all_the_same() -> None:
    """The first call into C fails then; the second works."""

    class Pending(Stored):
        calls = 0

        def topic(self) -> str:
            self.calls += 1
            if self.calls == 1:
                raise SystemError("returned a result with an exception set")
            return "t"

    delivery = producer.delivery_of(None, Pending())  # type: ignore[arg-type]  # stands in for it
    assert delivery.sent is not None
    assert delivery.sent.offset == 7
