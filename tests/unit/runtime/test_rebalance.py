"""Partitions that come and go, with a consumer that answers as it is told."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.kafka.consumer import KafkaConsumer
from perkey.kafka.ports import KafkaUnavailable, TransactionEnd
from perkey.runtime.member import member
from perkey.runtime.member.rebalance import ANSWER_AGAIN_S, Rebalance
from perkey.runtime.suspension import SUSPENDED_S
from perkey.testing import MemoryKafka
from perkey.testing.memory_consumer import MemoryConsumer
from perkey.testing.memory_producer import MemoryTransactions

CLIENT = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


class GroupMembership:
    """As much of a member's membership as an assignment needs; its background work is kept, not done."""

    def __init__(self, *, may_block: bool) -> None:
        self.later: list[Any] = []
        self.looks: list[int] = []
        self.limits: list[float] = []
        self.now = lambda: 0.0
        self.background = self.later.append
        self.consumer = SimpleNamespace(assign_may_block=may_block, find=self.find)

    def find(self, partitions: Any, timeout_s: float) -> dict[Any, Any]:
        self.looks.append(threading.get_ident())
        self.limits.append(timeout_s)
        raise KafkaUnavailable("nobody answers")


def rebalance(membership: GroupMembership, *under_way: bool) -> Rebalance:
    """A listener; `under_way`: whether a commit of ours is on the way, look after look, then no."""
    unused: Any = None
    looks = list(under_way)
    committer: Any = SimpleNamespace(under_way=lambda _: bool(looks) and looks.pop(0))
    lease: Any = SimpleNamespace(waits=lambda _what: nullcontext())
    return Rebalance(membership, unused, committer, lease, unused, unused)


def assign(membership: GroupMembership) -> dict[Any, int]:
    """What the rebalance listener does with one partition."""
    return rebalance(membership).on_assigned([("t", 0)])


def test_under_kip_848_an_assignment_is_taken_at_once_and_read_later() -> None:
    """A heartbeat during the callback can give away what is being assigned (found by a storm)."""
    membership = GroupMembership(may_block=False)
    assert assign(membership) == {}
    assert membership.looks == []
    assert len(membership.later) == 1


def test_other_protocols_read_before_the_assignment_is_taken() -> None:
    """And again in the background, paused, when that fails."""
    membership = GroupMembership(may_block=True)
    assert assign(membership) == {}
    assert membership.looks == [threading.get_ident()]
    assert len(membership.later) == 1


def test_an_assignment_does_not_block_the_polling_thread_for_a_dead_broker(caplog) -> None:
    """Blocked for longer than a suspended process, it blamed the machine (three nodes, one killed)."""
    caplog.set_level("INFO")
    membership = GroupMembership(may_block=True)
    listener = rebalance(membership)
    listener.on_assigned([("t", 0)])
    assert max(membership.limits) <= SUSPENDED_S / 2
    assert listener.waiting[("t", 0)].reason == "nobody answers"
    assert "assigned, waits for offsets partitions=t[0] reason='nobody answers'" in caplog.text


@pytest.mark.parametrize("may_block", [False, True])
def test_an_epoch_begins_when_no_commit_of_the_former_is_still_to_come(*, may_block: bool) -> None:
    """Librdkafka may send it again after what the new one commits (found on a real broker)."""
    membership = GroupMembership(may_block=may_block)
    listener = rebalance(membership, *[True] * (2 + may_block))
    assert listener.on_assigned([("t", 0)]) == {}
    assert (membership.looks, membership.later) == ([], [])
    listener.tick(ANSWER_AGAIN_S)
    assert (membership.looks, membership.later) == ([], [])
    listener.tick(2 * ANSWER_AGAIN_S)
    assert len(membership.later) == 1


@pytest.mark.parametrize(
    ("protocol", "may_block"),
    [
        ({}, True),
        ({"partition.assignment.strategy": "cooperative-sticky"}, True),
        ({"group.protocol": "classic"}, True),
        ({"group.protocol": "consumer"}, False),
    ],
)
def test_only_kip_848_is_in_a_hurry(protocol: dict[str, str], may_block: bool) -> None:
    """The consumer says so, from its configuration."""
    consumer = KafkaConsumer({**CLIENT, **protocol})
    assert consumer.assign_may_block is may_block
    consumer.leave(1.0)


def test_the_last_transaction_has_the_start_that_no_record_follows(monkeypatch) -> None:
    """It was refused before: the next member would start from an older commit, or none."""
    refused, real = threading.Event(), MemoryTransactions.transact

    def transact(self: Any, *given: Any) -> TransactionEnd:
        if not refused.is_set():
            refused.set()
            return TransactionEnd("aborted", [], "the generation is over")
        return real(self, *given)

    monkeypatch.setattr(MemoryTransactions, "transact", transact)
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 2)
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        app.consume("orders", delivery="exactly_once", commit=perkey.Commit(interval_s=60))(print)
        running = threading.Thread(target=app.run)
        running.start()
        assert refused.wait(60)
        app.stop()
        running.join(60)
        held = [kafka.committed("g", "orders", number) for number in (0, 1)]
    assert [one and one.frontier for one in held] == [0, 0]


@pytest.mark.parametrize("limit", ["second stop", "stop now", "drain"])
def test_an_unanswered_last_transaction_ends_with_the_callers_patience(monkeypatch, limit) -> None:
    """Without brokers the run waited eleven seconds for it, also after a second signal."""
    monkeypatch.setattr(member, "LAST_TRANSACTION_S", 3600.0)
    monkeypatch.setattr(member, "LAST_TRANSACTION_NOW_S", 0.1)
    monkeypatch.setattr(member, "LAST_TRANSACTION_LATE_S", 0.1 if limit == "drain" else 3600.0)
    asked, awaited, answers = threading.Event(), threading.Event(), threading.Event()
    real = Rebalance._end_transactions

    def transact(self: Any, *given: Any) -> TransactionEnd:
        asked.set()
        answers.wait(60)
        return TransactionEnd("aborted", [], "no broker answers")

    def end_transactions(self: Rebalance, partitions: Any) -> bool:
        awaited.set()
        return real(self, partitions)

    monkeypatch.setattr(MemoryTransactions, "transact", transact)
    monkeypatch.setattr(Rebalance, "_end_transactions", end_transactions)
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        app = perkey.App(
            group="g",
            kafka={"bootstrap.servers": kafka.bootstrap},
            drain_timeout_s=0.1 if limit == "drain" else 3600.0,
        )
        app.consume("orders", delivery="exactly_once")(print)
        running = threading.Thread(target=app.run)
        running.start()
        try:
            assert asked.wait(60)
            if limit != "stop now":
                app.stop()
            if limit == "second stop":
                assert awaited.wait(60)
            if limit != "drain":
                app.stop("now")
            running.join(60)
            assert not running.is_alive()
            assert awaited.is_set()
            assert kafka.committed("g", "orders", 0) is None
        finally:
            answers.set()
            running.join(60)


def test_a_second_stop_shortens_the_wait_for_the_group(monkeypatch) -> None:
    """Without brokers a member waited ten seconds for its leave, as before the second signal."""
    monkeypatch.setattr(member, "LEAVE_LEAST_S", 0.1)
    leaves, real = threading.Event(), MemoryConsumer.leave

    def leave(self: MemoryConsumer, timeout_s: float, left_s: Any) -> None:
        leaves.set()
        wait_for(lambda: left_s() <= 0)
        real(self, timeout_s)

    monkeypatch.setattr(MemoryConsumer, "leave", leave)
    with MemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
        app.consume("orders")(print)
        run = app.start()
        run.stop()
        assert leaves.wait(60)
        run.stop("now")
        assert run.wait(60).exit_code == 0


def test_a_leave_ends_when_its_caller_is_in_a_hurry(monkeypatch) -> None:
    """Nobody answers its join: a caller that has become impatient is not held up."""
    monkeypatch.setattr("perkey.kafka.consumer.JOIN_END_S", 3600.0)
    consumer = KafkaConsumer(CLIENT)
    consumer.subscribe(["t"], SimpleNamespace())
    left = iter([1.0, 1.0, 0.0])
    consumer.leave(3600.0, lambda: next(left, 0.0))
    assert next(left, None) is None
