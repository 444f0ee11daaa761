"""A fleet over Spark Connect: members live in the tasks of queries, since there is no SparkContext.

A query of one row each; what stands in its task is a generator that yields when the member has
left. Queries carry the run as their tag, by which they are interrupted.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.spark.fleet.member_task import MemberTask
from weft.spark.fleet.settings import CONTROL_PORT, bound, killers, refuse_what_kills
from weft.spark.fleet.task import run_member

_SCHEMA = "why string"


class ConnectSession:
    """A Spark Connect session, and whether it ends with the fleet."""

    def __init__(self, spark: Any, *, own: bool) -> None:
        """Raises ConfigError when the server's settings would end members."""
        self.spark, self.own = spark, own
        self._builder = spark.client._builder  # noqa: SLF001  # PySpark has no public way to ask where the server is
        refuse_what_kills(killers(lambda name: spark.conf.get(name, None)))

    @property
    def master(self) -> str:
        """The server's address."""
        return f"sc://{self._builder.endpoint}"

    @property
    def ui(self) -> str | None:
        """Only the server knows."""
        return None

    @property
    def stopped(self) -> bool:
        """It has ended; nothing can be submitted."""
        return bool(self.spark.is_stopped)

    def control_address(self, conf: dict[str, str]) -> tuple[str, str, int]:
        """(address to bind, address that executors dial, port) of the control channel.

        Executors are taken to reach this machine where the server does.
        """
        here = _address_towards(self._builder.host)
        return bound(conf, here, here, int(conf.get(CONTROL_PORT, "0")))

    def ship(self, sources: Path) -> None:
        """Put a zip of sources on the executors' path."""
        self.spark.addArtifacts(str(sources), pyfile=True)

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A plain one: tags are the client's."""
        return threading.Thread(target=target, name=name, daemon=True)

    def hold(self, task: MemberTask, group: str, _description: str) -> None:
        """Run a member; returns when it has left."""
        self.spark.addTag(group)
        rows = self.spark.range(0, 1, 1, 1)
        rows.mapInArrow(_Holder(task), _SCHEMA).collect()

    def going(self, _executors: Collection[str]) -> list[str]:
        """Only the server knows."""
        return []

    def removed(self, _executor: str) -> bool:
        """Only the server knows."""
        return False

    def trouble(self, _group: str) -> str | None:
        """A query fails as a whole, with its reason."""
        return None

    def cancel(self, group: str) -> None:
        """Kill the members that have not left."""
        if not self.stopped:
            self.spark.interruptTag(group)

    def close(self) -> None:
        """Stop the session if it was made for the fleet."""
        if self.own:
            self.spark.stop()


class _Holder:
    """What Spark runs in a task: takes the task's one row and holds a member."""

    def __init__(self, task: MemberTask) -> None:
        self._task = task

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:  # else the socket behind us stays full of it
            pass
        whys = list(run_member(self._task, ()))
        yield pa.RecordBatch.from_pydict({"why": pa.array(whys, pa.string())})


def _address_towards(host: str) -> str:
    """This machine's address on the way to another. Nothing is sent."""
    family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
