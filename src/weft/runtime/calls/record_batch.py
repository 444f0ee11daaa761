"""`weft.RecordBatch`: the argument of a batch handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, overload

from weft.types import Record, T


class Acknowledging(Protocol):
    """The call that a batch belongs to: in this process, or in a worker process."""

    explicit: bool

    def ack(self, index: int, outputs: Any) -> None:
        """The record at this place is done."""

    def nack(self, index: int, error: BaseException | str | None) -> None:
        """The attempt of the record at this place failed."""


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
        """Made by Weft; `records` are the decoded ones."""
        self._call = call
        self._records = records
        self._index = {(r.topic, r.partition, r.offset): i for i, r in enumerate(records)}
        #: set once a partition of the batch is being taken away, or the app stops
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
        """The record is done, whatever happens to the rest of the batch.

        `outputs` is what a single handler would return. Raises OutOfOrder while an earlier record
        of its lane in this batch is not acknowledged, ValueError for a record of another batch.
        """
        self._check_explicit()
        self._call.ack(self._find(record), outputs)

    def nack(self, record: Record[T], error: BaseException | str | None = None) -> None:
        """This attempt of the record failed; the same as leaving it out, with a reason."""
        self._check_explicit()
        self._call.nack(self._find(record), error)

    def _check_explicit(self) -> None:
        if not self._call.explicit:
            raise TypeError('this batch is acknowledged as a whole: use Batch(ack="explicit")')

    def only(self, indexes: Sequence[int]) -> RecordBatch:
        """The same call with fewer records: a ledger leaves out those it knows."""
        kept = [self._records[index] for index in indexes]
        return RecordBatch(self._call, kept, self.cancel_event)

    def _find(self, record: Record[T]) -> int:
        try:
            return self._index[record.topic, record.partition, record.offset]
        except KeyError:
            raise ValueError(f"{record!r} is not in this batch") from None

    @property
    def cancelled(self) -> bool:
        """A partition of the batch is being taken away, or the app stops."""
        return self.cancel_event.is_set()

    async def wait_cancelled(self) -> None:
        """Return once `cancelled` is true."""
        while not self.cancel_event.is_set():  # noqa: ASYNC110  # a threading.Event, set elsewhere
            # Set from other threads: a look every so often needs no future of each waiter.
            await asyncio.sleep(0.01)
