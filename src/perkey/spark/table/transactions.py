"""A transaction whose rows go into the table: the table first, then the group's offsets.

1. outputs to topics (dead letters, `Produce(topic=...)`) are produced: at least once;
2. the rows are sent to the committer, which adds them with their offsets: exactly once;
3. the group's offsets are committed, in a separate Kafka transaction.

A kill between 2 and 3 leaves the group behind the table: the next owner of the partition starts
where the table is (`TableConsumer`), and repeated rows are recognised by their offsets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perkey.core import effects as fx
from perkey.core.commits import Found
from perkey.core.work import Work
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.connect import RealConnection
from perkey.kafka.consumer import KafkaConsumer
from perkey.kafka.ports import (
    Delivery,
    OutMessage,
    ReadBack,
    ToCommit,
    TransactionEnd,
    TransactionsPort,
)
from perkey.kafka.settings import ClientSettings
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.member.transactor import Transactor
from perkey.spark.table.line import TableLine
from perkey.spark.table.ownership import UNKNOWN_GENERATION
from perkey.spark.table.progress import ahead
from perkey.spark.table.rows import REFUSED, Row, as_rows, refusal, row_of, values_of
from perkey.spark.table.sink import TABLE
from perkey.types import Sent, TopicPartition

# -- pace ------------------------------------------------------------------------------------------
# When a member sends its rows: at an interval, earlier if much waits or it must end.


#: After a revocation, this member's last transaction and those of others must not wait.
_HURRY_S = 10.0
_LOOK_S = 0.05


class TablePace:
    """The time until the next transaction. Any thread may request speed; one thread waits."""

    def __init__(self, interval_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._now = interval_s, now
        self._due = now() + interval_s
        self._hurried_until = 0.0
        self._woken = threading.Event()

    def hurry(self, seconds: float = _HURRY_S) -> None:
        """Do not wait from now on, for this many seconds."""
        self._hurried_until = max(self._hurried_until, self._now() + seconds)
        self._woken.set()

    @property
    def hurried(self) -> bool:
        """Whether a thread has requested speed."""
        return self._now() < self._hurried_until

    def wait(self, due: Callable[[], bool]) -> None:
        """Wait for the end of the interval, a request for speed, or another reason."""
        while self._now() < self._due and not self.hurried and not due():
            self._woken.wait(_LOOK_S)
            self._woken.clear()

    def answered(self) -> None:
        """Start the next interval: all members whose rows were added together start it together."""
        self._due = self._now() + self._interval_s


#: limit of waiting outputs: half of what one transaction takes
_FULL_BYTES = 4 * 2**20
#: After this many refusals in a row because of others' claims the member restarts: one that lost
#: its partitions learns of it earlier.
STALE_MAX = 5
STALE_REST_S = 0.5


class TableTransactions:
    """A TransactionsPort. Not thread-safe."""

    def __init__(self, inner: TransactionsPort, line: TableLine, pace: TablePace) -> None:
        """`inner`: for what goes to Kafka."""
        self._inner, self._line = inner, line
        self.pace = pace
        #: do not wait for the interval; do not wait at all
        self.due: Callable[[], bool] = lambda: False
        self.over: Callable[[], bool] = lambda: False
        #: how often in a row others had claimed its partitions
        self.stale = 0

    def open(self) -> None:
        """Start under this member's id."""
        self._inner.open()

    def transact(
        self,
        messages: Sequence[OutMessage],
        offsets: Sequence[ToCommit],
        membership: Any,
        read_back: ReadBack,
    ) -> TransactionEnd:
        """Rows into the table, then the offsets; after a failure, both are repeated."""
        deliveries: list[Delivery | None] = [None] * len(messages)
        rows = {at: one for at, one in enumerate(messages) if isinstance(one, Row)}
        table, bad = as_rows(list(rows.values()), self._line.columns)
        if table is None:
            names, places = values_of(self._line.columns).names, list(rows)
            for one, reason in bad.items():
                deliveries[places[one]] = Delivery(None, refusal(reason, names))
            return TransactionEnd("aborted", deliveries)
        others = {at: one for at, one in enumerate(messages) if at not in rows}
        if others:
            end = self._inner.transact(list(others.values()), [], membership, read_back)
            for at, answer in zip(others, end.deliveries, strict=True):
                deliveries[at] = answer
            # A reason means that the outcome had to be found out, which needs offsets.
            if end.outcome != "committed" or end.reason:
                outcome = "aborted" if end.outcome == "committed" else end.outcome
                return replace(end, outcome=outcome, deliveries=deliveries)
        added: Mapping[str, Any] | None = {"version": 0}
        if rows:
            added = self._line.hand_over(table, offsets, self.due, self.over)
            self.stale = self.stale + 1 if added and "stale" in added else 0
        if added is None:
            return TransactionEnd("aborted", deliveries, "the table: the driver does not answer")
        if "stale" in added:
            reason = f"the table: another member has claimed {added['stale']}"
            return TransactionEnd("aborted", deliveries, reason)
        if "error" in added:  # it takes no rows any more: nothing can be committed
            return TransactionEnd("fenced", deliveries, f"the table: {added['error']}")
        for at, row in rows.items():
            deliveries[at] = Delivery(Sent(TABLE, 0, int(added["version"]), row.key), None)
        end = self._inner.transact([], offsets, membership, read_back)
        return replace(end, deliveries=deliveries)

    def is_refusal(self, delivery: Delivery | None) -> bool:
        """Whether it will never be a row, or the broker will never accept it."""
        if delivery is not None and delivery.error is not None and delivery.error.type == REFUSED:
            return True
        return self._inner.is_refusal(delivery)

    def close(self) -> None:
        """Stop."""
        self._inner.close()


class TableTransactor(Transactor):
    """Runs transactions at the table's pace, and knows each row's record."""

    def __init__(
        self, membership: GroupMembership, port: TransactionsPort, group: str, *, batches: bool
    ) -> None:
        super().__init__(membership, port, group, batches=batches)
        assert isinstance(port, TableTransactions)
        self._table = port
        port.due, port.over = self._due, membership.ended.is_set

    def _transact(self, effect: fx.Transact, membership: Any) -> None:
        pace, before = self._table.pace, self._table.stale
        pace.wait(self._due)
        super()._transact(effect, membership)
        pace.answered()
        if self._table.stale > before:
            self._membership.pause(STALE_REST_S)
        if self._table.stale == STALE_MAX:
            self._membership.fail("other members have claimed its partitions", may_restart=True)

    def _due(self) -> bool:
        """Whether the run ends, or much waits. Both values may be a moment old."""
        if self._table.pace.hurried or self._membership.door.engine.stop_mode is not None:
            return True
        held = list(self._membership.partitions.values())
        return sum([partition.outputs_bytes for partition in held]) >= _FULL_BYTES

    def _messages(self, work: Work) -> Sequence[OutMessage]:
        return [
            row_of(one, work.record) if one.topic == TABLE else one
            for one in super()._messages(work)
        ]


# -- connection ------------------------------------------------------------------------------------
# The clients of a member with a table: it starts where the table is, and writes to it.


_ANSWER_S = 5.0


class TableConnection(RealConnection):
    """Clients of a cluster, and a table."""

    def __init__(self, settings: ClientSettings, line: TableLine) -> None:
        super().__init__(settings)
        self.pace = TablePace(line.interval_s)
        self._line = line

    def consumer(self) -> TableConsumer:
        """A new consumer."""
        return TableConsumer(self.settings, self._line, self.pace)

    def transactions(self, transactional_id: str) -> TransactionsPort:
        """Rows into the table, the rest under this id."""
        return TableTransactions(super().transactions(transactional_id), self._line, self.pace)


class TableConsumer(KafkaConsumer):
    """A consumer that claims its assigned partitions, and starts where the table is."""

    def __init__(self, settings: ClientSettings, line: TableLine, pace: TablePace) -> None:
        super().__init__(with_client_log(settings.consumer))
        self._settings, self._line, self._pace = settings, line, pace

    def _give_up(self, partitions: list[Any], *, lost: bool) -> None:
        if not lost:  # the next owner waits for this member: write handled records immediately
            self._pace.hurry()
        super()._give_up(partitions, lost=lost)

    def find(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, Found]:
        """Committed offsets with metadata, or the table's, and both ends of the log.

        Without those that a newer member has claimed: they are about to be revoked.
        """
        found = super().find(partitions, timeout_s)
        if not found:
            return found
        with KafkaAdmin(self._settings) as admin:
            topics = admin.describe(sorted({topic for topic, _ in found}), _ANSWER_S)
        ids = {topic: facts.topic_id for topic, facts in topics.items()}
        try:  # the generation, as this member knows it
            with self.membership() as membership:
                generation = membership.generation
        except RuntimeError:
            generation = UNKNOWN_GENERATION
        held = self._line.claim(found, ids, generation, timeout_s)
        return {where: ahead(one, held[where]) for where, one in found.items() if where in held}
