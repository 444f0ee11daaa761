"""exactly_once: what the engine is told of a transaction that was aborted, and for which output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perkey.kafka.ports import Delivery, OutMessage, TransactionEnd
from perkey.runtime.member.transactor import UNANSWERED, Transactor
from perkey.types import ErrorInfo, Sent

DENIED = ErrorInfo("TOPIC_AUTHORIZATION_FAILED", "not yours")
STORED = Delivery(Sent("out", 0, 1, None), None)
PURGED = Delivery(None, ErrorInfo("_PURGE_QUEUE", "purged"), again=True)


def told(
    end: TransactionEnd, deliveries: list[Delivery | None], *, refused: bool = False
) -> dict[str, Any]:
    """What the engine hears of a transaction with so many records of one output each."""
    heard: dict[str, Any] = {}
    engine = SimpleNamespace(transacted=lambda _now, _sequence, **fields: heard.update(fields))
    membership: Any = SimpleNamespace(
        door=SimpleNamespace(post=lambda call: call(engine, 0.0)),
        wake=lambda: None,
        died=lambda *_: None,
        fail=lambda _reason, **_: None,
    )
    port: Any = SimpleNamespace(is_refusal=lambda one: refused and one is PURGED)
    transactor = Transactor(membership, port, "g", batches=False)
    works: Any = [
        SimpleNamespace(outputs=[OutMessage("out", b"", None)], number=number)
        for number in range(len(deliveries))
    ]
    transactor._answer(1, works, [1] * len(works), end)
    for name in ("refused", "stuck"):
        heard[name] = [(work.number, error) for work, error in heard[name]]
    return heard


@pytest.mark.parametrize("lasts", [True, False])
def test_all_that_fell_with_it_are_not_suspected(lasts: bool) -> None:
    """None of two got through, and a reason was given: it is one of them, nobody knows which."""
    deliveries: list[Delivery | None] = [PURGED, PURGED]
    heard = told(TransactionEnd("aborted", deliveries, "no", DENIED, lasts=lasts), deliveries)
    assert (heard["refused"], heard["stuck"], heard["reason"]) == ([], [], DENIED)


def test_the_one_that_is_not_through_is_suspected_with_the_reason() -> None:
    """Another one was taken: what is said of the transaction is said of this one."""
    deliveries: list[Delivery | None] = [STORED, PURGED]
    heard = told(TransactionEnd("aborted", deliveries, "no", DENIED, lasts=True), deliveries)
    assert (heard["refused"], heard["stuck"]) == ([], [(1, DENIED)])


def test_alone_it_is_refused() -> None:
    """There is no other that it could be, and the reason will not pass."""
    deliveries: list[Delivery | None] = [PURGED]
    heard = told(TransactionEnd("aborted", deliveries, "no", DENIED, lasts=True), deliveries)
    assert (heard["refused"], heard["stuck"], heard["reason"]) == ([(0, DENIED)], [], None)


def test_alone_with_a_reason_that_may_pass_it_is_not() -> None:
    """The engine finds out whether others get through."""
    deliveries: list[Delivery | None] = [PURGED]
    heard = told(TransactionEnd("aborted", deliveries, "no", DENIED), deliveries)
    assert (heard["refused"], heard["reason"]) == ([], DENIED)


def test_without_a_reason_silence_is_reported_as_such() -> None:
    """A time-out: those that nobody acknowledged."""
    deliveries: list[Delivery | None] = [STORED, None]
    heard = told(TransactionEnd("aborted", deliveries), deliveries)
    assert (heard["stuck"], heard["reason"]) == ([(1, UNANSWERED)], None)


def test_a_message_that_was_refused_is_the_reason() -> None:
    """The others are not suspected, and nothing is halved."""
    deliveries: list[Delivery | None] = [None, PURGED]
    heard = told(TransactionEnd("aborted", deliveries, "no", DENIED), deliveries, refused=True)
    assert [number for number, _ in heard["refused"]] == [1]
    assert (heard["stuck"], heard["reason"]) == ([], None)


def test_a_committed_one_blames_no_one() -> None:
    """It was settled after an error, and had gone through."""
    deliveries: list[Delivery | None] = [STORED]
    heard = told(TransactionEnd("committed", deliveries, "no", DENIED, lasts=True), deliveries)
    assert heard["committed"]
    assert (heard["refused"], heard["stuck"], heard["reason"]) == ([], [], None)
