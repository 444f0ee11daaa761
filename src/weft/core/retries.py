"""Retry delays by policy, and the schedule of all waiting records."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

from weft.core import states
from weft.core.events import DELAY_MAX_S

if TYPE_CHECKING:
    from weft.core.work import Failure, Work
    from weft.policies import Retry

_Entry = tuple[float, int, "Work"]


class RetrySchedule:
    """Records that wait for their next attempt, or are parked for a time, ordered by due time."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._order = count()  # equal times keep their order of arrival

    def __len__(self) -> int:
        return len(self._heap)

    def waiting(self) -> int:
        """How many of them still wait (the epochs of the others have ended)."""
        return sum(entry[2].state == states.RETRYING for entry in self._heap if _live(entry))

    def forget(self) -> None:
        """Epochs ended: drop their records once they are most of the entries."""
        live = [entry for entry in self._heap if _live(entry)]
        if 2 * len(live) < len(self._heap):
            heapq.heapify(live)
            self._heap = live

    def add(self, due: float, work: Work) -> None:
        """`work` may be tried again at `due`."""
        ticket = next(self._order)
        if work.failure is not None:
            work.failure.due, work.failure.ticket = due, ticket
        heapq.heappush(self._heap, (due, ticket, work))

    def due(self, now: float) -> list[Work]:
        """Remove and return every record that is due; those of ended epochs are dropped."""
        heap, works = self._heap, []
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if _live(entry):
                works.append(entry[2])
        return works

    def next_due(self) -> float | None:
        """When the next record is due."""
        heap = self._heap
        while heap and not _live(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None


def _live(entry: _Entry) -> bool:
    """Whether its record still waits for this time: it may have been released, and failed again."""
    _, ticket, work = entry
    failure = work.failure
    waits = work.state in (states.RETRYING, states.PARKED)
    return waits and failure is not None and failure.ticket == ticket


def spread(offset: int, partition: int, attempt: int) -> float:
    """A share in [0, 1) that differs between records and attempts, and is the same in every run.

    Jitter needs spread values, not unpredictable ones, and the core may not draw random numbers:
    Knuth's multiplicative hash (TAOCP vol. 3, 6.4) of the record's place.
    """
    return ((offset * 31 + partition * 17 + attempt) * 2654435761 & 0xFFFFFFFF) / 2**32


def retry_delay_s(retry: Retry, work: Work, asked_s: float | None) -> float:
    """Seconds until the next attempt; `asked_s` is from RetryAfter or the callable."""
    if asked_s is not None:
        return min(max(0.0, asked_s), DELAY_MAX_S)
    if callable(retry.delay_s):  # the runtime has called it; None means that it raised
        return 1.0
    failure = work.failure
    attempts = 1 if failure is None else max(1, failure.attempts - failure.shared)
    delay = _grown_s(retry, attempts)
    share = spread(work.record.offset, work.record.partition, attempts)
    return delay * (1.0 + retry.jitter * (2.0 * share - 1.0))


def _grown_s(retry: Retry, times: int) -> float:
    """The policy's delay after this many failures in a row, without its jitter."""
    assert not callable(retry.delay_s)
    # The exponent is capped: 2.0 ** 2000 is an OverflowError, and the delay has a maximum anyway.
    return min(retry.delay_s * retry.multiplier ** min(times - 1, 64), retry.delay_max_s)


def batch_delay_s(retry: Retry, failure: Failure, good_calls: int, asked_s: float | None) -> float:
    """Seconds until the halves of a batch that failed as one are tried; one delay for all.

    It grows by the policy while nothing succeeds, as in an outage. If another batch of the handler
    (`good_calls`: how many did) has succeeded since, the search is for one bad record, and the
    healthy ones beside it should not wait.
    """
    if failure.good_calls != good_calls:
        failure.rounds, failure.good_calls = 0, good_calls
    failure.rounds += 1
    if asked_s is not None:
        return asked_s
    return 1.0 if callable(retry.delay_s) else _grown_s(retry, failure.rounds)
