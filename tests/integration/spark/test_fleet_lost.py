"""A member lost while its group rebalances: who lives goes on, and the dead one is pushed out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from benchmarks.spark_lost import PARTITIONS, WAIT_S, Watched, lose
from tests.support.plain_fleet import PlainSession
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker
from perkey.types import DeliveryName

pytestmark = [pytest.mark.timeout(600)]

ROUNDS = 3
#: Whatever is back long before this did not wait for it. On a quiet machine partitions of members
#: that live wait 2 s at most, and the dead one's 5 s (benchmarks/spark_lost.py).
SESSION_S, SOON_S = 90, 45.0


@pytest.fixture
def slots() -> PlainSession:
    """Where the members run."""
    return PlainSession()


@pytest.fixture
def watched(slots, monkeypatch) -> Iterator[Callable[..., Watched]]:
    """Start a fleet of processes; ended after the test."""
    begun: list[Watched] = []
    monkeypatch.setattr("perkey.spark.fleet.run.open_session", slots.open)
    kafka = {"session.timeout.ms": SESSION_S * 1_000}

    def start(
        broker: LocalBroker, members: int, delivery: DeliveryName = "at_least_once"
    ) -> Watched:
        name = f"lost-{uuid.uuid4().hex[:12]}"
        broker.create_topic(name, partitions=PARTITIONS)
        begun.append(Watched(broker.bootstrap, name, members, delivery, kafka))
        return begun[-1]

    yield start
    slots.free.set()
    for fleet in begun:
        fleet.close()


def check(fleet: Watched, since: float, held: dict[int, int]) -> None:
    """No partition waited for the session of the dead."""
    waits = fleet.waits(since)
    print({where: (held[where], round(seconds, 2)) for where, seconds in waits.items()})
    assert max(waits.values()) < SOON_S


def test_no_partition_waits_for_the_session_of_a_dead_member(
    watched, slots, kafka_broker, caplog
) -> None:
    """Killed in a rebalance and never started again: it is pushed out, and the others have all."""
    fleet = watched(kafka_broker, 3)
    since, held = lose(fleet, slots.free.clear)
    check(fleet, since, held)
    # What a busy member does not answer in a second is shown as it was before.
    wait_for(lambda: {row["member"] for row in fleet.app.snapshot()["partitions"]} == {2})
    wait_for(lambda: "pushed out a dead member member=1" in caplog.text)


@pytest.mark.long
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("cluster", ["kafka_broker", "three_nodes"])
def test_members_that_are_lost_in_rebalances(
    request, watched, slots, cluster, delivery, again
) -> None:
    """Again and again, of one broker and of three, with transactions left open or without.

    A member that follows a dead one joins under an id of its own, and has partitions again.
    """
    fleet = watched(request.getfixturevalue(cluster), 4, delivery)
    for _ in range(ROUNDS):
        since, held = lose(fleet, (lambda: None) if again else slots.free.clear)
        check(fleet, since, held)
        slots.free.set()
    wait_for(fleet.settled, WAIT_S, "all members at work again")
