"""Partitions that come and go, as the member's polling thread lives through it.

Unassignment follows when the revoke callback returns, so the callback blocks: nothing new starts,
what runs is waited for, async attempts are cancelled, and frontier and map are committed and
acknowledged. Only then may another member have the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft.core.epochs import Assignment
from weft.core.partition import Partition
from weft.core.spec import EXACTLY_ONCE
from weft.core.starting import Found, OffsetLost, Start, resolve
from weft.core.states import IDLE
from weft.kafka.ports import KafkaUnavailable, TopicPartition
from weft.runtime.logs import event

if TYPE_CHECKING:
    from weft.runtime.member import Member

_log = logging.getLogger("weft")

FIND_S = 5.0
FIND_AGAIN_S = 0.5
LAST_TRANSACTION_S = 5.0
CANCEL_GRACE_S = 0.5


class Rebalance:
    """The member's RebalanceListener."""

    def __init__(self, member: Member) -> None:
        self._member = member
        #: assigned, but their start could not be read yet -> which assignment that was
        self.waiting: dict[TopicPartition, int] = {}
        self._assignments = 0

    # -- assigned ----------------------------------------------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Read what is committed and open an epoch for each."""
        self._assignments += 1
        began = self._member.now()
        if not self._member.consumer.assign_may_block:
            self.find_later(partitions)
            return {}
        try:
            found = self._member.consumer.find(partitions, FIND_S)
        except KafkaUnavailable as error:
            event(_log, "warning", "assigned, offsets unreadable", reason=str(error))
            self.find_later(partitions)
            return {}
        return self._assigned(found, began)

    def _assigned(
        self, found: dict[TopicPartition, Found], began: float
    ) -> dict[TopicPartition, int]:
        """Open the epochs and say so."""
        starts = self.open(found)
        seconds = round(self._member.now() - began, 3)
        event(_log, "info", "assigned", partitions=names(list(found)), seconds=seconds)
        return starts

    def find_later(self, partitions: Sequence[TopicPartition]) -> None:
        """Read their offsets in the background and begin them then."""
        token, began = self._assignments, self._member.now()
        self.waiting.update(dict.fromkeys(partitions, token))
        self._member.background(lambda: self._find_again(list(partitions), token, began))

    def _find_again(self, partitions: list[TopicPartition], token: int, began: float) -> None:
        """On the background thread: until it can be read, or the partitions are gone."""
        while not self._member.ending:
            left = [where for where in partitions if self.waiting.get(where) == token]
            if not left:
                return
            try:
                found = self._member.consumer.find(left, FIND_S)
            except KafkaUnavailable:
                self._member.pause_background(FIND_AGAIN_S)
            else:
                self._member.on_poll_thread(partial(self._begin, found, token, began))
                return

    def _begin(self, found: dict[TopicPartition, Found], token: int, began: float) -> None:
        ours = {where: one for where, one in found.items() if self.waiting.get(where) == token}
        for where in ours:
            del self.waiting[where]
        if ours:
            for where, offset in self._assigned(ours, began).items():
                self._member.consumer.begin(where, offset)

    def open(self, found: dict[TopicPartition, Found]) -> dict[TopicPartition, int]:
        """Begin an epoch for each; where to fetch from."""
        member = self._member
        found = member.config.topic_ids.fresh(found)
        assignments = []
        for where, one in found.items():
            start = resolve(one, member.config.on_offset_lost)
            if isinstance(start, OffsetLost):
                member.fail(f"{where[0]}[{where[1]}]: {start.reason}")
                continue
            assignments.append(self._assignment(where, start))
        if not assignments:
            return {}
        opened = member.door.call(lambda engine, now: engine.assigned(now, assignments))
        for partition in opened:
            where = (partition.topic, partition.number)
            member.partitions[where] = partition
            partition.lag_end = found[where].log_end
            partition.committed = (
                -1 if found[where].committed is None else found[where].committed or 0
            )
        member.callbacks.call(member.config.on_assign, [(p.topic, p.number) for p in opened])
        return {(one.topic, one.partition): one.start for one in assignments}

    def _assignment(self, where: TopicPartition, start: Start) -> Assignment:
        if start.warning:
            event(_log, "warning", start.warning, topic=where[0], partition=where[1])
        return Assignment(
            where[0],
            where[1],
            self._member.config.route(where[0]),
            start.offset,
            start.restored_top,
            start.restored_not_done,
            start.commit_start,
        )

    # -- revoked -----------------------------------------------------------------------------------

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish what runs, commit, close the epochs."""
        member = self._member
        began = self._member.now()
        ours = self._take(partitions)
        if member.door.broken is not None:
            return  # what the engine holds may be wrong: commit nothing of it
        member.door.call(lambda engine, now: engine.revoking(now, ours))
        for executor in member.executors:
            executor.warn(ours)
        finished = self._wait(lambda: quiet(ours), member.revoke_wait_s())
        if not finished:
            self._cancel(ours)
        ended = self._end_transactions(ours)
        stored = member.committer.send_last(ours) and ended
        member.door.call(lambda engine, now: engine.closed(now, ours))
        member.config.topic_ids.closed(ours)
        event(
            _log,
            "info",
            "revoked",
            partitions=names(partitions),
            seconds=round(self._member.now() - began, 3),
            finished=finished,
            committed=stored,
        )
        member.callbacks.call(member.config.on_revoke, list(partitions))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop everything; commit nothing."""
        member = self._member
        ours = self._take(partitions)
        if member.door.broken is not None:
            return
        running = member.door.call(lambda engine, _: engine.running(ours))
        member.door.call(lambda engine, now: engine.closed(now, ours, lost=True))
        member.config.topic_ids.closed(ours)
        for work in running:  # another member is at them already
            member.executors[work.partition.handler.index].cancel(work, expired=False)
        event(_log, "warning", "lost", partitions=names(partitions))
        member.callbacks.call(member.config.on_revoke, list(partitions))

    def _take(self, partitions: Sequence[TopicPartition]) -> list[Partition]:
        for where in partitions:
            self.waiting.pop(where, None)
        held = [self._member.partitions.pop(where, None) for where in partitions]
        return [partition for partition in held if partition is not None]

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait inside the callback, where only we can serve the commit answers."""
        member = self._member
        deadline = member.now() + timeout_s
        while not done():
            if (now := member.now()) >= deadline:
                return False
            if now >= member.door.wakes_at:  # a refused transaction is due again, a call has hung
                member.tick_engine(now)
            member.committer.send_planned()
            member.committer.take(member.consumer.commit_answers(0.005))
            member.lease.renew()
            member.door.turn()
        return True

    def _cancel(self, partitions: list[Partition]) -> None:
        """Time is up: end the attempts that can be ended."""
        for work in self._member.door.call(lambda engine, _: engine.running(partitions)):
            executor = self._member.executors[work.partition.handler.index]
            executor.cancel(work, expired=False)
        self._wait(lambda: quiet(partitions), CANCEL_GRACE_S if self._member.patient else 0.05)

    def _end_transactions(self, partitions: list[Partition]) -> bool:
        """exactly_once: what is handled goes into a last transaction, which ends before we do."""
        ours = [p for p in partitions if p.handler.spec.delivery == EXACTLY_ONCE]
        if not ours or self._member.transactor is None:
            return True

        def settled() -> bool:
            return not any(p.claims or p.commit_state != IDLE for p in ours)

        return self._wait(settled, LAST_TRANSACTION_S)


def quiet(partitions: Sequence[Partition]) -> bool:
    """Nothing of them is with a handler, being produced, or waiting for a mark."""
    return not any(p.in_flight or p.sending for p in partitions) and not any(
        p.claims and p.sent_plan for p in partitions if p.handler.spec.delivery == "at_most_once"
    )


def names(partitions: Sequence[TopicPartition]) -> str:
    """`orders[0-2,5] users[4]`, for people: a topic may have thousands."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    shown = (f"{topic}[{_runs(sorted(held))}]" for topic, held in sorted(topics.items()))
    return " ".join(shown) or "none"


def _runs(numbers: Sequence[int]) -> str:
    """Ascending numbers as runs: `0-2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
