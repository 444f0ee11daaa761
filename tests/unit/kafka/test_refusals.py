"""How long a refused login is borne."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from perkey.kafka import transactions
from perkey.kafka.failures import GRACE_S, QUOTA_LOGGED_EVERY_S, Refusals

REFUSED = KafkaError(KafkaError._AUTHENTICATION, "wrong password hunter22")
AWAY = KafkaError(KafkaError._TRANSPORT, "connection refused")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def heard(*times_s: float, served_at: float = -1.0, error: KafkaError = REFUSED) -> Refusals:
    """What a client knows after errors at these times."""
    clock = Clock()
    refusals = Refusals({"sasl.password": "hunter22"}, clock)
    for at in times_s:
        if 0 <= served_at <= at:
            refusals.served()
            served_at = -1.0
        clock.now = 100.0 + at
        refusals.note(error)
    return refusals


@pytest.mark.parametrize(
    ("last_s", "ends"), [(GRACE_S - 1, False), (GRACE_S, True), (GRACE_S + 1, True)]
)
def test_only_what_lasts_is_the_end(last_s: float, ends: bool) -> None:
    """Brokers may learn a new password one after another."""
    assert (heard(0.0, 10.0, last_s).lasting() is not None) == ends


def test_an_answer_in_between_begins_the_grace_again() -> None:
    """Something was served: not every login is refused."""
    assert heard(0.0, 20.0, 40.0, served_at=25.0).lasting() is None


def test_refusals_far_apart_do_not_add_up() -> None:
    """One a day is no refused login."""
    assert heard(0.0, 2 * GRACE_S + 1).lasting() is None


def test_brokers_that_are_away_are_waited_for() -> None:
    """They come back."""
    assert heard(0.0, 20.0, 40.0, 60.0, error=AWAY).lasting() is None


def test_the_reason_hides_the_password() -> None:
    """Whatever the broker says."""
    name, reason = heard(0.0, 20.0, 40.0).lasting()
    assert name == "_AUTHENTICATION"
    assert "hunter22" not in reason
    assert "sasl.*" in reason


def test_the_users_callback_is_called_too() -> None:
    """With every error."""
    told = []
    Refusals({"error_cb": told.append}).note(AWAY)
    assert told == [AWAY]


def test_a_quota_is_reported_once_a_minute_and_to_the_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the broker and the client's name; the end of the waiting is no news."""
    clock, heard_by_user = Clock(), []
    told = Refusals({"client.id": "slow", "throttle_cb": heard_by_user.append}, clock)
    for at, wait_s in ((0.0, 1.5), (QUOTA_LOGGED_EVERY_S - 1, 2.0), (QUOTA_LOGGED_EVERY_S, 2.5)):
        clock.now = 100.0 + at
        told.throttled(ThrottleEvent("b:9092/1", 1, wait_s))
        told.throttled(ThrottleEvent("b:9092/1", 1, 0.0))
    line = "the broker throttles this client by a quota: broker=b:9092/1 client.id=slow wait_s="
    assert caplog.messages == [f"{line}1.5", f"{line}2.5"]
    assert len(heard_by_user) == 6


class Refused:
    """A producer whose login is refused: librdkafka tells the callback, the call runs out."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._tell = config["error_cb"]

    def init_transactions(self, _timeout: float) -> None:
        self._tell(REFUSED)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))


def test_a_transactional_producer_hears_of_a_refused_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its error callback is of every producer that it makes anew; what lasts ends the member."""
    monkeypatch.setattr(transactions, "Producer", Refused)
    monkeypatch.setattr(transactions, "INIT_S", 0.0)
    clock = Clock()
    port = transactions.KafkaTransactions({"sasl.password": "hunter22"}, "id")
    port._refusals = Refusals({"sasl.password": "hunter22"}, clock)
    ends = []
    for at in (0.0, GRACE_S - 1, GRACE_S):
        clock.now = 100.0 + at
        ends.append(port.transact([], [], None, lambda _offsets: None))
    assert [end.outcome == "fenced" for end in ends] == [False, False, True]
    assert "hunter22" not in ends[-1].reason
    assert "AUTHENTICATION" in ends[-1].reason
