"""An admin client that no broker answers any more is replaced, and what asks it goes on."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from perkey.errors import ConfigError
from perkey.kafka import admin as module
from perkey.kafka.admin import _FORMER_MAX, _UNANSWERED_MAX, KafkaAdmin
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import client_settings


class Client:
    """An admin client that answers only where `answer` is set: a topic's facts, or an error."""

    made: list[Client]
    broken: Exception | None = None
    answer: Any = None

    def __init__(self, _config: dict[str, Any]) -> None:
        if Client.broken is not None:
            raise Client.broken
        self.groups: list[Future[Any]] = []
        Client.made.append(self)

    def poll(self, _timeout: float) -> None:
        """Nothing."""

    def describe_topics(self, _topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        if isinstance(Client.answer, Exception):
            future.set_exception(Client.answer)
        elif Client.answer is not None and self is Client.made[-1]:
            future.set_result(Client.answer)
        return {"t": future}

    def describe_consumer_groups(
        self, groups: list[str], request_timeout: float, include_authorized_operations: bool
    ) -> dict[str, Future[Any]]:
        self.groups.append(Future())
        return dict.fromkeys(groups, self.groups[-1])


FACTS = SimpleNamespace(name="t", topic_id="id", partitions=[1, 2])


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> KafkaAdmin:
    """Its clients have no answer so far."""
    Client.made, Client.broken, Client.answer = [], None, None
    monkeypatch.setattr(module, "AdminClient", Client)
    monkeypatch.setattr(module, "_GRACE_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "_REQUEST_MIN_S", 0.001)
    settings = client_settings(
        {"bootstrap.servers": "localhost:1"},
        {},
        group="g",
        buffer_records=1_000,
        buffer_bytes=2**20,
        delivery="at_least_once",
    )
    return KafkaAdmin(settings)


def unanswered(admin: KafkaAdmin, times: int) -> None:
    for _ in range(times):
        with pytest.raises(KafkaUnavailable):
            admin.describe(["t"], 0.001)


@pytest.mark.parametrize(
    ("times", "made"), [(_UNANSWERED_MAX - 1, 1), (_UNANSWERED_MAX, 2), (_UNANSWERED_MAX + 1, 2)]
)
def test_a_client_without_answers_is_replaced(admin: KafkaAdmin, times: int, made: int) -> None:
    """After five requests in a row; the new one has as many."""
    unanswered(admin, times)
    assert len(Client.made) == made


def test_the_new_client_is_asked(admin: KafkaAdmin) -> None:
    """A client that hangs said "the broker is away" for nine minutes while others were answered."""
    unanswered(admin, _UNANSWERED_MAX)
    Client.answer = FACTS  # of the newest client alone
    assert admin.describe(["t"], 1.0)["t"].partitions == 2


@pytest.mark.parametrize(
    "answer", [FACTS, KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))]
)
def test_any_answer_begins_the_count_again(admin: KafkaAdmin, answer: Any) -> None:
    """A refusal is an answer, too."""
    unanswered(admin, _UNANSWERED_MAX - 1)
    Client.answer = answer
    if answer is FACTS:
        admin.describe(["t"], 1.0)
    else:
        with pytest.raises(ConfigError):
            admin.describe(["t"], 1.0)
    Client.answer = None
    unanswered(admin, _UNANSWERED_MAX - 1)
    assert len(Client.made) == 1


def asked_about_a_group(admin: KafkaAdmin) -> weakref.ref[Client]:
    """It is replaced before the group's description has come."""
    with pytest.raises(KafkaUnavailable):
        admin.group_state("g", 0.001)
    unanswered(admin, _UNANSWERED_MAX - 1)
    return weakref.ref(Client.made[-2])


def timed_out(client: weakref.ref[Client]) -> None:
    """The group's description ends without an answer."""
    former = client()
    assert former is not None
    former.groups[0].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))


def test_a_client_that_describes_a_group_is_replaced_and_kept(admin: KafkaAdmin) -> None:
    """Its answer may still come, and librdkafka aborts where the client is gone."""
    former = asked_about_a_group(admin)
    Client.answer = FACTS  # of the newest client alone
    assert admin.describe(["t"], 1.0)["t"].partitions == 2
    Client.answer = None
    del Client.made[:-1]
    gc.collect()
    assert former() is not None
    timed_out(former)
    unanswered(admin, 1)
    gc.collect()
    assert former() is None


@pytest.mark.parametrize("more", [_FORMER_MAX - 1, _FORMER_MAX, _FORMER_MAX + 1])
def test_few_former_clients_are_kept(admin: KafkaAdmin, more: int) -> None:
    """Each has threads: beyond three the client stays until one of them has its answer."""
    kept = [asked_about_a_group(admin) for _ in range(min(more, _FORMER_MAX))]
    if more > _FORMER_MAX:
        with pytest.raises(KafkaUnavailable):
            admin.group_state("g", 0.001)
        unanswered(admin, 2 * _UNANSWERED_MAX)
    assert len(Client.made) == min(more, _FORMER_MAX) + 1
    timed_out(kept[0])
    unanswered(admin, 1)
    assert len(Client.made) == more + 1


def test_a_client_that_cannot_be_made_leaves_the_former_one(admin: KafkaAdmin) -> None:
    """No more threads, no token: the next request tries again."""
    Client.broken = KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))
    unanswered(admin, _UNANSWERED_MAX + 1)
    assert len(Client.made) == 1
    Client.broken = None
    unanswered(admin, 1)
    assert len(Client.made) == 2
