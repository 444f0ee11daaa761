"""The names of members in their group, their session, and what is known of a dead driver."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.kafka.admin import StaticMember
from perkey.spark.fleet import lookout, membership
from perkey.spark.fleet.dead_members import driver_is_dead
from perkey.spark.fleet.limits import AWAY_S
from perkey.spark.fleet.lookout import Lookout
from perkey.spark.fleet.membership import (
    HEARTBEAT_MS,
    SESSION_MS,
    STRATEGY,
    client_id,
    driver_of,
    instance_name,
    member_kafka,
    run_of,
    static_id,
)
from perkey.spark.fleet.server import Server
from perkey.spark.fleet.slots import Slot


def test_names_and_back() -> None:
    """A static id tells its run, a client id where that run's driver listens."""
    name = f"{instance_name('my group', '0a1b2c3d')}-17"
    assert name == "my_group-0a1b2c3d-17"
    assert run_of(name, "my group") == "0a1b2c3d"
    assert run_of(static_id(instance_name("my group", "0a1b2c3d"), 17, 0), "my group") == "0a1b2c3d"
    assert run_of(f"{name}.3", "my group") == "0a1b2c3d"  # of a member that followed a dead one
    assert static_id("n", 17, 3) == "n-17.3"
    assert run_of(name, "my") is None
    assert run_of("somebody", "my group") is None
    place = driver_of(client_id("0a1b2c3d", 3, "10.0.0.7", 7077))
    assert place == ("0a1b2c3d", socket.gethostname(), "10.0.0.7", 7077)
    assert driver_of("rdkafka") is None


@pytest.mark.parametrize(
    ("given", "session_ms", "heartbeat_ms"),
    [
        ({}, SESSION_MS, HEARTBEAT_MS),
        ({"session.timeout.ms": 30_000}, 30_000, HEARTBEAT_MS),
        ({"session.timeout.ms": "1500"}, "1500", 500),
        ({"heartbeat.interval.ms": 5_000}, 15_000, 5_000),
        ({"max.poll.interval.ms": 10_000}, 10_000, HEARTBEAT_MS),
        ({"group.protocol": "consumer"}, None, None),
    ],
)
def test_members_are_missed_soon(given, session_ms, heartbeat_ms) -> None:
    """A session of 12 s, unless the user or the new protocol's broker says otherwise."""
    kafka = member_kafka(given, "c")
    assert kafka.get("session.timeout.ms") == session_ms
    assert kafka.get("heartbeat.interval.ms") == heartbeat_ms
    assert kafka["client.id"] == "c"
    classic = "group.protocol" not in given
    assert kafka.get("partition.assignment.strategy") == (STRATEGY if classic else None)
    assert (
        member_kafka({"partition.assignment.strategy": "range"}, "c")[
            "partition.assignment.strategy"
        ]
        == "range"
    )
    assert member_kafka({"client.id": "mine"}, "c")["client.id"] == "mine"


def member(run: str, port: int, host: str = "127.0.0.1") -> StaticMember:
    """A member of a run whose driver listens, or listened, there."""
    return StaticMember(f"g-{run}-0", client_id(run, 0, host, port))


def test_a_driver_is_dead_when_its_port_refuses(monkeypatch) -> None:
    """On its own machine; from another one the same words mean nothing."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    assert driver_is_dead(member("0a1b2c3d", port))
    there = member("0a1b2c3d", port)
    monkeypatch.setattr(membership.socket, "gethostname", lambda: "elsewhere")
    assert not driver_is_dead(there)


def test_a_driver_that_answers_lives(monkeypatch) -> None:
    """Its own run at the port: alive. Another run's channel there: dead. No client id: unknown."""
    monkeypatch.setattr("perkey.spark.fleet.dead_members._DIAL_S", 60.0)  # it answers in the end
    server = Server("127.0.0.1", 0, b"s", "0a1b2c3d", None)  # nobody gets as far as an audience
    assert not driver_is_dead(member("0a1b2c3d", server.port))
    assert driver_is_dead(member("99999999", server.port))
    assert not driver_is_dead(StaticMember("g-99999999-0", "rdkafka"))
    server.close()


def test_a_port_that_reports_nothing_proves_nothing(monkeypatch) -> None:
    """Some other program has the port now, or a firewall: the session time-out decides."""
    monkeypatch.setattr("perkey.spark.fleet.dead_members._DIAL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its backlog takes the call
        assert not driver_is_dead(member("0a1b2c3d", silent.getsockname()[1]))


def away_watch(*slots: Slot) -> Lookout:
    """The checks over these members, none of which is on a known executor."""
    roster: Any = SimpleNamespace(slots=slots)
    session: Any = None
    return Lookout(roster, session, 12_000)


@pytest.mark.parametrize(("away_s", "lines"), [(AWAY_S - 0.5, 0), (AWAY_S + 0.1, 1)])
def test_an_absence_is_reported_once(away_s, lines, caplog, monkeypatch) -> None:
    """A member that nobody has replaced after its time is one line with what that means."""
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now)  # which stands still while we look
    monkeypatch.setattr(lookout, "time", clock)
    slot: Any = Slot(1)
    watch = away_watch(Slot(0), slot)
    watch.look()
    slot.silent_since = now - away_s
    for _ in range(3):
        watch.look()
    told = [one.getMessage() for one in caplog.records if one.name == lookout._log.name]
    assert len(told) == lines
    if lines:
        assert "member is away member=1" in told[0]
        assert "Its partitions go to the others after the session time-out of 12 s" in told[0]


def test_who_left_in_peace_has_left_its_partitions(caplog) -> None:
    """A member that said goodbye and is not replaced: nobody waits for its session."""
    slot: Any = Slot(1)
    slot.silent_since, slot.leaving = time.monotonic() - AWAY_S - 1, True
    away_watch(slot).look()
    assert "The others have its partitions" in caplog.text


def test_who_is_connected_and_does_not_report_is_away(caplog) -> None:
    """Its process is suspended, or its network drops everything; no slot is what it waits for."""
    slot: Any = Slot(1, wire=object(), up=True, received_at=time.monotonic() - AWAY_S - 1)
    watch = away_watch(slot)
    watch.look()
    watch.look()
    assert caplog.text.count("is it suspended, or its network cut? Its partitions go to") == 1
