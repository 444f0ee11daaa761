"""A commit's path: planned inside the door, sent by the polling thread, acknowledged by the broker.

A plan may wait a moment before it is sent, and meanwhile its partition may get its last commit and
be revoked. Sent after that, the plan would commit an older frontier, and the broker would accept
it. So each item is checked again when it is sent: only the newest plan of an open epoch goes out.

librdkafka resends a commit by itself if the broker answers "not now" or dies before it answers:
sent behind later commits, it would move the frontier back. So each partition has one commit in
librdkafka at a time. A plan is held until the earlier one is answered, however long ago Perkey
stopped waiting for that and read back the stored offset; newer plans replace it meanwhile. The last
commit of an epoch and the next epoch of the partition wait for the answer, too, but not for long.

A commit also proves that this member is still in its group (`MembershipProof`). A process that was
stopped (SIGSTOP, a suspended machine, a debugger) for longer than its session has lost its
partitions without knowing: the polling thread serves the callback that reports it, and a worker may
be faster. So every thread in the door checks when the polling thread last ran a round. If that is
too long ago, nothing starts until the broker has stored a commit from this member.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Answer
from perkey.core.gates import MEMBERSHIP
from perkey.core.partition import Partition
from perkey.kafka.ports import CommitAnswer, ToCommit
from perkey.runtime.histogram import CALL_S, Histogram
from perkey.runtime.logs import event
from perkey.runtime.member.group_membership import GroupMembership
from perkey.runtime.suspension import SUSPENDED_S, since_boot
from perkey.types import TopicPartition

READ_S = 5.0
LAST_COMMIT_S = 3.0
#: of that, how long to wait for one answer before the commit is read back again
LAST_ANSWER_S = 1.0
#: how long a last commit is repeated for topics that do not exist: a broker may not know them yet
LAST_MISSING_S = 0.3
AGAIN_S = 0.05
#: after so long a new epoch starts without the answer; if it still comes, commits are repeated
ANSWER_S = 5.0
#: librdkafka answers each commit within its `socket.timeout.ms`; a plan is held no longer than that
RESENT_S = 60.0
#: how long to wait for a commit that proves the membership, and when the next one is sent
PROOF_S, PROOF_AGAIN_S = 5.0, 0.2

Known = dict[TopicPartition, Partition]


class Committer:
    """The commits of one member."""

    def __init__(
        self, membership: GroupMembership, clock: Callable[[], float] | None = None
    ) -> None:
        """`clock`: monotonic seconds, `time.monotonic` unless given."""
        self._membership, self._clock = membership, clock or time.monotonic
        #: called with the sequence of each answered commit, and whether all of it was stored
        self.on_answered: Callable[[int, bool], None] = lambda _sequence, _stored: None
        #: any thread adds, the polling thread takes
        self._planned: deque[fx.CommitOffsets] = deque()
        #: used by the polling thread. Sent and not answered: token -> sequence of its plan, and its
        #: partitions
        self._sent: dict[int, tuple[int, Known]] = {}
        self._sent_at: dict[int, float] = {}
        #: the newest token of each partition, until it is answered
        self._newest: dict[TopicPartition, int] = {}
        #: planned, but an earlier commit of the partition is not answered
        self._held: list[fx.CommitOffsets] = []
        #: seconds from a commit to its answer
        self.took = Histogram(CALL_S)

    def plan(self, commit: fx.CommitOffsets) -> None:
        """Send this soon. Any thread, also inside the door."""
        self._planned.append(commit)
        self._membership.wake()

    @property
    def waiting(self) -> bool:
        """Whether a plan may be sent immediately."""
        return bool(self._planned)

    # -- on the polling thread ---------------------------------------------------------------------

    def send_planned(self) -> None:
        """Send the plans; never waits. For use inside a rebalance callback too."""
        planned, self._held = self._held, []
        planned += [self._planned.popleft() for _ in range(len(self._planned))]
        for commit in planned:
            ready: list[fx.PlanItem] = []
            held: list[fx.PlanItem] = []
            for item in commit.items:
                if _holds(item, commit.sequence):
                    waits = self._unanswered(item.partition.where, RESENT_S)
                    (held if waits else ready).append(item)
            if ready:
                known = _known(ready)
                try:
                    token = self._membership.consumer.commit(offsets_of(ready))
                except Exception as error:  # refused before it was sent
                    answers = [CommitAnswer(0, *where, "retry", str(error)) for where in known]
                    self._report(commit.sequence, known, answers)
                else:
                    self._sent[token] = (commit.sequence, known)
                    self._sent_at[token] = self._clock()
                    self._newest.update(dict.fromkeys(known, token))
            if held:
                self._held.append(commit._replace(items=held))

    def take(self, answers: Sequence[CommitAnswer]) -> None:
        """Process answers to commits, whole requests at a time."""
        by_token: dict[int, list[CommitAnswer]] = {}
        for answer in answers:
            by_token.setdefault(answer.token, []).append(answer)
        for token, group in by_token.items():
            sequence, known = self._sent.pop(token, (0, {}))
            if (sent_at := self._sent_at.pop(token, None)) is not None:
                self.took.observe(self._clock() - sent_at)
            for where in known:
                if self._newest.get(where) == token:
                    del self._newest[where]
            self._report(sequence, known, group)

    def under_way(self, where: Collection[TopicPartition], within_s: float = ANSWER_S) -> bool:
        """Whether a recent commit that names one of these is not answered."""
        return any(self._unanswered(place, within_s) for place in where)

    def _unanswered(self, where: TopicPartition, within_s: float) -> bool:
        token = self._newest.get(where)
        return token is not None and self._clock() - self._sent_at[token] < within_s

    def forget(self) -> None:
        """The consumer was replaced: commits of the former one get no answer."""
        self._sent.clear()
        self._sent_at.clear()
        self._newest.clear()

    def send_last(self, partitions: Sequence[Partition]) -> bool:
        """Send one last commit of a last snapshot, wait for its answer; whether it was stored."""
        membership = self._membership
        began = self._clock()
        deadline = began + LAST_COMMIT_S
        where = [partition.where for partition in partitions]
        while self.under_way(where, RESENT_S) and self._clock() < deadline - LAST_ANSWER_S:
            self.take(membership.consumer.commit_answers(AGAIN_S))
        while (left_s := deadline - self._clock()) > 0:
            plan = membership.door.call(lambda engine, now: engine.last_commit(now, partitions))
            if not plan.items:
                return True
            wait_s = min(left_s, LAST_ANSWER_S)
            answers = membership.consumer.commit_and_wait(offsets_of(plan.items), wait_s)
            self._report(plan.sequence, _known(plan.items), answers)
            verdicts = {answer.verdict for answer in answers}
            if verdicts == {"stored"}:
                return True
            if "missing" in verdicts and self._clock() - began >= LAST_MISSING_S:
                verdicts.remove("missing")  # of a deleted topic: nothing of it is left to commit
            if answers and not verdicts & {"retry", "missing", "too_large"}:
                return False  # without an answer it may be stored or not: it is sent once more
            self.take(membership.consumer.commit_answers(AGAIN_S))
        return False

    def _report(self, sequence: int, known: Known, answers: Sequence[CommitAnswer]) -> None:
        doubtful = [
            Answer(known[one.topic, one.partition], sequence, one.verdict, one.reason)
            for one in answers
            if (one.topic, one.partition) in known
        ]
        if doubtful:
            self._membership.door.call(lambda engine, now: engine.commit_answered(now, doubtful))
            stored = all(one.verdict == "stored" for one in doubtful)
            self.on_answered(sequence, stored)

    # -- on the background thread ---------------------------------------------------------------

    def read_back(self, partitions: Sequence[Partition]) -> None:
        """Read back what the broker stores for commits in doubt; may wait."""
        where = [partition.where for partition in partitions]
        values: list[tuple[Partition, int | None, str]]
        try:
            held = self._membership.consumer.committed(where, READ_S)
        except Exception:  # of any kind: the engine requests it again
            values = [(p, None, "") for p in partitions]
        else:
            read = zip(partitions, [held[place] for place in where], strict=True)
            values = [(p, -1 if offset is None else offset, text) for p, (offset, text) in read]
        self._membership.door.call(lambda engine, now: engine.committed_read(now, values))


def _holds(item: fx.PlanItem, sequence: int) -> bool:
    """Whether it is still the newest plan of its partition, in an open epoch."""
    partition = item.partition
    return partition.last_sent == sequence and partition.state != states.CLOSED


def _known(items: Sequence[fx.PlanItem]) -> Known:
    return {item.partition.where: item.partition for item in items}


def offsets_of(items: Sequence[fx.PlanItem]) -> list[ToCommit]:
    """The offsets and metadata of these plans, for Kafka."""
    return [ToCommit(*item.partition.where, item.frontier, item.metadata) for item in items]


class MembershipProof:
    """Confirms the membership after a suspension, for the polling thread; see `Door.trusted`."""

    def __init__(
        self, membership: GroupMembership, commit: Callable[[fx.CommitOffsets], None]
    ) -> None:
        """`commit` sends a commit that proves the membership."""
        self._membership = membership
        self._commit = commit
        # Used by the polling thread only.
        #: sequence of the commit that proves it; None if none is in flight
        self._proof: int | None = None
        self._ask_at = 0.0
        #: what the polling thread waits for, or has waited for while membership is in doubt; read
        #: by any thread
        self.waited_for = ""
        self._waits = False

    @contextmanager
    def waits(self, what: str) -> Iterator[None]:
        """The polling thread waits for a broker: if for long, this is why it was blocked.

        The next round takes note of it: a proof that is planned inside a rebalance callback would
        be sent behind the last commit of what is revoked.
        """
        self.waited_for, self._waits = what, True
        try:
            yield
        finally:
            self._waits = False

    def renew(self) -> None:
        """The polling thread runs a round."""
        door, now = self._membership.door, since_boot()
        if now - door.round_at > SUSPENDED_S:
            # Before this time stamp changes, the door must see that it is late.
            door.call(lambda _engine, _now: None)
            event(
                "warning",
                "the polling thread was blocked",
                seconds=round(now - door.round_at, 3),
                **({"waited_for": self.waited_for} if self.waited_for else {}),
            )
        door.round_at = now
        if not (door.in_doubt or self._waits):
            self.waited_for = ""
        if door.in_doubt:
            # Prove the membership by a commit, where one is possible.
            membership = self._membership
            # A transaction is fenced by itself.
            if all(p.handler.exact for p in membership.partitions.values()):
                self._lift()
            elif now >= self._ask_at:
                plan = membership.door.call(lambda engine, now: engine.proof_commit(now))
                if plan is not None:
                    self._proof, self._ask_at = plan.sequence, now + PROOF_S
                    self._commit(plan)

    def answered(self, sequence: int, stored: bool) -> None:  # noqa: FBT001  # the callback's
        """A commit was answered; possibly the one that proves the membership."""
        if sequence != self._proof:
            return
        self._proof, self._ask_at = None, since_boot() + PROOF_AGAIN_S
        if stored:
            self._lift()

    def _lift(self) -> None:
        door = self._membership.door
        door.in_doubt, self._proof, self.waited_for = False, None, ""
        door.post(lambda engine, now: engine.halt(now, MEMBERSHIP, on=False))
