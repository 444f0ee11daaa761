"""A fleet's members in their group: their ids, and how long they may be silent.

A static id is `{group}-{run}-{member}`, and `{group}-{run}-{member}.{suffix}` after a dead one of
that member was removed: no member reuses an id that is being removed. The client id names the
driver's address, so that a later run can find out whether that driver is alive.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perkey import guard

if TYPE_CHECKING:
    from perkey.spark.table.line import TablePlan

#: For so long the partitions of a lost member stop, if it has no spare slot. A killed one is back
#: within seconds, and Kafka's own 45 s would be a long gap.
SESSION_MS = 12_000
#: How soon a member learns of a rebalance, and a restarted run gets its partitions.
HEARTBEAT_MS = 1_000
#: Members keep partitions that do not move while the group rebalances: a member lost meanwhile
#: blocks only its own and the moving ones.
STRATEGY = "cooperative-sticky"

_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9._-]")
_ID_GROUP_CHARS_MAX = 200
_CLIENT = re.compile(r"^perkey-([0-9a-f]+)-\d+@([^/]+)/(.+):(\d+)$")


@dataclass(frozen=True, slots=True, repr=False)
class MemberTask:
    """One member's place in the fleet, shipped inside the Spark task. Holds secrets."""

    index: int
    #: how often the driver has submitted this member
    generation: int
    #: `{group}-{run}`: prefix of the static ids, so that two runs never fence each other
    name: str
    host: str
    port: int
    secret: bytes
    app: bytes
    #: the table for results; None for topics
    table: TablePlan | None = None

    @property
    def run(self) -> str:
        """The id of its run."""
        return self.name.rpartition("-")[2]

    def __repr__(self) -> str:
        return f"<MemberTask {self.index} of {self.name}>"


class DriverPlace(NamedTuple):
    """The address of a run's driver."""

    run: str
    #: its host name: the meaning of an address depends on the machine
    machine: str
    host: str
    port: int


def instance_name(group: str, run: str) -> str:
    """`{group}-{run}` in the characters that static ids may have."""
    return f"{_NOT_IN_IDS.sub('_', group)[:_ID_GROUP_CHARS_MAX]}-{run}"


def static_id(name: str, index: int, suffix: int) -> str:
    """A member's id in its group; `name` is that of the run, `suffix` counts removed holders."""
    return f"{name}-{index}.{suffix}" if suffix else f"{name}-{index}"


def run_of(instance_id: str, group: str) -> str | None:
    """The run of a static id; None if it belongs to no fleet of this group."""
    name = re.escape(instance_name(group, ""))
    found = re.fullmatch(name + r"([0-9a-f]{8})-\d+(\.\d+)?", instance_id)
    return None if found is None else found[1]


def kernel() -> str | None:
    """The scope of this process's id: one boot of a kernel, and one pid namespace in it.

    None if the platform does not show it: then process ids of two places cannot be compared.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def has_ended(pid: int) -> bool:
    """Whether no process of this kernel has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's process exists, too
        return False
    try:  # a zombie that its parent has not waited for counts as ended
        return guard.state_of(Path(f"/proc/{pid}")) == "Z"
    except (OSError, IndexError):
        return False


def client_id(run: str, index: int, host: str, port: int) -> str:
    """The client id of a member, besides its static id."""
    return f"perkey-{run}-{index}@{socket.gethostname()}/{host}:{port}"


def driver_of(client: str) -> DriverPlace | None:
    """The driver's place from a `client_id`; None for one that the user chose."""
    found = _CLIENT.fullmatch(client)
    return None if found is None else DriverPlace(found[1], found[2], found[3], int(found[4]))


def member_kafka(kafka: Mapping[str, Any], client: str) -> dict[str, Any]:
    """The user's properties with a fleet's defaults.

    With `group.protocol=consumer` the broker decides how long a member may be silent.
    """
    given: dict[str, Any] = {"client.id": client, **kafka}
    if str(kafka.get("group.protocol", "classic")).lower() == "consumer":
        return given
    longest_ms = _number(given, "max.poll.interval.ms") or 24 * 3_600_000
    enough_ms = max(SESSION_MS, 3 * (_number(given, "heartbeat.interval.ms") or 0))
    session_ms = _number(given, "session.timeout.ms") or min(enough_ms, longest_ms)
    heartbeat_ms = min(HEARTBEAT_MS, session_ms // 3)
    return {
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": heartbeat_ms,
        "partition.assignment.strategy": STRATEGY,
        **given,
    }


def _number(kafka: Mapping[str, Any], name: str) -> int | None:
    value = kafka.get(name)
    return None if value is None else int(value)
