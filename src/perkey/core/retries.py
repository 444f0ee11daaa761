"""When a record that failed is tried again, or given up because it has been parked for too long.

`RetrySchedule` has all records that wait for a time: their next attempt, the end of a hold, or
their release. `retry_delay_s` is the delay of the policy.

`Relief`: `Park(dead_letter=)`, parked records that go to the dead-letter topic before they cost
more. A record is due while the taken share of the map is at least `at_map`
(`Partition.map_share`), or once it has been parked for `after_s`. Of those the one with the lowest
offset is given up by the way of any exhausted record (endings.py), and the lane continues::

    PARKED ──due, and the oldest──► QUEUED ──its bytes are here──► SENDING ──stored──► DONE
      ▲                                                               │
      └──────────────── refused: not again for `REFUSED_S` ───────────┘

One at a time for each partition: each makes room, and perhaps enough of it.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

from perkey.core import states
from perkey.core.events import DELAY_MAX_S
from perkey.core.gates import TRANSACTION

if TYPE_CHECKING:
    from perkey.core.endings import Endings
    from perkey.core.engine_state import EngineState
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler
    from perkey.core.work import Failure, Work
    from perkey.policies import Retry
    from perkey.types import TopicPartition

_Entry = tuple[float, int, "Work"]


class RetrySchedule:
    """Records that wait for their next attempt, or are parked for a time, ordered by due time."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        #: records whose time has come while their batch still runs a later one of their lane -> the
        #: number of their entry
        self._with_mates: dict[Work, int] = {}
        self._order = count()  # equal times keep their order of arrival

    def __len__(self) -> int:
        return len(self._heap)

    def waiting(self) -> int:
        """How many of them still wait (the epochs of the others have ended)."""
        entries = [*self._heap, *((0.0, number, work) for work, number in self._with_mates.items())]
        return sum(entry[2].state != states.PARKED for entry in entries if _live(entry))

    def forget(self) -> None:
        """Epochs ended: drop their records once they are most of the entries."""
        for work in [work for work in self._with_mates if work.state == states.SUPERSEDED]:
            del self._with_mates[work]
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

    def wait_for_mates(self, work: Work, failure: Failure) -> None:
        """Its time has come; its batch still runs a later record of its lane."""
        self._with_mates[work] = failure.ticket

    def batches_moved(self, now: float) -> None:
        """Records of batches have ended: those that waited for them are due."""
        for work, number in list(self._with_mates.items()):
            waits = _live((now, number, work))
            if waits and work.partition.lanes.mate_runs(work):
                continue
            del self._with_mates[work]
            if waits:
                self.add(now, work)

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
    waits = work.state in (states.RETRYING, states.HELD, states.PARKED)
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


# -- parked for too long ---------------------------------------------------------------------------

LOOK_S = 0.5  # interval of checks of each partition with parked records
LOG_LINE = "a parked record goes to the dead-letter topic"
#: a record that was given up is on its way in any other state
SETTLED = (states.DONE, states.SUPERSEDED, *states.REMEMBERED)


class Relief:
    """Gives up parked records."""

    def __init__(self, state: EngineState, endings: Endings) -> None:
        self._state = state
        self._endings = endings
        #: by partition the record that is on its way, and the time of the next look
        self._going: dict[TopicPartition, Work] = {}
        self._looks: dict[TopicPartition, float] = {}

    def look(self, handler: Handler) -> None:
        """Give up one record of each of its partitions, where that is due."""
        state = self._state
        if not handler.standing or state.now < handler.relieve_at:
            return
        # Its calls may wait for a service: a dead letter does not.
        if state.gate.reasons or TRANSACTION in handler.gate.reasons:
            return
        handler.relieve_at = state.now + LOOK_S
        if state.stop_mode is not None:
            return
        for partition in state.partitions.values():
            if partition.handler is not handler or not partition.parked or partition.gate.reasons:
                continue
            last = self._going.get(partition.where)
            going = last is not None and last.failure is not None and last.failure.given_up
            if last is not None and (last.state in SETTLED or not going):
                del self._going[partition.where]
            elif last is not None or state.now < self._looks.get(partition.where, 0.0):
                continue
            self._looks[partition.where] = state.now + LOOK_S
            self._give_up(partition, partition.map_share)

    def _give_up(self, partition: Partition, share: float) -> None:
        """Give up the oldest parked record that is due, if any."""
        now, parked = self._state.now, states.PARKED
        for work in partition.offsets.works():
            if work.state != parked:  # nearly all of a full buffer: first, as it costs least
                continue
            policy, failure = work.parked_by, work.failure
            if failure is None or policy is None or not policy.dead_letter:
                continue
            full = share >= policy.at_map
            over = policy.after_s is not None and failure.ticket >= 0 and failure.due <= now
            if not (full or over) or failure.own_due > now or not partition.is_free(work, now):
                continue
            because = "at_map" if full else "after_s"
            self._going[partition.where] = work
            self._state.note(
                "warning", LOG_LINE, topic=partition.topic, partition=partition.number,
                offset=work.offset, to=policy.topic_for(partition.topic), because=because,
                map_share=round(share, 3),
            )  # fmt: skip
            self._endings.relieve(work, failure, f"{because}, {share:.0%} of the map is taken")
            return
