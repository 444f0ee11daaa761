"""`until="drained"`: detect that all records present at the start are finished.

The ends of all partitions are read once. A partition is finished when the group's frontier has
reached its end, by any member, or when all its remaining records are parked. Of a topic that is
deleted or recreated, and of a truncated log, only what exists is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from perkey.account.account import is_held
from perkey.account.shown import shown_key, shown_text
from perkey.core import states
from perkey.core.engine import Engine
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.runtime.logs import event
from perkey.runtime.member.rebalance import names
from perkey.types import TopicPartition

_log = logging.getLogger("perkey")

ANSWER_S = 10.0
OTHERS_EVERY_S = 1.0
STANDSTILL_S = 60.0
#: interval of queries for logs that do not reach their end any more; after this many such answers
#: in a row it is believed: a new leader, or a broker's metadata, may be a moment behind
LOGS_EVERY_S, SHORT_MAX = 10.0, 3
#: a wait for held records is looked for, and logged, so often
HELD_AFTER_S, HELD_EVERY_S = 2.0, 60.0
#: time limit for such a query: the thread that sends it also watches the run
LOGS_S = 3.0


class Reachable:
    """The ends that the logs still reach."""

    def __init__(self, admin: AdminPort) -> None:
        self._admin = admin
        self._due = time.monotonic() + LOGS_EVERY_S
        #: partitions whose log ends earlier -> number of such answers in a row
        self._short: dict[TopicPartition, int] = {}

    def of(self, left: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """These ends without what does not exist. May wait, now and then."""
        if time.monotonic() < self._due or not left:
            return left
        try:
            topics = sorted({topic for topic, _ in left})
            ends = self._admin.ends(topics, committed=False, timeout_s=LOGS_S)
        except KafkaUnavailable as error:
            _log.debug("the ends of the logs cannot be read now: %s", error)
            return left
        finally:
            self._due = time.monotonic() + LOGS_EVERY_S
        short = [where for where, end in left.items() if ends.get(where, 0) < end]
        self._short = {where: self._short.get(where, 0) + 1 for where in short}
        gone = [where for where, looks in self._short.items() if looks >= SHORT_MAX]
        if not gone:
            return left
        event(
            "warning",
            "records to drain no longer exist: a topic was deleted or recreated, or its log "
            "truncated",
            partitions=names(gone),
            records=sum(left[where] - ends.get(where, 0) for where in gone),
        )
        lower = {where: ends.get(where, 0) for where in gone}
        return {where: end for where, end in (left | lower).items() if end > 0}


def held_of(
    left: Mapping[TopicPartition, int], now: float, ours: Mapping[TopicPartition, Partition]
) -> dict[str, object] | None:
    """If only held records, and what queues behind them, are waited for: how many, until when.

    Called inside the door; the fields of a log line.
    """
    held: list[Work] = []
    for where, end in left.items():
        partition = ours.get(where)
        if partition is None or partition.position < end > partition.frontier:
            return None
        for work in partition.unfinished(end):
            if work is None or work.state not in states.WAITING:
                return None
            if is_held(work):
                held.append(work)
            elif work.state in (states.RETRYING, states.ASKED):
                return None
    if not held:
        return None
    last = max(held, key=lambda work: work.failure.due if work.failure else 0.0)
    due = last.failure.due if last.failure is not None else now
    by = None if last.failure is None else last.failure.held_by
    return {
        "records": len(held),
        "key": shown_key(last.record.key),
        "until": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + due - now)),
        **({} if by is None or not by.reason else {"reason": shown_text(by.reason)}),
    }


class Drain:
    """Compares the group's progress with the ends."""

    def __init__(
        self,
        admin: AdminPort,
        group: str,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """`starts` and `ends` as they are now; empty partitions are finished already."""
        self._admin = admin
        self._group = group
        self._others_due = 0.0
        self._reachable = Reachable(admin)
        #: when the wait for held records is logged next
        self._held_due = time.monotonic() + HELD_AFTER_S
        #: all is done here, and the last commit is in flight
        self.acknowledging = False
        #: replaced as a whole
        self._left = {where: end for where, end in ends.items() if end > starts.get(where, 0)}
        #: partitions of others -> their committed offset, and since when it has not moved
        self._standing: dict[TopicPartition, tuple[int | None, float]] = {}

    def finished(
        self, engine: Engine, now: float, ours: Mapping[TopicPartition, Partition]
    ) -> bool:
        """Whether nothing remains, and the broker knows; called inside the door for own partitions.

        Own partitions stay on the list: if one is lost before its last commit, the member that gets
        it still has to reach the end.
        """
        self.acknowledging = False
        left = self._left  # another thread may check other members' partitions meanwhile
        held = {where: ours[where] for where in left if where in ours}
        if not all(passed(partition, left[where]) for where, partition in held.items()):
            return False
        if len(held) < len(left) and not self._stalemate(held):
            return False
        self.acknowledging = not all(
            acknowledged(partition, left[where]) for where, partition in held.items()
        )
        if self.acknowledging:
            engine.commit_soon(now)
        return not self.acknowledging

    def held_line(
        self, now: float, ours: Mapping[TopicPartition, Partition]
    ) -> dict[str, object] | None:
        """The fields of the line that the drain waits for held records; None if none is due.

        Called inside the door.
        """
        if time.monotonic() < self._held_due:
            return None
        line = held_of(self._left, now, ours)
        self._held_due = time.monotonic() + (HELD_AFTER_S if line is None else HELD_EVERY_S)
        return line

    def _stalemate(self, held: Mapping[TopicPartition, Partition]) -> bool:
        """Whether this member has parked records and others are idle: they probably wait for it.

        Parked records of other members are not visible here, and two members that both have some
        would wait for each other forever. The first to leave passes its partitions to the other.
        """
        still = time.monotonic() - STANDSTILL_S
        others = [where for where in self._left if where not in held]
        standing = all(self._standing.get(w, (None, still + 1))[1] <= still for w in others)
        return standing and any(partition.parked for partition in held.values())

    def look(self, ours: Collection[TopicPartition]) -> None:
        """Read what the group has committed for other members' partitions; may wait.

        And how far the logs still reach.

        `ours` is read again when the answer is there: it is the member's own dictionary, not a
        copy.
        """
        if time.monotonic() < self._others_due:
            return
        self._others_due = time.monotonic() + OTHERS_EVERY_S
        self._left = self._reachable.of(self._left)
        elsewhere = sorted(set(self._left) - set(ours))
        if not elsewhere:
            return
        try:
            committed = self._admin.group_offsets(self._group, elsewhere, ANSWER_S)
            past = [tp for tp in elsewhere if (committed.get(tp) or 0) > self._left[tp]]
            topics = sorted({topic for topic, _ in past})
            ends = self._admin.ends(topics, committed=False, timeout_s=ANSWER_S) if past else {}
        except KafkaUnavailable as error:
            _log.debug("the group's offsets cannot be read now: %s", error)
            return
        self._standing = {tp: at for tp, at in self._standing.items() if tp in elsewhere}
        # Partitions assigned to this member meanwhile are skipped: at_most_once commits a record
        # before its call, so the answer may include calls of this member that still run.
        for where in sorted(set(elsewhere) - set(ours)):
            offset = committed.get(where)
            if where not in self._standing or self._standing[where][0] != offset:
                self._standing[where] = (offset, time.monotonic())
            # Beyond the log's end it is of another log, and irrelevant for this one.
            if offset is not None and self._left[where] <= offset <= ends.get(where, offset):
                self._left = {place: end for place, end in self._left.items() if place != where}


def acknowledged(partition: Partition, end: int) -> bool:
    """Whether the broker has stored everything up to this end."""
    if partition.settled:
        return True
    # While records keep coming there is always something to commit; only the part before counts.
    return partition.committed >= min(partition.frontier, end)


def passed(partition: Partition, end: int) -> bool:
    """Whether nothing before this end changes any more: done, or parked."""
    if partition.state == states.CLOSED:
        return False  # lost since it was looked up: its records are forgotten, not done
    if partition.position < end > partition.frontier:
        return False
    # Parked, or behind a parked record in its lane: only a release or restart changes it.
    return all(
        work is not None
        and (
            work.state == states.PARKED
            or (work.state == states.QUEUED and work.charge is not None and work.charge.parked)
        )
        for work in partition.unfinished(end)
    )
