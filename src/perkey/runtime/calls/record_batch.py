"""`perkey.RecordBatch`, the argument of a batch handler, and its acknowledgements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

from perkey.errors import OutOfOrder
from perkey.types import Record, T


class Acknowledging(Protocol):
    """The call that a batch belongs to, in this process or in a worker process."""

    explicit: bool

    def ack(self, index: int, outputs: Any) -> None:
        """The record at this index is done."""

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """The attempt of the record at this index failed."""


class Nacked(Exception):
    """The record was not acknowledged by its batch handler."""


class RecordBatch(Sequence[Record[T]]):
    """Records of one call, in order within each lane; acknowledged together or one by one."""

    def __init__(
        self,
        call: Acknowledging,
        records: Sequence[Record[T]],
        cancel_event: threading.Event | None = None,
    ) -> None:
        """Created by Perkey; `records` are the decoded ones."""
        self._call = call
        self._records = records
        self._index = {(r.topic, r.partition, r.offset): i for i, r in enumerate(records)}
        #: set once a partition of the batch is being revoked, or the app stops
        self.cancel_event = cancel_event or threading.Event()

    @overload
    def __getitem__(self, index: int) -> Record[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record[T]]: ...
    def __getitem__(self, index: int | slice) -> Record[T] | Sequence[Record[T]]:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record[T]]:
        return iter(self._records)

    def __repr__(self) -> str:
        return f"<RecordBatch of {len(self)}>"

    def ack(self, record: Record[T], outputs: Any = None) -> None:
        """Mark the record as done, whatever happens to the rest of the batch.

        `outputs` takes the same values that a single-record handler may return. Raises OutOfOrder
        while an earlier record of its lane in this batch is not acknowledged, ValueError for a
        record of another batch.
        """
        self._check_explicit()
        self._call.ack(self._find(record), outputs)

    def nack(self, record: Record[T], error: BaseException | str | None = None) -> None:
        """Fail this attempt of the record; the same as leaving it out, with a reason."""
        self._check_explicit()
        self._call.nack(self._find(record), error)

    def _check_explicit(self) -> None:
        if not self._call.explicit:
            raise TypeError('this batch is acknowledged as a whole: use Batch(ack="explicit")')

    def only(self, indexes: Sequence[int]) -> RecordBatch:
        """The same call with fewer records: a ledger leaves out those that it knows."""
        kept = [self._records[index] for index in indexes]
        return RecordBatch(self._call, kept, self.cancel_event)

    def _find(self, record: Record[T]) -> int:
        try:
            return self._index[record.topic, record.partition, record.offset]
        except KeyError:
            raise ValueError(f"{record!r} is not in this batch") from None

    @property
    def cancelled(self) -> bool:
        """Whether a partition of the batch is being revoked, or the app stops."""
        return self.cancel_event.is_set()

    async def wait_cancelled(self) -> None:
        """Return once `cancelled` is true."""
        from asyncio import sleep  # on use: a worker of plain handlers loads no loop

        while not self.cancel_event.is_set():  # noqa: ASYNC110  # a threading.Event, set elsewhere
            # Set from other threads: polling needs no future per waiter.
            await sleep(0.01)


class Acks:
    """Which records of one batch are done, which have failed, and whether its call is over.

    Used for calls in this process and in worker processes.
    """

    def __init__(self, records: Sequence[Record], ordering: str) -> None:
        """`records`: as fetched, in the order of the batch."""
        self._records = records
        self._before = earlier_in_lane(records, ordering)
        self._acked = [False] * len(records)
        self._nacks: dict[int, BaseException | None] = {}
        self._over = False
        self._lock = threading.Lock()

    def check(self, index: int) -> None:
        """Raises OutOfOrder while an earlier record of its lane is not acknowledged."""
        before = self._before[index]
        if before is not None and not self._acked[before]:
            raise OutOfOrder(
                f"{self._records[before]!r} comes before {self._records[index]!r} in its lane and "
                "is not acknowledged"
            )

    def ack(self, index: int, report: Callable[[], None]) -> bool:
        """The record is done; calls `report` unless it was done before, or the call is over.

        After the call has ended, other code owns the record. Nothing is reported after that end.
        """
        with self._lock:
            if self._over or self._acked[index]:
                return False
            self._acked[index] = True
            self._nacks.pop(index, None)
            report()
            return True

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """The attempt of this record failed. ValueError for one that is acknowledged."""
        if self._acked[index]:
            raise ValueError(f"{self._records[index]!r} is acknowledged already")
        self._nacks[index] = Nacked(error) if isinstance(error, str) else error

    def left(self) -> list[int]:
        """The records that are not acknowledged."""
        return [index for index, acked in enumerate(self._acked) if not acked]

    def end(self) -> list[int]:
        """End the call; returns the records that are not acknowledged. No more are accepted."""
        with self._lock:
            self._over = True
            return self.left()

    def why(self, index: int, otherwise: BaseException | None) -> BaseException | None:
        """The handler's result for a remaining record, or how its call ended."""
        return self._nacks.get(index) or otherwise


def earlier_in_lane(records: Sequence[Record], ordering: str) -> list[int | None]:
    """For each record, the one before it in its lane within the batch."""
    last: dict[Any, int] = {}
    before: list[int | None] = []
    for index, record in enumerate(records):
        own = ordering == "unordered" or (ordering == "key" and record.key is None)
        lane = (record.topic, record.partition, record.key if ordering == "key" else None)
        before.append(None if own else last.get(lane))
        last[lane] = index
    return before
