"""The clients of a member with a table: it begins where the table is, and writes to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.core.epochs import Found
from weft.kafka.admin import KafkaAdmin
from weft.kafka.clientlog import with_client_log
from weft.kafka.connect import RealConnection
from weft.kafka.consumer import KafkaConsumer
from weft.kafka.ports import RebalanceListener, TransactionsPort
from weft.kafka.settings import ClientSettings
from weft.spark.table.desk import UNKNOWN_GENERATION
from weft.spark.table.line import TableLine
from weft.spark.table.pace import Pace
from weft.spark.table.progress import ahead
from weft.spark.table.transactions import TableTransactions
from weft.types import TopicPartition

Ids = Callable[[Iterable[str]], Mapping[str, str]]
_ANSWER_S = 5.0


class TableConnection(RealConnection):
    """Clients of a cluster, and a table."""

    def __init__(self, settings: ClientSettings, line: TableLine) -> None:
        super().__init__(settings)
        self.pace = Pace(line.interval_s)
        self._line = line

    def consumer(self) -> TableConsumer:
        """A new consumer."""
        config = with_client_log(self.settings.consumer)
        return TableConsumer(config, self._line, self._topic_ids, self.pace)

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Rows into the table, the rest under this id."""
        return TableTransactions(super().transactions(transactional_id), self._line, self.pace)

    def _topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        with KafkaAdmin(self.settings) as admin:
            found = admin.describe(list(topics), _ANSWER_S)
        return {topic: facts.topic_id for topic, facts in found.items()}


class TableConsumer(KafkaConsumer):
    """A consumer that claims what it is assigned, and begins where the table is."""

    def __init__(self, config: Mapping[str, Any], line: TableLine, ids: Ids, pace: Pace) -> None:
        super().__init__(config)
        self._line, self._ids, self._pace = line, ids, pace

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group."""
        super().subscribe(topics, _InAHurry(listener, self._pace))

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offsets with metadata, or the table's, and both ends of the log.

        Without those that a newer member has claimed: they are about to be taken away.
        """
        found = super().find(partitions, timeout_s)
        if not found:
            return found
        ids = self._ids({topic for topic, _ in found})
        held = self._line.claim(found, ids, self._generation(), timeout_s)
        return {where: ahead(one, held[where]) for where, one in found.items() if where in held}

    def _generation(self) -> int:
        """The group's, as this member knows it."""
        try:
            with self.membership() as membership:
                return membership.generation
        except RuntimeError:
            return UNKNOWN_GENERATION


class _InAHurry:
    """Has what is handled written at once when partitions are taken away."""

    def __init__(self, inner: RebalanceListener, pace: Pace) -> None:
        self._inner, self._pace = inner, pace

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """As it is."""
        return self._inner.on_assigned(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Who gets them waits for us."""
        self._pace.hurry()
        self._inner.on_revoked(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """As it is."""
        self._inner.on_lost(partitions)
