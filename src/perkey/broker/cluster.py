"""One cluster in one data directory: start, inspect, stop."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from perkey.broker.folder import clear, locked
from perkey.broker.java import find_java
from perkey.broker.process import (
    STOP_GRACE_S,
    BrokerError,
    Guarded,
    format_storage,
    is_node,
    kafka_command,
    last_line,
    spawn_detached,
    spawn_guarded,
    stop_all,
)
from perkey.broker.state import (
    ClusterState,
    check_config,
    check_shape,
    choose_nodes,
    is_free,
    load_state,
    new_state,
    save_state,
    server_properties,
)
from perkey.broker.topics import wait_for_brokers
from perkey.errors import ConfigError

START_TIMEOUT_S = 120.0  # a node that ends is noticed immediately
_START_TRIES = 3


class _EndedEarlyError(BrokerError):
    """A node ended before it answered; with automatic ports another attempt may help."""


@dataclass(slots=True)
class Cluster:
    """The brokers of one data folder.

    `guarded` brokers die with this process; others outlive it. `config` holds broker settings
    that override Perkey's defaults. Every method takes the folder's lock.
    """

    folder: Path
    guarded: bool = False
    config: Mapping[str, object] = field(default_factory=dict)
    _children: dict[int, Guarded] = field(default_factory=dict)

    def up(self, nodes: int | None = None, port: int | None = None) -> ClusterState:
        """Start the cluster, or its missing nodes, and return when all nodes answer.

        Raises ConfigError if the arguments contradict an existing cluster, BrokerError if it does
        not start.
        """
        check_shape(1 if nodes is None else nodes, port)
        check_config(self.config)
        with self._held():
            state = load_state(self.folder)
            # A folder's node count is fixed by its data, and its ports while it runs
            if state is not None:
                if nodes is not None and nodes != len(state.nodes):
                    raise ConfigError(
                        f"{self.folder} holds a cluster of {len(state.nodes)} node(s), not "
                        f"{nodes}: choose another --data, or take this one down and delete its "
                        "folder"
                    )
                if port is not None and port != state.nodes[0].port and self._living(state):
                    raise ConfigError(
                        f"the broker in {self.folder} already runs on port {state.nodes[0].port}, "
                        f"not {port}: take it down first, or choose another --data"
                    )
            if state and self._living(state):
                return self._launch(state)
            for last_try in (False,) * (_START_TRIES - 1) + (True,):
                # Choose ids and ports: the previous ones if they are free and none were requested
                if state is None:
                    state = new_state(nodes or 1, port)
                else:
                    former = [p for node in state.nodes for p in (node.port, node.controller_port)]
                    kept = port in (None, state.nodes[0].port)
                    if not kept or not all(is_free(p) for p in former):
                        state.nodes = choose_nodes(len(state.nodes), port)
                try:
                    return self._launch(state)
                except _EndedEarlyError:
                    # Another process may have taken a port between the check and Kafka's bind.
                    if last_try or port is not None:
                        raise
            raise AssertionError("the last try returns or raises")

    def down(self, *, grace_s: float = STOP_GRACE_S, forget: bool = False) -> bool:
        """Stop every node, and with `forget` delete its data; return whether any was running."""
        with self._held():
            state = load_state(self.folder)
            living = self._living(state) if state else {}
            stop_all(
                [(pid, self.properties(node)) for node, pid in living.items()], grace_s=grace_s
            )
            self._reap(*self._children)
            if forget:
                clear(self.folder)
            return bool(living)

    def state(self) -> ClusterState | None:
        """The stored state; None if no cluster was started in the folder."""
        return load_state(self.folder) if self.folder.exists() else None

    def start_node(self, node_id: int) -> None:
        """Start a stopped node, and wait until the cluster answers with all running nodes."""
        with self._held():
            state = self._known()
            living = self._living(state)
            if node_id not in living:
                self._launch(state, only={node_id, *living})

    def stop_node(self, node_id: int, *, grace_s: float = STOP_GRACE_S) -> None:
        """Stop one node; a no-op if it is stopped."""
        with self._held():
            pid = self._living(self._known()).get(node_id)
            if pid is not None:
                stop_all([(pid, self.properties(node_id))], grace_s=grace_s)
            self._reap(node_id)

    def pids(self) -> dict[int, int]:
        """Node id to pid of the running nodes."""
        state = self.state()
        return self._living(state) if state else {}

    def properties(self, node_id: int) -> Path:
        """A node's settings file; its path in a command line identifies the node."""
        return self.folder.resolve() / f"node-{node_id}" / "server.properties"

    def _held(self) -> AbstractContextManager[None]:
        return locked(self.folder, "choose another --data")

    def _known(self) -> ClusterState:
        state = self.state()
        if state is None:
            raise BrokerError(f"no broker was started in {self.folder}")
        return state

    def _living(self, state: ClusterState) -> dict[int, int]:
        pids = {node.id: state.pids.get(node.id) for node in state.nodes}
        return {n: pid for n, pid in pids.items() if pid and is_node(pid, self.properties(n))}

    def _launch(self, state: ClusterState, only: set[int] | None = None) -> ClusterState:
        """Start the stopped nodes (`only` these), and wait until all of them answer."""
        wanted = [node for node in state.nodes if only is None or node.id in only]
        living = self._living(state)
        missing = [node for node in wanted if node.id not in living]
        if missing:
            java = find_java()
            # Saved before the format: the cluster id in the data must always be known.
            save_state(self.folder, state)
            for node in state.nodes:
                path = self.properties(node.id)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.write_text(
                    server_properties(node, state.nodes, path.parent / "log", self.config)
                )
            paths = [self.properties(node.id) for node in missing]
            fresh = [
                path for path in paths if not (path.parent / "log" / "meta.properties").exists()
            ]
            for path in fresh:
                # Leftovers of a format that was killed would be refused as foreign.
                shutil.rmtree(path.parent / "log", ignore_errors=True)
            format_storage(java, fresh, state.cluster_id)
            for node in missing:
                self._reap(node.id)
                properties = self.properties(node.id)
                command, log = kafka_command(java, properties), properties.with_name("console.log")
                if not self.guarded:
                    state.pids[node.id] = spawn_detached(command, log)
                else:
                    child = self._children[node.id] = spawn_guarded(command, log)
                    state.pids[node.id] = child.broker.pid
                save_state(self.folder, state)
        # Wait for metadata from all of `wanted`; on failure stop the nodes just started
        addresses = [node.address for node in wanted]
        missing_ids = {node.id for node in missing}

        def alive() -> bool:
            return missing_ids <= self._living(state).keys()

        if not wait_for_brokers(addresses, START_TIMEOUT_S, alive):
            ended = sorted(missing_ids - self._living(state).keys())
            stop_all([(state.pids[n], self.properties(n)) for n in missing_ids], grace_s=0)
            self._reap(*missing_ids)
            if not ended:
                raise BrokerError(
                    f"the broker in {self.folder} did not answer within {START_TIMEOUT_S:.0f} s"
                )
            log = self.properties(ended[0]).with_name("console.log")
            last = last_line(log.read_text(errors="replace"))
            raise _EndedEarlyError(
                f"broker node {ended[0]} ended while starting (its log {log} ends: {last})"
            )
        return state

    def _reap(self, *node_ids: int) -> None:
        for child in [self._children.pop(n) for n in node_ids if n in self._children]:
            child.release()
