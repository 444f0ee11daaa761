"""The in-memory broker that apps run on: a cluster with an address and its connections."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from weft.kafka.connect import MEMORY
from weft.testing.clock import VirtualClock
from weft.testing.cluster import MemoryCluster
from weft.testing.connection import MemoryConnection


class MemoryKafka(MemoryCluster):
    """A Kafka in this process, for apps with `kafka={"bootstrap.servers": broker.bootstrap}`.

    It has topics, groups that rebalance, commits with metadata, gaps and transactions, and it can
    be made to fail. `clock` is the time its apps run on; `auto_create` makes topics that are
    written to. It is a context manager. Any thread.
    """

    def __init__(self, *, clock: VirtualClock | None = None, auto_create: bool = False) -> None:
        super().__init__(clock=clock, auto_create=auto_create)
        MEMORY[self.bootstrap] = lambda settings: MemoryConnection(self, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Its address is none any more. May be called again."""
        MEMORY.pop(self.bootstrap, None)
        self.closed.set()

    def __repr__(self) -> str:
        return f"<MemoryKafka {self.bootstrap}>"
