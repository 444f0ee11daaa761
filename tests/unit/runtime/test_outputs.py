"""Outputs that nobody refused are produced again, without a charge."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perkey.core import states
from perkey.core.events import HandlerSpec
from perkey.core.work import Work
from perkey.kafka.ports import Delivery, OutMessage
from perkey.runtime.member import outputs as module
from perkey.runtime.member.outputs import Outputs
from perkey.runtime.shared import SharedOutputs
from perkey.types import ErrorInfo, Record, Sent

TIMED_OUT = Delivery(None, ErrorInfo("_MSG_TIMED_OUT", "no answer"), True)
REFUSED = Delivery(None, ErrorInfo("MSG_SIZE_TOO_LARGE", "too large"))
STORED = Delivery(Sent("out", 0, 7, None), None)


class Producer:
    """Keeps what it is given until the test answers."""

    def __init__(self) -> None:
        self.given: list[tuple[OutMessage, object]] = []

    def send(self, message, on_delivery) -> None:
        """Queue one message."""
        self.given.append((message, on_delivery))

    def answer(self, *deliveries: Delivery) -> list[bytes | None]:
        """The oldest messages are answered so; their values."""
        taken, self.given = self.given[: len(deliveries)], self.given[len(deliveries) :]
        for (_, on_delivery), delivery in zip(taken, deliveries, strict=True):
            on_delivery(delivery)
        return [message.value for message, _ in taken]

    def close(self, timeout_s: float) -> None:
        """What is not answered fails."""
        self.answer(*[TIMED_OUT] * len(self.given))


@pytest.fixture
def producer() -> Producer:
    """The producer behind the outputs."""
    return Producer()


@pytest.fixture
def outputs(producer, monkeypatch) -> Outputs:
    """Outputs that are produced again at once."""
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    return Outputs(lambda: producer, "g", lambda _full: None)


def sending() -> Work:
    """A record that waits for its outputs."""
    handler = SimpleNamespace(spec=HandlerSpec("h"))
    work = Work.one(Record("t", 0, 0, 0, b"k", b"v"), 1, SimpleNamespace(handler=handler))
    work.state = states.SENDING
    return work


def messages(*values: bytes) -> list[OutMessage]:
    """Outputs with these values."""
    return [OutMessage("out", value, b"k") for value in values]


def test_time_out_is_produced_again(outputs, producer):
    """The engine hears nothing of it until somebody said yes or no."""
    work = sending()
    outputs.send(work, messages(b"a"))
    for _ in range(3):
        producer.answer(TIMED_OUT)
        assert outputs.take_answered() == []
        outputs.retry_waiting()
    producer.answer(STORED)
    assert outputs.take_answered() == [(work, (STORED.sent,), None)]


def test_dead_letter_is_produced_again(outputs, producer):
    """A broker that is away parks no record."""
    work = sending()
    outputs.send_dead_letter(work, "dlq", ErrorInfo("ValueError", "bad"))
    producer.answer(TIMED_OUT)
    outputs.retry_waiting()
    producer.answer(STORED)
    assert outputs.take_answered() == [(work, (STORED.sent,), None)]


def test_refusal_fails_the_attempt(outputs, producer):
    """What the broker will never take is not tried for ever."""
    work = sending()
    outputs.send(work, messages(b"a", b"b"))
    producer.answer(TIMED_OUT, REFUSED)
    assert [error.type for _, _, error in outputs.take_answered()] == ["MSG_SIZE_TOO_LARGE"]


def test_outputs_of_one_record_keep_their_order(outputs, producer):
    """From the first that failed on all go again, also those that were stored."""
    work = sending()
    outputs.send(work, messages(b"a", b"b", b"c"))
    producer.answer(STORED, TIMED_OUT, STORED)
    outputs.retry_waiting()
    assert producer.answer(STORED, STORED) == [b"b", b"c"]
    assert [len(sent) for _, sent, _ in outputs.take_answered()] == [3]


def test_shared_outputs_are_produced_again_once(outputs, producer):
    """All records of a batch wait for the one message."""
    first, second = sending(), sending()
    shared = SharedOutputs(messages(b"a"), 2)
    outputs.send(first, shared)
    outputs.send(second, shared)
    producer.answer(TIMED_OUT)
    outputs.retry_waiting()
    assert producer.answer(STORED) == [b"a"]
    assert [work for work, _, _ in outputs.take_answered()] == [first, second]


def test_nothing_is_produced_again_after_its_epoch(outputs, producer):
    """The next owner handles the record."""
    work = sending()
    outputs.send(work, messages(b"a"))
    producer.answer(TIMED_OUT)
    work.state = states.SUPERSEDED
    outputs.retry_waiting()
    assert (producer.given, outputs.backed_up) == ([], False)


def test_end_waits_for_nothing(outputs, producer):
    """When the member ends, what is still on its way has failed."""
    work = sending()
    outputs.send(work, messages(b"a"))
    outputs.close(1.0)
    assert [error for _, _, error in outputs.take_answered()] == [TIMED_OUT.error]
