"""Members that leave while their group rebalances: nobody stays behind for a session."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from tests.integration.spark.fleet_kit import (
    START_S,
    at_work,
    fill,
    kill,
    running,
    write_app,
)
from tests.support.waiting import wait_for

from perkey.kafka.consumer import JOIN_END_S, KafkaConsumer
from perkey.kafka.settings import client_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: Long: who is gone sooner has left.
SESSION_MS = 120_000
#: Sooner, also on a machine that stood still for a while.
SOON_S = 60.0

#: fleets use the second one, unless their user has another
STRATEGIES = [pytest.param("range", marks=pytest.mark.long), "cooperative-sticky"]


class Listener:
    """Begins every partition at its start."""

    def on_assigned(self, partitions: Any) -> dict[Any, int]:
        """From the start."""
        return dict.fromkeys(partitions, 0)

    def on_revoked(self, partitions: Any) -> None:
        """Nothing to do."""

    def on_lost(self, partitions: Any) -> None:
        """Nothing to do."""


class Group:
    """A group as kafka-consumer-groups --describe shows it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic, self.name = bootstrap, topic, f"g-{topic}"
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def described(self) -> tuple[str, set[str]]:
        """(state, static ids)."""
        asked = self._admin.describe_consumer_groups([self.name], request_timeout=SOON_S)
        answer = asked[self.name].result(SOON_S + 10)
        return answer.state.name, {str(one.group_instance_id) for one in answer.members}

    def static(self, name: str | None, strategy: str) -> KafkaConsumer:
        """A member that has asked to join, static if it has a name."""
        kafka = {
            "bootstrap.servers": self.bootstrap,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": strategy,
        }
        settings = client_settings(
            kafka, {}, group=self.name, buffer_records=1_000, buffer_bytes=2**24,
            delivery="at_least_once", fleet_instance_id=name,
        )  # fmt: skip
        consumer = KafkaConsumer(settings.consumer)
        consumer.subscribe([self.topic], Listener())
        return consumer

    @contextmanager
    def neighbour(self, strategy: str) -> Iterator[threading.Event]:
        """Another member, in the group already; it polls while the event is set.

        Not a plain Consumer: its `close` never returns, once in 300 times, if a rebalance comes to
        it while it leaves (librdkafka 2.16: it asks a thread that has gone already).
        """
        consumer = self.static(None, strategy)
        wait_for(lambda: consumer.poll(0.1).ends or consumer.log_ends(), 60, "a neighbour")
        over, polls = threading.Event(), threading.Event()

        def live() -> None:
            while not over.is_set():
                if polls.wait(0.05):
                    consumer.poll(0.05)

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        try:
            yield polls
        finally:
            over.set()
            thread.join(10)
            consumer.leave(SOON_S)


@pytest.fixture
def group(kafka_broker, topic) -> Group:
    """A group on a topic of its own."""
    return Group(kafka_broker.bootstrap, topic(4, "leaving"))


def after_a_moment(seconds: float, call: Callable[[], None]) -> None:
    """Call it then: a rebalance that takes its time."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


@pytest.fixture
def patient(monkeypatch) -> None:
    """A join may end late where the machine stands still; who waits for it waits longer then."""
    monkeypatch.setattr("perkey.kafka.consumer.JOIN_END_S", SOON_S)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_leaves_in_its_first_join_is_gone(group, strategy, patient) -> None:
    """Asked to stop before the broker has answered its join, a static member waits and leaves."""
    with group.neighbour(strategy) as polls:
        member = group.static("first", strategy)
        wait_for(lambda: member.poll(0.05) and "first" in group.described()[1], 60, "the join")
        after_a_moment(0.5, polls.set)
        began = time.monotonic()
        member.leave(300.0)
        assert time.monotonic() - began < SOON_S
        assert "first" not in group.described()[1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_leaves_while_it_joins_again_is_gone(group, strategy, patient) -> None:
    """The same when it had partitions before and the group rebalances for somebody else."""
    with group.neighbour(strategy) as polls:
        polls.set()
        member = group.static("again", strategy)
        wait_for(lambda: member.poll(0.05) and member.log_ends(), 60, "its partitions")
        polls.clear()
        third = group.static("third", strategy)
        wait_for(lambda: third.poll(0.05) and "third" in group.described()[1], 60, "a third")
        for _ in range(20):  # it hears of the rebalance and joins again, which the neighbour holds
            member.poll(0.05)
        after_a_moment(0.5, polls.set)
        member.leave(SOON_S)
        assert "again" not in group.described()[1]
        third.leave(SOON_S)
        assert "third" not in group.described()[1]


def test_an_idle_static_member_is_gone(group, patient) -> None:
    """One more member than partitions: who holds nothing says goodbye, too."""
    members = [group.static(f"m{n}", "range") for n in range(5)]

    def joined() -> bool:
        for one in members:
            one.poll(0.02)
        return group.described() == ("STABLE", {f"m{n}" for n in range(5)})

    wait_for(joined, 90, "all five")
    threads = [threading.Thread(target=one.leave, args=(SOON_S,), daemon=True) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S + 20)
    assert group.described() == ("EMPTY", set())


def test_a_join_that_does_not_end_is_not_waited_for(group) -> None:
    """The wait is bounded: a group that stands still does not hold up a stop."""
    with group.neighbour("range"):
        member = group.static("late", "range")
        wait_for(lambda: member.poll(0.05) and "late" in group.described()[1], 60, "the join")
        began = time.monotonic()
        member.leave(300.0)  # so long the join would take, too
        assert JOIN_END_S <= time.monotonic() - began < JOIN_END_S + 90


@pytest.fixture
def folder(tmp_path, group) -> Any:
    """An app of the group, with records that take it a while."""
    fill(group.bootstrap, group.topic, 20_000, 4)
    write_app(tmp_path, group.bootstrap, group.topic, concurrency=5)
    return tmp_path


@pytest.mark.long
def test_a_run_pushes_out_what_a_killed_one_left(group, folder) -> None:
    """Driver and members of a run are killed at once: the next run has all partitions soon.

    The session of the dead is 120 s, and nobody waits for it.
    """
    with running(folder, "--members", "2") as first:
        members = at_work(first)
        first.signal(signal.SIGKILL)
        for pid in members:
            kill(pid)
        killed = time.time()
    ghosts = group.described()[1]
    assert len(ghosts) == 2
    with running(folder, "--members", "2", "--master", "local[2]") as second:

        def all_at_work() -> Any:
            begun = [one for one in second.events("begin") if one["at"] > killed]
            return len({one["p"] for one in begun}) == 4 and begun

        wait_for(all_at_work, START_S, "all partitions at work")
        opened = min(one["at"] for one in second.events("open") if one["at"] > killed)
        assert time.time() - opened < SOON_S
        assert not ghosts & group.described()[1]
        wait_for(lambda: "pushed out what an earlier run left" in second.text, SOON_S, "a line")
        second.ctrl_c()
        assert second.wait() == 0, second.text
    assert group.described() == ("EMPTY", set())


@pytest.mark.long
def test_a_stop_in_the_middle_of_a_rebalance_leaves_no_one(group, folder) -> None:
    """Ctrl-C as soon as a member has asked to join: after the end the group is empty."""
    with group.neighbour("cooperative-sticky") as polls, running(folder, "--members", "2") as fleet:
        wait_for(lambda: group.described()[0] == "PREPARING_REBALANCING", START_S, "the join")
        fleet.ctrl_c()
        wait_for(lambda: "stop asked" in fleet.text, 60, "the stop")
        after_a_moment(0.5, polls.set)
        assert fleet.wait() == 0, fleet.text
        assert group.described()[1] == {"None"}


@pytest.mark.long
def test_a_driver_killed_in_a_rebalance_leaves_no_one(group, folder) -> None:
    """The driver dies while its members join: they notice, wait for the join, and leave."""
    with group.neighbour("cooperative-sticky") as polls, running(folder, "--members", "2") as fleet:
        wait_for(
            lambda: len(group.described()[1]) == 3 and "starting fleet" in fleet.text,
            START_S,
            "the joins",
        )
        began = time.monotonic()
        fleet.signal(signal.SIGKILL)
        after_a_moment(2.0, polls.set)
        wait_for(lambda: group.described()[1] == {"None"}, SESSION_MS / 1e3, "an empty group")
        assert time.monotonic() - began < 90  # the session is 120 s


@pytest.mark.long
def test_a_killed_member_that_no_one_replaces_is_pushed_out_at_the_end(group, folder) -> None:
    """A member that is killed as the fleet stops is no ghost: the driver sees it off."""
    with running(folder, "--members", "2") as fleet:
        victim = min(at_work(fleet))
        fleet.signal(signal.SIGTERM)
        kill(victim)
        fleet.wait()
        assert group.described() == ("EMPTY", set())
