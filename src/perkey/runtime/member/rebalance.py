"""Assignment and revocation of partitions, on the member's polling thread.

The partitions are given up when the revoke callback returns, so the callback blocks: nothing new
starts, running calls are awaited, async attempts are cancelled, and frontier and map are committed
and acknowledged. Only then may another member own the partition.

A consumer that librdkafka has given up is recreated once the membership is free (`Rejoining`). One
case is a static member that was killed under KIP-848: until its session ends, its successor gets
the error that the instance id is still in use, which is final for that librdkafka client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from perkey.account.shown import runs
from perkey.core.commits import Found, OffsetLost, resolve
from perkey.core.events import Assignment
from perkey.core.partition import Partition
from perkey.kafka.ports import KafkaUnavailable, Problem
from perkey.runtime.logs import event
from perkey.runtime.member.committing import Committer, MembershipProof
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.member.member_config import MemberConfig
from perkey.types import TopicPartition

FIND_S = 5.0
#: time limit inside the rebalance callback, which blocks all other partitions
ASSIGN_FIND_S = 0.5
FIND_AGAIN_S = 0.5
ANSWER_AGAIN_S = 0.02
CANCEL_GRACE_S = 0.5
#: interval of log lines about an unreadable partition
LOG_S = 30.0
#: the first and the longest wait before the next consumer
REJOIN_FIRST_S, REJOIN_MOST_S = 0.5, 5.0
REJOIN_CALM_S = 60.0  # after this long without a problem, the waits start over
REJOIN_LEAVE_S = 2.0
REJOIN_LOOK_S = 0.05


NOT_YET, NO_LEADER = "not looked up yet", "it has no leader that answers"


class Waiting(NamedTuple):
    """An assigned partition whose start offset could not be read yet."""

    #: the assignment that it belongs to
    token: int
    since: float
    #: why its start is not known
    reason: str = NOT_YET


class _Look(NamedTuple):
    """Partitions whose start offset is being looked up."""

    partitions: list[TopicPartition]
    #: the assignment that they belong to
    token: int
    began: float
    log_at: float


class TimeLeft(Protocol):
    """How long a member that may be ending waits."""

    @property
    def patient(self) -> bool:
        """Whether a stop still has time left."""

    def revoke_until(self, began: float) -> float:
        """Until when to wait for what is in flight; it can become earlier meanwhile."""

    def last_transaction_until(self, began: float) -> float:
        """Until when to wait for a last transaction; it can become earlier meanwhile."""


class Rebalance:
    """The member's RebalanceListener."""

    def __init__(
        self,
        membership: GroupMembership,
        config: MemberConfig,
        committer: Committer,
        proof: MembershipProof,
        time_left: TimeLeft,
        tick: Callable[[float], None],
    ) -> None:
        """`tick` lets the engine do what is due."""
        self._membership = membership
        self._config = config
        self._committer = committer
        self._proof = proof
        self._time_left = time_left
        self._tick_engine = tick
        #: written by the polling thread, read by any
        self.waiting: dict[TopicPartition, Waiting] = {}
        self._assignments = 0
        #: when to look up again, and for which partitions
        self._later: list[tuple[float, _Look]] = []

    # -- assigned ----------------------------------------------------------------------------------

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Read their commits and open an epoch for each."""
        self._assignments += 1
        began = self._membership.now()
        if not self._membership.consumer.assign_may_block or self._committer.under_way(partitions):
            self.find_later(partitions)
            return {}
        reason = NO_LEADER
        with self._proof.waits("the start offsets of its assignment"):
            try:
                starts = self._membership.consumer.find(partitions, ASSIGN_FIND_S)
            except KafkaUnavailable as error:
                starts, reason = {}, str(error)
            if left := [where for where in partitions if where not in starts]:
                event("info", "assigned, waits for offsets", partitions=names(left), reason=reason)
                self.find_later(left, reason)
            return self._assigned(starts, began) if starts else {}

    def _assigned(
        self, found: dict[TopicPartition, Found], began: float
    ) -> dict[TopicPartition, int]:
        starts = self.open(found)
        seconds = round(self._membership.now() - began, 3)
        event("info", "assigned", partitions=names(list(found)), seconds=seconds)
        self._config.on_found(found)
        return starts

    def find_later(self, partitions: Sequence[TopicPartition], reason: str = NOT_YET) -> None:
        """Read their offsets in the background and start them then; `reason`: why not before."""
        token, began = self._assignments, self._membership.now()
        self.waiting.update(dict.fromkeys(partitions, Waiting(token, began, reason)))
        look = _Look(list(partitions), token, began, began + LOG_S)
        self._look(look)

    def tick(self, now: float) -> None:
        """Called often on the polling thread: look up again what could not be read."""
        due = [look for at, look in self._later if now >= at]
        if due:
            self._later = [(at, look) for at, look in self._later if now < at]
            for look in due:
                self._look(look)

    def _look(self, look: _Look) -> None:
        """Start a look-up on the background thread, once no commit of this member is in flight.

        Such a commit would count for the new epoch, and for a recreated topic that was never
        committed.
        """
        if self._committer.under_way(look.partitions):
            self._later.append((self._membership.now() + ANSWER_AGAIN_S, look))
        else:
            self._membership.background(partial(self._find, look))

    def _find(self, look: _Look) -> None:
        """On the background thread, which is shared: look up once."""
        left = [where for where in look.partitions if self._waits(where, look.token)]
        if not left:
            return
        reason = NO_LEADER
        try:
            starts = self._membership.consumer.find(left, FIND_S)
            if silent := [where for where in left if where not in starts]:
                reason = self._membership.consumer.leader_of(silent[0]) or NO_LEADER
        except Exception as error:  # of any kind: it is looked up again, or never started
            starts, reason = {}, str(error) or type(error).__name__
        self._membership.on_poll_thread(partial(self._found, look, left, starts, reason))

    def _waits(self, where: TopicPartition, token: int) -> bool:
        """Whether it still waits for its start, in this assignment."""
        waiting = self.waiting.get(where)
        return waiting is not None and waiting.token == token

    def _found(
        self,
        look: _Look,
        asked: list[TopicPartition],
        found: dict[TopicPartition, Found],
        reason: str,
    ) -> None:
        """On the polling thread: start what could be read; look up the rest again."""
        if found:
            self._begin(found, look.token, look.began)
        left = [where for where in asked if where not in found and self._waits(where, look.token)]
        if left:
            now = self._membership.now()
            self.waiting.update(dict.fromkeys(left, Waiting(look.token, look.began, reason)))
            if now >= look.log_at:
                event(
                    "warning",
                    "assigned, start offset unknown",
                    partitions=names(left),
                    seconds=round(now - look.began, 1),
                    reason=reason,
                )
                look = look._replace(log_at=now + LOG_S)
            self._later.append((now + FIND_AGAIN_S, look._replace(partitions=left)))

    def _begin(self, found: dict[TopicPartition, Found], token: int, began: float) -> None:
        ours = {where: start for where, start in found.items() if self._waits(where, token)}
        for where in ours:
            del self.waiting[where]
        if ours:
            with self._proof.waits("the ids of the topics of its assignment"):
                starts = self._assigned(ours, began)
            for where, offset in starts.items():
                self._membership.consumer.begin(where, offset)

    def open(self, found: dict[TopicPartition, Found]) -> dict[TopicPartition, int]:
        """Open an epoch for each; returns the offsets to fetch from."""
        membership = self._membership
        found = self._config.topic_ids.fresh(found)
        assignments = []
        for where, assignment in found.items():
            start = resolve(assignment, self._config.on_offset_lost)
            if isinstance(start, OffsetLost):
                membership.fail(f"{where[0]}[{where[1]}]: {start.reason}")
                continue
            if start.warning:
                event("warning", start.warning, topic=where[0], partition=where[1])
            assignments.append(
                Assignment(
                    where[0],
                    where[1],
                    self._config.route(where[0]),
                    start.offset,
                    start.restored_top,
                    start.restored_not_done,
                    start.commit_start,
                    -1 if assignment.committed is None else assignment.committed,
                    assignment.log_end,
                    start.remembered,
                    time.time(),
                )
            )
        if not assignments:
            return {}
        opened = membership.door.call(lambda engine, now: engine.assigned(now, assignments))
        membership.partitions.update((partition.where, partition) for partition in opened)
        membership.callbacks.call(
            self._config.on_assign, [assignment.where for assignment in opened]
        )
        return {
            (assignment.topic, assignment.partition): assignment.start for assignment in assignments
        }

    # -- revoked -----------------------------------------------------------------------------------

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish running calls, commit, close the epochs."""
        membership = self._membership
        began = self._membership.now()
        ours = self._take(partitions)
        if membership.door.broken is not None:
            return  # the engine's state may be wrong: commit nothing of it
        membership.door.call(lambda engine, now: engine.revoking(now, ours))
        for executor in membership.executors:
            executor.warn(ours)
        finished = self._wait(partial(quiet, ours), partial(self._time_left.revoke_until, began))
        if not finished:
            for work in membership.door.call(lambda engine, _: engine.running(ours)):
                membership.executors[work.partition.handler.index].cancel(work)
            grace_s = CANCEL_GRACE_S if self._time_left.patient else 0.05
            cancelled_by = self._membership.now() + grace_s
            self._wait(partial(quiet, ours), lambda: cancelled_by)
        ended = self._end_transactions(ours)
        with self._proof.waits("the last commit of revoked partitions"):
            stored = self._committer.send_last(ours) and ended
        membership.door.call(lambda engine, now: engine.closed(now, ours))
        self._forget(ours)
        if partitions:  # a member that has none leaves, too
            event(
                "info",
                "revoked",
                partitions=names(partitions),
                seconds=round(self._membership.now() - began, 3),
                finished=finished,
                committed=stored,
            )
            membership.callbacks.call(self._config.on_revoke, list(partitions))

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop everything; commit nothing."""
        membership = self._membership
        ours = self._take(partitions)
        if membership.door.broken is not None:
            return
        running = membership.door.call(lambda engine, _: engine.running(ours))
        membership.door.call(lambda engine, now: engine.closed(now, ours, lost=True))
        self._forget(ours)
        for executor in membership.executors:
            executor.warn(ours)
        for work in running:  # another member may run them already
            membership.executors[work.partition.handler.index].cancel(work)
        event("warning", "lost", partitions=names(partitions))
        if partitions:
            membership.callbacks.call(self._config.on_revoke, list(partitions))

    def _forget(self, ours: Sequence[Partition]) -> None:
        self._config.topic_ids.closed(ours)
        for plan in self._config.plans:
            self._membership.door.call(plan.forget_ended)

    def _take(self, partitions: Sequence[TopicPartition]) -> list[Partition]:
        for where in partitions:
            self.waiting.pop(where, None)
        held = [self._membership.partitions.pop(where, None) for where in partitions]
        return [partition for partition in held if partition is not None]

    def _wait(self, done: Callable[[], bool], until: Callable[[], float]) -> bool:
        """Wait inside the callback, where only this thread can serve the commit answers.

        `until` is asked in each round: a stop that comes meanwhile leaves less time.
        """
        membership = self._membership
        while not done():
            if (now := membership.now()) >= until():
                return False
            if now >= membership.door.wakes_at:  # a refused transaction is due again, a call hangs
                self._tick_engine(now)
            self._committer.send_planned()
            self._committer.take(membership.consumer.commit_answers(0.005))
            self._proof.renew()
            membership.door.turn()
        return True

    def _end_transactions(self, partitions: list[Partition]) -> bool:
        """exactly_once: commit handled records in a last transaction before the partitions go.

        Also a position without a following record: a start behind the group's commit, or one whose
        transaction was refused. One that is not waited for is aborted by the broker, or stored: the
        next member starts where it ended.
        """
        ours = [p for p in partitions if p.handler.exact]
        if not ours or self._config.make_transactor is None:
            return True

        def all_committed() -> bool:
            if any(p.claiming or p.committing for p in ours):
                return False
            if all(p.committed >= p.frontier and not p.commits_again for p in ours):
                return True
            self._membership.door.call(lambda engine, now: engine.commit_soon(now))
            return False

        began = self._membership.now()
        return self._wait(all_committed, partial(self._time_left.last_transaction_until, began))


def quiet(partitions: Sequence[Partition]) -> bool:
    """Whether none of their records is in a handler, being produced, or being marked."""
    return not any(p.in_flight or p.sending for p in partitions) and not any(
        p.claiming and p.committing for p in partitions if p.handler.spec.delivery == "at_most_once"
    )


def names(partitions: Sequence[TopicPartition]) -> str:
    """`orders[0-2,5] users[4]`, for log lines: a topic may have thousands."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    shown = (f"{topic}[{','.join(runs(sorted(held)))}]" for topic, held in sorted(topics.items()))
    return " ".join(shown) or "none"


class Rejoining:
    """The polling thread's time without a consumer; used by that thread only."""

    def __init__(
        self, membership: GroupMembership, lose_all: Callable[[], None], join: Callable[[], None]
    ) -> None:
        """`lose_all` ends every epoch; `join` joins the group with a new consumer."""
        self._membership = membership
        self._lose_all = lose_all
        self._join = join
        self._wait_s = REJOIN_FIRST_S
        self._began_at = float("-inf")
        #: when the next consumer is created; None while there is one
        self._again_at: float | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is no consumer now."""
        return self._again_at is not None

    def begin(self, problem: Problem) -> None:
        """Give up the consumer and every partition; the next one is created after a wait."""
        now = self._membership.now()
        calm = now - self._began_at > REJOIN_CALM_S
        self._wait_s = REJOIN_FIRST_S if calm else min(REJOIN_MOST_S, 2 * self._wait_s)
        self._began_at = now
        event(
            "warning",
            "recreating the consumer",
            code=problem.code,
            reason=problem.reason,
            wait_s=self._wait_s,
        )
        self._lose_all()
        self._membership.consumer.leave(REJOIN_LEAVE_S)
        self._again_at = self._membership.now() + self._wait_s

    def step(self) -> None:
        """Instead of a poll: wait a moment, or join again."""
        assert self._again_at is not None
        if self._membership.now() < self._again_at:
            self._membership.pause(REJOIN_LOOK_S)
            return
        self._again_at = None
        self._join()
