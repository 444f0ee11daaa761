"""The clients of a member with a table: it begins where the table is, and writes to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.core.epochs import Found
from weft.kafka.admin import KafkaAdmin
from weft.kafka.clientlog import with_client_log
from weft.kafka.connect import RealConnection
from weft.kafka.consumer import KafkaConsumer
from weft.kafka.ports import RebalanceListener, TransactionsPort
from weft.kafka.settings import ClientSettings
from weft.spark.table.held import Held
from weft.spark.table.pace import Pace
from weft.spark.table.plan import TablePlan
from weft.spark.table.transactions import TableTransactions
from weft.types import TopicPartition

_ANSWER_S = 5.0


class TableConnection(RealConnection):
    """Clients of a cluster, and a table."""

    def __init__(self, settings: ClientSettings, plan: TablePlan, group: str) -> None:
        """Raises ConfigError where the table's folder is not the driver's."""
        super().__init__(settings)
        self.pace = Pace(plan.interval_s)
        self._held = Held(plan, group, self._topic_ids)

    def consumer(self) -> TableConsumer:
        """A new consumer."""
        return TableConsumer(with_client_log(self.settings.consumer), self._held, self.pace)

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Rows into the table, the rest under this id."""
        return TableTransactions(super().transactions(transactional_id), self._held, self.pace)

    def _topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        with KafkaAdmin(self.settings) as admin:
            found = admin.describe(list(topics), _ANSWER_S)
        return {topic: facts.topic_id for topic, facts in found.items()}


class TableConsumer(KafkaConsumer):
    """A consumer that begins where the table is, if that is further than the group's commit."""

    def __init__(self, config: Mapping[str, Any], held: Held, pace: Pace) -> None:
        super().__init__(config)
        self._held, self._pace = held, pace

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group."""
        super().subscribe(topics, _InAHurry(listener, self._pace))

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offsets with metadata, or the table's, and both ends of the log."""
        return self._held.ahead(super().find(partitions, timeout_s))


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
