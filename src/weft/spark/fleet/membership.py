"""How a fleet's members stand in their group: their names there, and how long they may be silent.

A static id is `{group}-{run}-{member}`. The client id says where the run's driver listens, so that
a later run can find out whether that driver still lives.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

#: A member that is lost without a spare slot stops its partitions for so long. A killed one is
#: back within seconds, and Kafka's own 45 s would be silence.
SESSION_MS = 12_000
#: How soon a member hears of a rebalance, and a restarted run gets its partitions.
HEARTBEAT_MS = 1_000

_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9._-]")
_ID_GROUP_CHARS_MAX = 200
_CLIENT = re.compile(r"^weft-([0-9a-f]+)-\d+@([^/]+)/(.+):(\d+)$")


class DriverPlace(NamedTuple):
    """Where the driver of a run listens."""

    run: str
    #: the name of its machine: what an address means depends on where one asks
    machine: str
    host: str
    port: int


def instance_name(group: str, run: str) -> str:
    """`{group}-{run}` in the letters that static ids may have."""
    return f"{_NOT_IN_IDS.sub('_', group)[:_ID_GROUP_CHARS_MAX]}-{run}"


def run_of(instance_id: str, group: str) -> str | None:
    """The run that a static id is of; None where it is of no fleet of this group."""
    found = re.fullmatch(re.escape(instance_name(group, "")) + r"([0-9a-f]{8})-\d+", instance_id)
    return None if found is None else found[1]


def client_id(run: str, index: int, host: str, port: int) -> str:
    """What the broker is told of a member, beside its static id."""
    return f"weft-{run}-{index}@{socket.gethostname()}/{host}:{port}"


def driver_of(client: str) -> DriverPlace | None:
    """What a `client_id` says; None for one that the user chose."""
    found = _CLIENT.fullmatch(client)
    return None if found is None else DriverPlace(found[1], found[2], found[3], int(found[4]))


def member_kafka(kafka: Mapping[str, Any], client: str) -> dict[str, Any]:
    """The user's properties with a fleet's defaults.

    With `group.protocol=consumer` the broker says how long a member may be silent.
    """
    given: dict[str, Any] = {"client.id": client, **kafka}
    if str(kafka.get("group.protocol", "classic")).lower() == "consumer":
        return given
    longest_ms = _number(given, "max.poll.interval.ms") or 24 * 3_600_000
    enough_ms = max(SESSION_MS, 3 * (_number(given, "heartbeat.interval.ms") or 0))
    session_ms = _number(given, "session.timeout.ms") or min(enough_ms, longest_ms)
    heartbeat_ms = min(HEARTBEAT_MS, session_ms // 3)
    return {"session.timeout.ms": session_ms, "heartbeat.interval.ms": heartbeat_ms, **given}


def _number(kafka: Mapping[str, Any], name: str) -> int | None:
    value = kafka.get(name)
    return None if value is None else int(value)
