"""How far a query is, as a consumer group's offsets, where every tool for Kafka sees it.

The checkpoint decides where a query continues; these offsets are for display, and for
another query that starts with `startingGroup`.
"""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from weft.errors import ConfigError
from weft.spark.source.bounds import PartitionMap
from weft.spark.source.cluster import Cluster

log = logging.getLogger("weft.spark.source")

#: An answer that is waited for at all; the next batch does not wait for one.
ANSWER_S = 10.0
LOOK_S = 0.05


class GroupProgress:
    """Commits a query's progress; one commit at a time."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._group = group
        self._consumer = cluster.group_consumer(group, self._on_commit)
        self._last: PartitionMap | None = None
        self._waiting = False
        self._error: KafkaError | None = None

    def reached(self, positions: PartitionMap, *, wait: bool) -> None:
        """Everything below these offsets is finished.

        Raises ConfigError where the group belongs to consumers that live; any other failure is a
        line in the log, since the query does not depend on it.
        """
        first = self._last is None
        if positions == self._last or not self._settled(ANSWER_S if wait else 0):
            return
        self._last, self._waiting = dict(positions), True
        offsets = [TopicPartition(*tp, offset) for tp, offset in positions.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], [])
        self._settled(ANSWER_S if first or wait else 0)

    def _settled(self, timeout_s: float) -> bool:
        """Whether the commit before was answered; waits so long for that."""
        deadline = time.monotonic() + timeout_s
        while self._waiting:
            self._consumer.poll(min(LOOK_S, timeout_s))
            if time.monotonic() >= deadline:
                break
        error, self._error = self._error, None
        if error is not None:
            self._failed(error)
        return not self._waiting

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        refused = [offset.error for offset in offsets if offset.error is not None]
        self._error = error or (refused[0] if refused else None)
        self._waiting = False

    def _failed(self, error: KafkaError) -> None:
        if error.code() in LIVING_MEMBERS:
            raise ConfigError(
                f"commitGroup={self._group}: the group has living members, whose offsets they are:"
                " give the query a group of its own"
            )
        self._last = None  # committed again with the next batch
        log.warning("offsets of group %s were not committed: %s", self._group, error.str())


LIVING_MEMBERS = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.NON_EMPTY_GROUP}
)
