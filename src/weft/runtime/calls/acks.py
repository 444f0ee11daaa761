"""Explicit acknowledgement of one batch, the same for all executors.

`batches` uses it for calls in this process, `processes.worker` for those in a worker process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import OutOfOrder
from weft.runtime.calls.record_batch import Nacked
from weft.types import Record


class Acks:
    """Which records of one batch are done, which have failed, and whether its call is over."""

    def __init__(self, records: Sequence[Record], ordering: str) -> None:
        """`records`: as they came, in the order of the batch."""
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

        After the call has ended, a record belongs to other code. Nothing that it reports comes
        behind that end.
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
        """What is not acknowledged."""
        return [index for index, acked in enumerate(self._acked) if not acked]

    def end(self) -> list[int]:
        """The call is over; what is left of it. Nothing is acknowledged from now on."""
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
