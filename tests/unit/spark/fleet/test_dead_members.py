"""What Kafka may answer to a push-out, and what follows: again, until the group lists it no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest
from confluent_kafka import KafkaError, KafkaException

from perkey.kafka.admin import StaticMember
from perkey.kafka.ports import KafkaUnavailable
from perkey.spark.fleet import dead_members
from perkey.spark.fleet.dead_members import PUSHES_MAX, DeadMembers

NAME = "g-00000000-1"
#: What a join, a leave and InitProducerId may be answered with, and what librdkafka makes of none.
ANSWERS = (
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "REBALANCE_IN_PROGRESS",
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "MEMBER_ID_REQUIRED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "INVALID_SESSION_TIMEOUT",
    "GROUP_MAX_SIZE_REACHED",
    "GROUP_AUTHORIZATION_FAILED",
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "CONCURRENT_TRANSACTIONS",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_TXN_STATE",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNSUPPORTED_VERSION",
    "REQUEST_TIMED_OUT",
    "_TIMED_OUT",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_FATAL",
)


class Cluster:
    """A group with a dead member; a consumer that takes its place; transactions."""

    def __init__(self) -> None:
        self.listed = True
        #: what is raised by the next joins, leaves, descriptions and openings of a transaction
        self.joins: list[Exception] = []
        self.leaves: list[Exception] = []
        self.looks: list[Exception] = []
        self.opens: list[Exception] = []
        #: so many leaves are lost on their way
        self.lost = 0
        self.done: list[str] = []

    def __call__(self, _name: str) -> Cluster:
        """A connection."""
        return self

    def consumer(self) -> Cluster:
        """Itself."""
        return self

    def subscribe(self, _topics: Sequence[str], _listener: Any) -> None:
        """Join."""
        self.done.append("join")
        self._answer(self.joins)

    def leave(self, _timeout_s: float) -> None:
        """Leave."""
        self._answer(self.leaves)
        self.lost -= 1
        self.listed = self.lost >= 0

    def static_members(self, _group: str, _timeout_s: float) -> list[StaticMember]:
        """Who is in the group."""
        self._answer(self.looks)
        return [StaticMember(NAME, "client")] if self.listed else []

    def transactions(self, name: str) -> Cluster:
        """Those of this id."""
        self.done.append(name)
        return self

    def open(self) -> None:
        """End what was left open."""
        self._answer(self.opens)
        self.done.append("ended")

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    @staticmethod
    def _answer(answers: list[Exception]) -> None:
        if answers:
            raise answers.pop()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """One whose members need no pause between two attempts."""
    for name in ("_AGAIN_S", "_AGAIN_MAX_S"):
        monkeypatch.setattr(dead_members, name, 0.0)
    return Cluster()


@pytest.fixture
def dead(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeadMembers]:
    """Those of a run on it."""

    def make(*, transactional: bool = False) -> DeadMembers:
        made = DeadMembers("g", "00000000", ["t"], cluster, transactional=transactional)
        monkeypatch.setattr(made, "admin", lambda: cluster)
        return made

    return make


def errors(answer: str, times: int) -> list[Exception]:
    """So many of this answer."""
    return [KafkaException(KafkaError(getattr(KafkaError, answer))) for _ in range(times)]


@pytest.mark.parametrize("request_", ["joins", "leaves"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_to_a_join_or_a_leave_is_followed_by_another_push(
    cluster, dead, answer, request_
) -> None:
    """None of them is final: while the group lists the dead member, others may wait for it."""
    setattr(cluster, request_, errors(answer, PUSHES_MAX + 1))
    assert dead().push_out([NAME]) == []
    assert cluster.done == ["join"] * (PUSHES_MAX + 2)


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_to_the_end_of_a_transaction_is_followed_by_another_attempt(
    cluster, dead, answer
) -> None:
    """Until it is ended: no one can read past it, and the broker ends it 10 to 20 s later."""
    cluster.opens = errors(answer, 3)
    dead(transactional=True).push_out([NAME])
    assert cluster.done.count("ended") == 1


def test_a_transaction_that_cannot_be_ended_is_left_to_the_broker(
    cluster, dead, monkeypatch
) -> None:
    """It ends by its time-out before ours; the push-out is done all the same."""
    monkeypatch.setattr(dead_members, "_TRANSACTION_S", 0.0)
    cluster.opens = errors("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 99)
    assert dead(transactional=True).push_out([NAME]) == []
    assert len(cluster.opens) == 98


def test_a_leave_that_was_lost_is_seen_in_the_group(cluster, dead) -> None:
    """No error came, and the group lists it still: it is pushed again."""
    cluster.lost = PUSHES_MAX + 1
    assert dead().push_out([NAME]) == []
    assert cluster.done == ["join"] * (PUSHES_MAX + 2)


def test_a_group_that_cannot_be_described_is_taken_to_list_it(cluster, dead) -> None:
    """No answer is no proof that it is gone."""
    cluster.looks = [KafkaUnavailable("no answer")] * 4
    assert dead().push_out([NAME]) == []
    assert cluster.done == ["join"] * 3


@pytest.mark.parametrize(("lost", "left"), [(PUSHES_MAX - 1, []), (PUSHES_MAX, [NAME])])
def test_what_no_one_waits_for_is_pushed_ten_times(cluster, dead, lost, left) -> None:
    """At the end of a run its own end comes first."""
    cluster.lost = lost
    assert dead().push_out([NAME], PUSHES_MAX) == left
    assert cluster.done == ["join"] * PUSHES_MAX


def test_a_run_that_is_over_pushes_no_more(cluster, dead) -> None:
    """The clients it would need are closed with it."""
    cluster.lost = 99
    ended = dead()
    ended.close()
    assert ended.push_out([NAME]) == [NAME]
    assert cluster.done == ["join"]


def test_a_failed_push_is_logged_once(cluster, dead, caplog) -> None:
    """The next ones mostly fail for the same reason."""
    cluster.joins = errors("GROUP_AUTHORIZATION_FAILED", 5)
    dead().push_out([NAME])
    assert caplog.text.count("push-out failed") == 1


@pytest.mark.parametrize(("lost", "said"), [(0, "pushed out what"), (99, "is still in the group")])
def test_the_log_has_what_became_of_an_earlier_runs_members(
    cluster, dead, caplog, monkeypatch, lost, said
) -> None:
    """One that is still in the group after ten attempts was logged as pushed out."""
    monkeypatch.setattr(dead_members, "GRACE_S", 0.0)
    monkeypatch.setattr(dead_members, "run_of", lambda _name, _group: "an earlier run")
    monkeypatch.setattr(dead_members, "driver_is_dead", lambda _member: True)
    cluster.lost = lost
    looking = dead()
    pushed = looking.push_out

    def push_out(names: Sequence[str], pushes_max: int | None = None) -> list[str]:
        left = pushed(names, pushes_max)
        looking.close()  # one look is enough
        return left

    monkeypatch.setattr(looking, "push_out", push_out)
    looking._look()
    lines = [one.getMessage() for one in caplog.records if NAME in one.getMessage()]
    assert len(lines) == 1
    assert said in lines[0]
