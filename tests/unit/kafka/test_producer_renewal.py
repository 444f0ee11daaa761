"""A producer that meets a fatal error is made anew, and what it held is answered for."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from perkey.kafka import producer
from perkey.kafka.ports import Delivery, OutMessage


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
    """What the old one held goes on with the new one, which delivers."""
    monkeypatch.setattr(producer, "Producer", Breaks)
    Breaks.made = []
    told: list[Delivery] = []
    changed = threading.Event()

    def tell(delivery: Delivery) -> None:
        told.append(delivery)
        changed.set()

    under_test = producer.KafkaProducer({})
    for value in (b"1", b"2"):
        changed.clear()
        under_test.send(OutMessage("t", value, None), tell)
        assert changed.wait(60)
    assert [one.sent is not None for one in told] == [True, True]
    assert len(Breaks.made) == 2
    under_test.close(1.0)


class AlwaysBreaks(Breaks):
    """No instance lasts, as where a right is missing."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.fatal = True

    def poll(self, timeout: float) -> int:
        raise SystemError("returned NULL without setting an exception")


def test_a_producer_that_breaks_again_and_again_is_reported_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a minute, however often it is made anew."""
    monkeypatch.setattr(producer, "Producer", AlwaysBreaks)
    AlwaysBreaks.made = Breaks.made = []
    under_test = producer.KafkaProducer({}, renew_s=0.01)
    deadline = time.monotonic() + 60
    while len(Breaks.made) < 5:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    under_test.close(0.1)
    assert caplog.text.count("producer recreated") == 1
