"""The engine as plain, JSON-able data: for people, tests, the progress line and the fleet."""

from __future__ import annotations

from typing import Any

from weft.core.handler import Handler
from weft.core.partition import Partition
from weft.core.state import EngineState

BLOCKED_SHOWN_MAX = 20


def snapshot(state: EngineState) -> dict[str, Any]:
    """Partitions and handlers; times are on the engine's clock."""
    return {
        "partitions": [partition_row(p) for p in state.partitions.values()],
        "handlers": {handler.name: handler_row(handler) for handler in state.handlers},
        "holds": sorted(state.holds),
        "counts": dict(state.counts),
    }


def partition_row(partition: Partition) -> dict[str, Any]:
    """One partition, by the names of the contract."""
    frontier = partition.frontier
    end = max(partition.lag_end, partition.position)
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "frontier": frontier,
        "committed": partition.committed,
        "highest_seen": partition.position - 1,
        "buffered": partition.buffered,
        "in_flight": partition.in_flight,
        "retrying": partition.retrying,
        "parked": partition.parked,
        "lag": max(0, end - frontier),
        "map_chars": partition.map_chars,
        "paused": partition.user_paused or partition.intake_paused,
        "epoch": partition.epoch,
    }


def handler_row(handler: Handler) -> dict[str, Any]:
    """The counts of one handler since the start."""
    spec = handler.spec
    return {
        "done": handler.done,
        "failures": handler.failures,
        "retries": handler.retries,
        "dead_lettered": handler.dead_lettered,
        "skipped": handler.skipped,
        "parked": handler.parked,
        "superseded": handler.superseded,
        "overdue": len(handler.overdue),
        "in_flight": spec.concurrency + spec.ahead - handler.free,
        "concurrency": spec.concurrency,
    }
