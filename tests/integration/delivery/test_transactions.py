"""exactly_once through what happens to brokers and processes: Kafka's copy test is the judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.integration.delivery.test_kills import STATIC
from tests.support.chaos import SESSION_S, Chaos, Child
from tests.support.exactness import Copy, compare, read_committed
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker
from perkey.kafka import clib, transactions
from perkey.kafka.ports import Delivery, OutMessage, ToCommit
from perkey.kafka.transactions import KafkaTransactions

#: how long a dead one's transaction stays open by itself: more than a busy machine takes
OPEN_S = 150.0


def copying(make: Callable[..., Chaos], **options: Any) -> Chaos:
    """A scenario that copies its topic, exactly once."""
    run = make(mode="exactly_once", work_s=0.01, concurrency=16, **options)
    run.plan.output = f"{run.plan.topic}-out"
    run.broker.create_topic(run.plan.output, 3)
    return run


def copied(run: Chaos) -> Copy:
    copy = compare(run.produced, read_committed(run.broker.bootstrap, run.plan.output))
    print(f"seed={run.seed} kills={run.kills} {copy.summary()}")
    assert copy.exact, copy
    return copy


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, 4])
@pytest.mark.timeout(400)
def test_a_broker_that_restarts_tears_no_transaction(
    mortal_broker: LocalBroker, tmp_path: Path, kills: int
) -> None:
    """The broker is killed in the middle of transactions and started again: still a copy."""

    def make(**options: Any) -> Chaos:
        return Chaos(mortal_broker, tmp_path, **options)

    with copying(make, seed=651, session_s=120.0) as run:
        members = [run.start(), run.start()]
        run.feed(200)
        run.until(lambda: min(map(run.starts_of, members)) > 100, 30, "both work")
        for number in range(kills):
            mortal_broker.kill()
            threading.Event().wait(0.5 * number)
            mortal_broker.restart()
            back = run.completed
            run.until(lambda back=back: run.completed > back + 200, 90, "work goes on")
        run.stop_feeding()
        run.all_done(40)
        run.until(run.committed, 30, "everything committed")
        for child in members:
            run.terminate(child)
        copied(run)


@pytest.mark.parametrize(
    "stopped_s", [pytest.param(one, marks=pytest.mark.long) for one in (2.0, 14.0)]
)
@pytest.mark.timeout(240)
def test_a_process_that_is_stuck_is_not_taken_for_fenced(
    chaos: Callable[..., Chaos], stopped_s: float
) -> None:
    """SIGSTOP past its session and its transaction's time-out: it goes on, and the copy is exact.

    The broker answers a transaction that it has ended itself as it answers fencing.
    """
    with copying(chaos, seed=652, session_s=SESSION_S) as run:
        first, second = run.start(), run.start()
        run.feed(200)
        run.until(lambda: min(map(run.starts_of, (first, second))) > 50, 30, "both work")
        since = run.suspend(first)
        threading.Event().wait(stopped_s)
        run.wake(first, since)
        back = run.starts_of(first)
        run.until(lambda: run.starts_of(first) > back + 50, 30, "it works again")
        run.stop_feeding()
        run.all_done(40)
        run.until(run.committed, 30, "everything committed")
        for child in (first, second):
            run.terminate(child)
        copied(run)


@pytest.mark.parametrize(
    "static", [pytest.param(one, marks=pytest.mark.long) for one in (True, False)]
)
@pytest.mark.timeout(120)
def test_a_killed_producers_successor_is_not_held_up(
    chaos: Callable[..., Chaos], static: bool
) -> None:
    """Kill -9 in mid-transaction: the successor takes its id, which ends it, and works at once.

    A foreign open transaction would block the group's offsets until its time-out.
    """
    kafka = STATIC if static else {}
    with copying(chaos, seed=653, session_s=SESSION_S, kafka=kafka) as run:
        run.produce(4000, keys=200)
        took = []
        for _ in range(2):
            child = run.start()
            run.let_work(child, run.dice.uniform(0.4, 0.8))
            run.kill(child)
            began = time.monotonic()
            successor = run.start()
            working = partial(run.starts_of, successor)
            run.until(lambda w=working: w() > 0, 60, "the successor works")
            took.append(time.monotonic() - began)
            run.kill(successor)
        last = run.start()
        run.all_done(60)
        run.until(run.committed, 20, "everything committed")
        run.terminate(last)
        print(f"successor at work after {[round(s, 2) for s in took]} s")
        copied(run)


def test_a_transaction_open_at_the_kill_ends_with_its_successor(
    chaos_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sure to be open: produced and never ended. `open` of the same id aborts it, at once."""
    monkeypatch.setattr(transactions, "TRANSACTION_TIMEOUT_S", OPEN_S)
    topic = "open-transaction"
    chaos_broker.create_topic(topic)
    config = {"bootstrap.servers": chaos_broker.bootstrap, "log_level": 0}
    dead = KafkaTransactions(config, "the-same-id")
    dead.open()
    assert dead._producer is not None
    dead._producer.begin_transaction()
    dead._producer.produce(topic, b"never committed")
    assert dead._producer.flush(60) == 0
    began = time.monotonic()
    successor = KafkaTransactions(config, "the-same-id")
    successor.open()
    took_s = time.monotonic() - began
    assert read_committed(chaos_broker.bootstrap, topic) == []
    print(f"the successor was held up {took_s:.2f} s")
    assert time.monotonic() - began < OPEN_S / 2
    successor.close()


def test_a_fenced_member_writes_nothing_and_ends(chaos: Callable[..., Chaos]) -> None:
    """S8: another process takes its static id; the fenced one stops with exit 1."""
    with copying(chaos, seed=654, kafka=STATIC) as run:
        first = run.start()
        run.feed(200)
        run.until(lambda: run.starts_of(first) > 50, 30, "the first works")
        second: Child = run.start()
        run.until(lambda: run.starts_of(second) > 50, 30, "the second works")
        run.wait_exit(first, 30, code=1)
        assert "Traceback" not in first.said()
        run.stop_feeding()
        run.all_done(40)
        run.until(run.committed, 20, "everything committed")
        run.terminate(second)
        copied(run)


def test_membership_of_before_a_rebalance_is_refused(chaos_broker: LocalBroker) -> None:
    """The offsets of a transaction whose group has moved on are not taken, nor its outputs."""
    topic, group = "stale-membership", "stale-membership"
    # Of two partitions the second member gets one for certain, and only by a new generation.
    chaos_broker.create_topic(topic, partitions=2)
    config = {"bootstrap.servers": chaos_broker.bootstrap, "log_level": 0}
    member = {**config, "group.id": group}
    consumer, other = Consumer(member), Consumer(member)
    consumer.subscribe([topic])
    poll_until_assigned(consumer)
    membership = clib.GroupMetadata(consumer)
    other.subscribe([topic])
    poll_until_assigned(other, consumer)
    port = KafkaTransactions(config, "stale-membership")
    port.open()
    end = port.transact(
        [OutMessage(topic, b"x", None)],
        [ToCommit(topic, 0, 5, "")],
        membership,
        lambda _: [(None, "")],
    )
    assert end.outcome == "aborted"
    assert isinstance(end.deliveries[0], Delivery)
    assert read_committed(chaos_broker.bootstrap, topic) == []
    membership.close()
    port.close()
    for one in (consumer, other):  # see `neighbour` in test_fleet_leaving.py
        one.unsubscribe()
        wait_for(lambda one=one: not (one.poll(0.02) or one.memberid()), what="its leave")
        one.close()


def poll_until_assigned(consumer: Consumer, *others: Consumer) -> None:
    """Poll this member, and the others along, until it has partitions."""
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        for member in (consumer, *others):
            member.poll(0.1)


@pytest.mark.long
def test_a_static_kip_848_member_comes_back_by_itself(chaos: Callable[..., Chaos]) -> None:
    """Refused until the old session has run out, it makes its consumer anew, and then it works."""
    refused = "recreating the consumer code=UNRELEASED_INSTANCE_ID"
    options = {"session_s": SESSION_S, "mode": "each", "work_s": 0.01}
    with chaos(seed=655, protocol="consumer", **options) as run:
        run.plan.kafka |= STATIC
        run.produce(1500)
        child = run.start()
        run.let_work(child, 0.5)
        # It asks before the kill: a busy machine may start it only when the session has run out.
        again = run.start()
        run.until(lambda: refused in again.said(10**6), 30, "the place is taken")
        run.supply(1500)
        run.until(lambda: run.running_in(child) > 0, 30, "it works")
        run.kill(child)
        run.all_done(60)
        run.until(run.committed, 10, "everything committed")
        run.terminate(again)
        verdict = run.verdict()
        assert verdict.restarts + verdict.repeated
