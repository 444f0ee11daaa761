"""The persistent state of a cluster in its directory: nodes, ports and the last pids."""

from __future__ import annotations

import base64
import itertools
import json
import random
import socket
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weft.broker.folder import check_own, user_folder
from weft.broker.settings import HOST, NODES_MAX, Node
from weft.errors import ConfigError

_STATE_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class ClusterState:
    """One cluster: its id, its nodes, and node id to pid of what was started (maybe long dead)."""

    cluster_id: str
    nodes: list[Node]
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """The address list that clients start from."""
        return ",".join(node.address for node in self.nodes)


def default_data_dir() -> Path:
    """The data folder of `weft broker up` without --data: one cluster a user."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "broker"


def load_state(folder: Path) -> ClusterState | None:
    """Read what the folder remembers; None where no cluster was started in it.

    Raises ConfigError for what is no cluster, and for a folder that is not this user's own.
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
    """Replace what the folder remembers, in one step."""
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
    """So many loopback ports, outside the range that the system gives out (from 32768 on Linux).

    One of those may be an outgoing connection while a killed node is down, which then
    could not come back; and its clients would knock at a stranger.
    """
    drawn = random.SystemRandom().sample(OWN_PORTS, len(OWN_PORTS))
    free = list(itertools.islice(filter(is_free, drawn), count))
    if len(free) < count:
        raise ConfigError(f"{HOST} has no {count} free ports between 16000 and 32000: use --port")
    return free
