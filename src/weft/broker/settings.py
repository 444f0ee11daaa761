"""The settings of a local broker: its nodes, and their `server.properties`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import ConfigError

HOST = "127.0.0.1"
NODES_MAX = 3
PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Node:
    """One broker process: its id in the cluster (from 1) and its two loopback ports."""

    id: int
    port: int
    controller_port: int

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self.port}"


def check_shape(nodes: int, port: int | None) -> None:
    """Refuse a cluster that cannot be: 1 to 3 nodes, whose ports follow each other from `port`."""
    if not 1 <= nodes <= NODES_MAX:
        raise ConfigError(f"nodes is {nodes}: a local broker has 1 to {NODES_MAX} nodes")
    if port is not None and not 1 <= port <= PORT_MAX - nodes + 1:
        raise ConfigError(f"port is {port}: choose one from 1 to {PORT_MAX - nodes + 1}")


def check_config(config: Mapping[str, object]) -> None:
    """Refuse broker settings that Weft must own to run the cluster at all."""
    owned = _identity(Node(1, 1, 1), [Node(1, 1, 1)], Path())
    for key in config:
        if key in owned:
            raise ConfigError(f"{key} is set by Weft for a local broker; omit it of config")


def server_properties(
    node: Node, nodes: Sequence[Node], log_dir: Path, config: Mapping[str, object]
) -> str:
    """Render one node's `server.properties`; `config` wins over the defaults."""
    settings: dict[str, object] = {**_defaults(len(nodes)), **config}
    settings |= _identity(node, nodes, log_dir)
    return "".join(f"{key}={_text(value)}\n" for key, value in settings.items())


def _text(value: object) -> str:
    """Write a value as a properties file reads it back: there a backslash escapes."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _identity(node: Node, nodes: Sequence[Node], log_dir: Path) -> dict[str, object]:
    """The node's identity and its listeners: loopback only, not configurable."""
    voters = ",".join(f"{n.id}@{HOST}:{n.controller_port}" for n in nodes)
    return {
        "process.roles": "broker,controller",
        "node.id": node.id,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": log_dir,
    }


def _defaults(count: int) -> dict[str, object]:
    """A small machine's cluster: quick to start, quick to notice a dead peer, keeps its records."""
    # With three nodes one may die and acks=all still works; with two the quorum is gone anyway.
    in_sync_min = 2 if count == NODES_MAX else 1
    return {
        "auto.create.topics.enable": "false",
        "default.replication.factor": count,
        "min.insync.replicas": in_sync_min,
        # Four partitions of each internal topic start much faster than fifty.
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": count,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": count,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        # A group starts when its first member comes, and may ask for short time-outs.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 500,
        # Under KIP-848 the broker sets the pace: its defaults (5 s, 45 s) make tests wait.
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.assignment.interval.ms": 100,
        # Records with old timestamps (a backfill under test) must not vanish by age.
        "log.retention.ms": -1,
        "log.segment.bytes": 128 * 2**20,
        "log.cleaner.dedupe.buffer.size": 16 * 2**20,
        "log.cleaner.backoff.ms": 1_000,
        "log.segment.delete.delay.ms": 1_000,
        # A transaction left open by a dead producer is looked for every second, not every ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
        # A killed node may register again only when its session has run out.
        "broker.session.timeout.ms": 2_000 if count == 1 else 4_000,
        "broker.heartbeat.interval.ms": 250,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
