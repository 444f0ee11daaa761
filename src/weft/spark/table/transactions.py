"""A transaction whose rows go into the table: the table first, the group's offsets behind it.

1. what goes to topics (dead letters, `Produce(topic=...)`) is produced: at least once;
2. the rows are published, and with them what is done: the point from which they are there, once;
3. the group's offsets are committed, in a Kafka transaction of their own.

A kill between 2 and 3 leaves the group behind the table: whoever gets the partition next begins
where the table is (`TableConsumer`), and rows that come again are recognised by their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from weft.core import effects as fx
from weft.core.work import Work
from weft.kafka.ports import (
    Delivery,
    OutMessage,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
)
from weft.runtime.member.seat import Seat
from weft.runtime.member.transactions import Transactor
from weft.spark.table.held import Held
from weft.spark.table.pace import Pace
from weft.spark.table.progress import done_of
from weft.spark.table.rows import REFUSED, Row, as_rows, refusal, row_of, values_of
from weft.spark.table.sink import TABLE
from weft.types import Sent

ReadBack = Callable[[Sequence[ToCommit]], "list[tuple[int | None, str]] | None"]

#: of outputs that wait: half of what one transaction takes at most
_FULL_BYTES = 4 * 2**20


class TableTransactions:
    """A TransactionsPort; of one thread."""

    def __init__(self, inner: TransactionsPort, held: Held, pace: Pace) -> None:
        """`inner`: for what goes to Kafka."""
        self._inner, self._held = inner, held
        self.pace = pace

    def open(self) -> None:
        """Begin under this member's id."""
        self._inner.open()

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Rows into the table, then the offsets; what came so far and failed is done again."""
        deliveries: list[Delivery | None] = [None] * len(messages)
        rows = {at: one for at, one in enumerate(messages) if isinstance(one, Row)}
        table, bad = as_rows(list(rows.values()), self._held.columns)
        if table is None:
            names, places = values_of(self._held.columns).names, list(rows)
            for one, reason in bad.items():
                deliveries[places[one]] = Delivery(None, refusal(reason, names))
            return TransactionEnd("aborted", deliveries)
        others = {at: one for at, one in enumerate(messages) if at not in rows}
        if others:
            end = self._inner.transact(list(others.values()), [], membership, read_back)
            deliveries = _spread(deliveries, others, end.deliveries)
            # A reason says that it had to be settled, and without offsets nothing tells how.
            if end.outcome != "committed" or end.reason:
                outcome = "aborted" if end.outcome == "committed" else end.outcome
                return replace(end, outcome=outcome, deliveries=deliveries)
        try:
            sequence = self._publish(list(rows.values()), table, offsets)
        except OSError as error:
            return TransactionEnd("aborted", deliveries, f"the table: {error}")
        for at, row in rows.items():
            deliveries[at] = Delivery(Sent(TABLE, 0, sequence, row.key), None)
        end = self._inner.transact([], offsets, membership, read_back)
        return replace(end, deliveries=deliveries)

    def _publish(self, rows: Sequence[Row], table: Any, offsets: Sequence[ToCommit]) -> int:
        places = [(r.record.topic, r.record.partition, r.record.offset) for r in rows]
        done = {(o.topic, o.partition): done_of(o.offset, o.metadata) for o in offsets}
        return self._held.log.publish(table, places, self._held.topic_ids, done)

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """It will never be a row, or the broker will never take it."""
        if delivery is not None and delivery.error is not None and delivery.error.type == REFUSED:
            return True
        return self._inner.is_refusal(delivery)

    def close(self) -> None:
        """Stop."""
        self._inner.close()


def _spread(
    deliveries: Sequence[Delivery | None],
    others: dict[int, OutMessage],
    answers: Sequence[Delivery | None],
) -> list[Delivery | None]:
    """The answers at the places of what they answer."""
    spread = list(deliveries)
    for at, answer in zip(others, answers, strict=True):
        spread[at] = answer
    return spread


class TableTransactor(Transactor):
    """Runs transactions at the table's pace, and knows each row's record."""

    def __init__(self, seat: Seat, port: TransactionsPort, group: str, *, batches: bool) -> None:
        super().__init__(seat, port, group, batches=batches)
        assert isinstance(port, TableTransactions)
        self._pace = port.pace

    def _transact(self, effect: fx.Transact, membership: Any) -> None:
        self._pace.wait(self._due)
        super()._transact(effect, membership)

    def _due(self) -> bool:
        """The run is to end, or much waits. Both are read as they were a moment ago, at worst."""
        if self._seat.door.engine.state.stop_mode is not None:
            return True
        held = list(self._seat.partitions.values())
        return sum([partition.outputs_bytes for partition in held]) >= _FULL_BYTES

    def _messages(self, work: Work) -> Sequence[OutMessage]:
        return [
            row_of(one, work.record) if one.topic == TABLE else one
            for one in super()._messages(work)
        ]
