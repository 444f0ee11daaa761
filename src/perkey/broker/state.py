"""A cluster's nodes, their `server.properties`, and its stored state."""

from __future__ import annotations

import base64
import itertools
import json
import random
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from perkey.broker.folder import check_own, user_folder
from perkey.errors import ConfigError

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
        """The address for clients."""
        return f"{HOST}:{self.port}"


def check_shape(nodes: int, port: int | None) -> None:
    """Refuse an impossible cluster: it has 1 to 3 nodes, with consecutive ports from `port`."""
    if not 1 <= nodes <= NODES_MAX:
        raise ConfigError(f"nodes is {nodes}: a local broker has 1 to {NODES_MAX} nodes")
    if port is not None and not 1 <= port <= PORT_MAX - nodes + 1:
        raise ConfigError(f"port is {port}: choose one from 1 to {PORT_MAX - nodes + 1}")


def check_config(config: Mapping[str, object]) -> None:
    """Refuse broker settings that Perkey sets itself to run the cluster."""
    owned = _identity(Node(1, 1, 1), [Node(1, 1, 1)], Path())
    for key in config:
        if key in owned:
            raise ConfigError(f"{key} is set by Perkey for a local broker; omit it of config")


def server_properties(
    node: Node, nodes: Sequence[Node], log_dir: Path, config: Mapping[str, object]
) -> str:
    """Render one node's `server.properties`; `config` wins over the defaults."""
    count = len(nodes)
    # With three nodes one may die and acks=all still works; with two the quorum is lost anyway.
    in_sync_min = 2 if count == NODES_MAX else 1
    settings: dict[str, object] = {
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
        # A group starts when its first member joins, and may request short time-outs.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 500,
        # Under KIP-848 the broker sets the intervals: its defaults (5 s, 45 s) slow tests down.
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.heartbeat.interval.ms": 500,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.assignment.interval.ms": 100,
        # Records with old timestamps (a backfill under test) must not be deleted by age.
        "log.retention.ms": -1,
        "log.segment.bytes": 128 * 2**20,
        "log.cleaner.dedupe.buffer.size": 16 * 2**20,
        "log.cleaner.backoff.ms": 1_000,
        "log.segment.delete.delay.ms": 1_000,
        # An open transaction of a dead producer is checked every second, not every ten.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
        # A killed node may register again only after its session has ended.
        "broker.session.timeout.ms": 2_000 if count == 1 else 4_000,
        "broker.heartbeat.interval.ms": 250,
        "num.network.threads": 2,
        "num.io.threads": 4,
        **config,
    }
    settings |= _identity(node, nodes, log_dir)
    lines = []
    for key, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # In a properties file a backslash is an escape character
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={text}\n")
    return "".join(lines)


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


_STATE_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class ClusterState:
    """One cluster: its id, its nodes, and node id to pid of started ones (may be dead)."""

    cluster_id: str
    nodes: list[Node]
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """The bootstrap address list for clients."""
        return ",".join(node.address for node in self.nodes)


def default_data_dir() -> Path:
    """The data folder of `perkey broker up` without --data: one cluster per user."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "broker"


def load_state(folder: Path) -> ClusterState | None:
    """Read the folder's stored state; None if no cluster was started in it.

    Raises ConfigError for an invalid state, and for a folder that other users can change.
    """
    path = folder / "cluster.json"
    try:
        with path.open("rb") as file:
            text = file.read(_STATE_BYTES_MAX)
    except FileNotFoundError:
        return None
    check_own(folder, "choose another --data")
    try:
        read = json.loads(text)
        nodes = [Node(**node) for node in read["nodes"]]
        pids = {int(node_id): int(pid) for node_id, pid in read["pids"].items()}
        state = ClusterState(str(read["cluster_id"]), nodes, pids)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not readable as a cluster: delete {folder} to start over"
        ) from error
    if not 1 <= len(nodes) <= NODES_MAX:
        raise ConfigError(f"{path} names {len(nodes)} nodes: delete {folder} to start over")
    return state


def save_state(folder: Path, state: ClusterState) -> None:
    """Replace the stored state atomically."""
    path = folder / "cluster.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(state), indent=2) + "\n")
    draft.replace(path)


def new_state(count: int, port: int | None) -> ClusterState:
    """A new cluster of `count` nodes, on ports that are free now."""
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return ClusterState(cluster_id, choose_nodes(count, port))


def choose_nodes(count: int, port: int | None) -> list[Node]:
    """Nodes on loopback ports: from `port` upwards, or free ones; a taken one is a ConfigError."""
    wanted = [port + i for i in range(count)] if port is not None else []
    for taken in (p for p in wanted if not is_free(p)):
        raise ConfigError(
            f"port {taken} on {HOST} is in use: choose another --port, or omit it for a free one"
        )
    ports = wanted + [free for free in free_ports(3 * count) if free not in wanted]
    return [Node(i + 1, ports[i], ports[count + i]) for i in range(count)]


#: below the range of the system, above what Spark takes for itself
OWN_PORTS = range(16_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a broker could listen on this loopback port now."""
    with socket.socket() as probe:
        # As Kafka binds: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """This many loopback ports, outside the system's ephemeral range (from 32768 on Linux).

    A port of that range may be used by an outgoing connection while a killed node is down: the node
    could not restart, and its clients would connect to another program.
    """
    drawn = random.SystemRandom().sample(OWN_PORTS, len(OWN_PORTS))
    free = list(itertools.islice(filter(is_free, drawn), count))
    if len(free) < count:
        raise ConfigError(f"{HOST} has no {count} free ports between 16000 and 32000: use --port")
    return free
