"""One member's view of the table: its columns, its log, and the ids of the topics it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from weft.core.epochs import Found
from weft.kafka.ports import KafkaUnavailable
from weft.spark.table.log import TableLog
from weft.spark.table.plan import TablePlan
from weft.spark.table.progress import ahead
from weft.types import TopicPartition

Ask = Callable[[Iterable[str]], Mapping[str, str]]


class Held:
    """The transactions' thread writes through it; who looks for starts reads."""

    def __init__(self, plan: TablePlan, group: str, ask: Ask) -> None:
        """`ask`: topics -> their ids. Raises ConfigError where this is not the driver's folder."""
        plan.check_here()
        self._folder, self._group, self._ask = Path(plan.path), group, ask
        self.columns: pa.Schema = plan.schema
        #: of the transactions' thread
        self.log = TableLog(self._folder, group)
        #: replaced as a whole by whoever looks for starts; any thread reads it
        self.topic_ids: Mapping[str, str] = {}

    def ahead(self, found: Mapping[TopicPartition, Found]) -> dict[TopicPartition, Found]:
        """What is committed, with what the table has beyond it.

        Raises KafkaUnavailable where that cannot be known now.
        """
        ids = self._ask({topic for topic, _ in found})
        self.topic_ids = {**self.topic_ids, **ids}
        try:
            progress = TableLog(self._folder, self._group).progress()
        except OSError as error:
            raise KafkaUnavailable(f"the table cannot be read: {error}") from error
        result = dict(found)
        for (topic, number), one in found.items():
            done = progress.done(self._group, topic, self.topic_ids.get(topic, ""), number)
            if done is not None:
                result[topic, number] = ahead(one, done)
        return result
