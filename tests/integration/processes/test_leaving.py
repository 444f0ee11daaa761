"""Leaving in the middle of other members' comings and goings: bounded, clean, nothing repeated."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.chaos import ONE_ON_A_PUSH, SESSION_S, Chaos
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker
from perkey.kafka.consumer import KafkaConsumer

LEAVE_S = 10.0  # what a member grants the group to let it go; more than any protocol needs
MARGIN_S = 20.0  # a busy machine's


@pytest.mark.parametrize("protocol", ONE_ON_A_PUSH)
def test_members_that_leave_together_end_in_time(
    chaos: Callable[..., Chaos], protocol: str
) -> None:
    """L4, S4: SIGTERM for a joining member, a working one and a third, one right after another."""
    # Who leaves in the middle of its join is waited for by its group, for a session.
    options = {"session_s": SESSION_S, "concurrency": 16, "work_s": 0.01}
    with chaos(seed=901, protocol=protocol, **options) as run:
        run.feed(400)
        members = [run.start(), run.start()]
        run.until(lambda: min(map(run.starts_of, members)) > 20, 30, "both work")
        members.append(run.start())
        run.until(lambda: " starting " in members[2].said(10**6), 20, "the third joins")
        began = time.monotonic()
        for child in members:
            child.process.send_signal(signal.SIGTERM)
        for child in members:
            run.wait_exit(child, LEAVE_S + MARGIN_S)
        took_s = time.monotonic() - began
        run.stop_feeding()
        last = run.start()
        run.all_done(30)
        run.terminate(last)
        assert took_s < LEAVE_S + MARGIN_S
        verdict = run.verdict()
        assert (verdict.repeated, verdict.restarts) == (0, 0)


def test_a_kip_848_member_that_leaves_during_its_join_is_gone(
    mortal_broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Librdkafka says no goodbye before its first heartbeat is answered: the group kept a member.

    Its partitions waited for its session (45 s), also after a drain that found nothing to do.
    """
    monkeypatch.setattr("perkey.kafka.consumer.JOIN_END_S", 60.0)
    broker, group = mortal_broker, "leaves-while-joining"
    broker.create_topic(group, partitions=2)
    bootstrap = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
    member = KafkaConsumer({**bootstrap, "group.id": group, "group.protocol": "consumer"})
    wait_for(lambda: member.committed([(group, 0)], 30))  # it knows its coordinator
    broker.kill(0, signal.SIGSTOP)
    back = threading.Timer(1.0, broker.kill, (0, signal.SIGCONT))
    back.start()
    try:
        member.subscribe([group], MagicMock())
        member.poll(0.5)  # the heartbeat is sent
        member.leave(90.0)
    finally:
        back.join()
    admin = AdminClient(bootstrap)
    assert admin.describe_consumer_groups([group])[group].result(60).members == []
