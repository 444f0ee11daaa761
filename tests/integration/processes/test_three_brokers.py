"""Faults of a cluster of three brokers: how soon every partition is read again. `make chaos-short`.

The producer of the scene has the same cluster: what it waits for is not Perkey's. No partition may
wait more than five seconds longer than it did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.integration.conftest import SETTINGS
from tests.support.chaos import Chaos, say
from tests.support.verdict import Excuse
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker

PARTITIONS, LATER_S, SETTLE_S, WAIT_S = 6, 5.0, 5.0, 180.0
AWAY_S = 40.0


class Three:
    """Three brokers, and topics on all of them."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """On all three."""
        self.broker.create_topic(name, partitions, replication=3)

    def leader(self, topic: str) -> int:
        """The node that leads partition 0, counted from 0."""
        return int(self.admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader) - 1

    def coordinator(self, group: str) -> int:
        """The node that coordinates this group, counted from 0."""
        found = self.admin.describe_consumer_groups([group], request_timeout=20)[group].result()
        return int(found.coordinator.id) - 1

    def until_in_sync(self, *topics: str) -> None:
        """Every partition of these has three replicas in sync, so one more may go."""

        def lagging() -> int:
            known = self.admin.list_topics(timeout=20).topics
            every = [one for name in topics for one in known[name].partitions.values()]
            return sum(len(one.isrs) < 3 for one in every)

        wait_for(lambda: not lagging(), WAIT_S, "the replicas are in sync")

    def elect(self, topic: str) -> None:
        """Leaders go back to the first replicas, and no broker goes away: nothing tells clients."""
        asked = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self.admin.elect_leaders(ElectionType.PREFERRED, asked).result(20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalBroker]:
    """Three brokers; every scene finds and leaves all of them running."""
    with LocalBroker(nodes=3, config=SETTINGS) as broker:
        yield broker


Scene = Callable[[Three, Chaos], None]


def all_down(three: Three, run: Chaos) -> None:
    """All brokers killed, back 40 s later."""
    for node in range(3):
        three.broker.kill(node)
    threading.Event().wait(AWAY_S)
    three.broker.start()


def leader_killed(three: Three, run: Chaos) -> None:
    """The leader of partition 0 killed, back after the others have taken over; then it leads."""
    node = three.leader(run.plan.topic)
    three.broker.kill(node)
    threading.Event().wait(15.0)
    three.broker.restart(node)
    three.until_in_sync(run.plan.topic)
    three.elect(run.plan.topic)


def coordinator_killed(three: Three, run: Chaos) -> None:
    """The group's coordinator killed, and back."""
    node = three.coordinator(run.plan.group)
    three.broker.kill(node)
    threading.Event().wait(15.0)
    three.broker.restart(node)


def rolling_restart(three: Three, run: Chaos) -> None:
    """One broker after the other, as an upgrade does it."""
    for node in range(3):
        three.broker.restart(node)
        three.until_in_sync(run.plan.topic, "__consumer_offsets")


@pytest.mark.long
@pytest.mark.timeout(480)
@pytest.mark.parametrize("protocol", ["eager", "cooperative", "consumer"])
@pytest.mark.parametrize("scene", [all_down, leader_killed, coordinator_killed, rolling_restart])
def test_every_partition_is_read_again(
    cluster: LocalBroker, tmp_path: Path, scene: Scene, protocol: str
) -> None:
    """L3, S1, S3: at most five seconds after the producer is through again, and nothing is lost."""
    three = Three(cluster)
    with Chaos(
        three, tmp_path, seed=18, protocol=protocol, partitions=PARTITIONS, concurrency=32
    ) as run:
        three.until_in_sync(run.plan.topic, "__consumer_offsets")
        members = [run.start(), run.start()]
        run.feed(200)
        run.until(lambda: min(map(run.starts_of, members)) > 200, 60, "both work")
        began = time.monotonic()
        scene(three, run)
        healed = time.monotonic()

        def all_read() -> bool:
            run.look()
            read = {e.partition for e in run.entries[-20_000:] if e.kind == "S" and e.at > healed}
            return len(read) == PARTITIONS

        run.until(all_read, WAIT_S, "every partition is read again")
        threading.Event().wait(SETTLE_S)
        ended = time.monotonic()
        run.stop_feeding()
        run.excuses.append(Excuse("away", None, run.since(began), ended, overlap=True))
        run.all_done(60)
        produced, read = run.standstills(began, ended)
        shown = " ".join(f"{one:.1f}" for one in read)
        what = f"{scene.__name__} {protocol}: producer {max(produced):.1f} s, partitions {shown}"
        say(what)
        for child in members:
            run.terminate(child)
        run.verdict()
        assert max(read) <= max(produced) + LATER_S, what


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_partition_that_the_client_stops_fetching_is_fetched_again(cluster: LocalBroker) -> None:
    """The watchdog: its log grows, nothing of Perkey's pauses it, and 30 s later it is read."""
    cluster.create_topic("unfetched", 2, replication=3)
    app = perkey.App(group="unfetched", kafka={"bootstrap.servers": cluster.bootstrap})
    read: list[int] = []

    @app.consume("unfetched")
    def handler(record: perkey.Record) -> None:
        read.append(record.partition)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def until_read(count: int) -> None:
        producer.produce("unfetched", b"x", partition=0)
        assert producer.flush(60) == 0
        wait_for(lambda: len(read) >= count, WAIT_S)

    run = app.start()
    try:
        until_read(1)
        consumer: Any = run.member.membership.consumer  # behind its back
        consumer._consumer.pause([TopicPartition("unfetched", 0)])
        until_read(2)
        assert app.snapshot()["counts"]["partitions_refetched"] >= 1
    finally:
        run.stop()
        run.wait(60)
