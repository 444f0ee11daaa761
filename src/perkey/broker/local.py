"""A real Kafka for one program or test session: started, killed and restarted from Python."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from perkey.broker import topics
from perkey.broker.cluster import Cluster
from perkey.broker.process import BrokerError, send_signal
from perkey.broker.state import check_config, check_shape
from perkey.errors import ConfigError


class LocalBroker:
    """A cluster of 1 to 3 real Kafka nodes on loopback that dies with this process.

    Without `data_dir` its data is temporary; without `port` it uses free ports. `config` holds
    broker settings. It is a context manager. Nodes are counted from 0 here.
    """

    def __init__(
        self,
        nodes: int = 1,
        port: int | None = None,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        check_shape(nodes, port)
        check_config(config or {})
        self._nodes, self._port, self._config = nodes, port, dict(config or {})
        self._data_dir = Path(data_dir).expanduser() if data_dir is not None else None
        self._cluster: Cluster | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop it, whatever happened inside."""
        self.stop()

    def start(self) -> Self:
        """Start it and return when it answers; a no-op if it runs.

        Raises ConfigError if Java or the jars are missing, BrokerError if it does not start.
        """
        if self._cluster is None:
            folder = self._data_dir or Path(tempfile.mkdtemp(prefix="perkey-broker-"))
            cluster = Cluster(folder, guarded=True, config=self._config)
            if cluster.pids():
                raise ConfigError(
                    f"a broker already runs in {folder}: take it down first, or choose another "
                    "data_dir"
                )
            self._cluster = cluster
            self._owner = os.getpid()
            atexit.register(self.stop)
        try:
            self._cluster.up(self._nodes, self._port)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop every node and delete temporary data. A no-op if it is stopped."""
        cluster = self._cluster
        if cluster is None or os.getpid() != self._owner:
            return  # A forked child must not stop its parent's broker.
        atexit.unregister(self.stop)
        self._cluster = None
        try:
            if self._data_dir is None:
                cluster.down(grace_s=0)
            else:
                cluster.down()
        finally:
            if self._data_dir is None:
                shutil.rmtree(cluster.folder, ignore_errors=True)

    @property
    def bootstrap(self) -> str:
        """The bootstrap address list; raises BrokerError before start."""
        state = self._running().state()
        if state is None:
            raise BrokerError("the broker is not started")
        return state.bootstrap

    @property
    def pids(self) -> list[int]:
        """The pids of the running nodes, in node order."""
        return list(self._running().pids().values())

    def kill(self, node: int = 0, sig: int = signal.SIGKILL) -> None:
        """Send one node a signal; with SIGKILL, the default, return when the node has ended."""
        cluster, node_id = self._running(), self._node_id(node)
        pid = cluster.pids().get(node_id)
        if pid is None:
            raise BrokerError(f"node {node} is not running")
        if sig == signal.SIGKILL:
            cluster.stop_node(node_id, grace_s=0)
        else:
            send_signal(pid, sig)

    def restart(self, node: int = 0) -> None:
        """Stop one node if it runs, start it on its port again, and wait until it answers."""
        cluster, node_id = self._running(), self._node_id(node)
        cluster.stop_node(node_id)
        cluster.start_node(node_id)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic and wait until all its partitions have leaders; raises BrokerError."""
        topics.create_topic(
            self.bootstrap, name, partitions=partitions, replication=replication, config=config
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone; raises BrokerError."""
        topics.delete_topic(self.bootstrap, name)

    def _running(self) -> Cluster:
        if self._cluster is None:
            raise BrokerError("the broker is not started: call start() or use it in a with block")
        return self._cluster

    def _node_id(self, node: int) -> int:
        if not 0 <= node < self._nodes:
            raise BrokerError(f"node is {node}: this broker has nodes 0 to {self._nodes - 1}")
        return node + 1
