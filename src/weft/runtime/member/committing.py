"""A commit's path: planned inside the door, sent by the polling thread, acknowledged by the broker.

What was planned may wait a moment, and in that moment its partition may be committed for the last
time and given away. Sent after that it would put back an older frontier, and the broker would take
it. So each item is looked at once more when it is sent: only the newest plan of an epoch that is
still open goes out.

librdkafka resends a commit by itself where the broker answers "not now" or dies before it answers:
behind later ones, and the frontier would go back. So each partition has one commit with librdkafka
at a time. A plan is held until the former one is answered, however long ago Weft gave up waiting
for that and read back what the broker holds; newer plans replace it meanwhile. The last commit of
an epoch and the next epoch of the partition wait for the answer, too, but not for long.

A commit also proves that this member is still in its group (`Lease`). A process that was stopped
(SIGSTOP, a suspended machine, a debugger) for longer than its session has lost its partitions
without knowing: the polling thread serves the callback that reports it, and a worker may be faster.
So every thread in the door checks when the polling thread last went round. If that is too long ago,
nothing starts until the broker has taken a commit from this member.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from weft.core import effects as fx
from weft.core import states
from weft.core.events import Answer
from weft.core.partition import Partition
from weft.kafka.ports import CommitAnswer, ToCommit
from weft.runtime.door import STOOD_STILL_S, since_boot
from weft.runtime.histogram import CALL_S, Histogram
from weft.runtime.logs import event
from weft.runtime.member.seat import Seat
from weft.types import TopicPartition

READ_S = 5.0
LAST_COMMIT_S = 3.0
#: of that, how long for one answer before it is asked again
LAST_ANSWER_S = 1.0
AGAIN_S = 0.05
#: a new epoch waits for no answer any longer; if it comes yet, what holds is committed again
ANSWER_S = 5.0
#: librdkafka answers each commit within its `socket.timeout.ms`; a plan is held no longer than that
RESENT_S = 60.0
#: how long a commit that is to prove the membership is waited for, and when the next one is sent
PROOF_S, PROOF_AGAIN_S = 5.0, 0.2

Known = dict[TopicPartition, Partition]


class Committer:
    """The commits of one member."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        #: called with the sequence of each commit with a response, and whether all of it is stored
        self.on_answered: Callable[[int, bool], None] = lambda _sequence, _stored: None
        #: any thread adds, the polling thread takes
        self._planned: deque[fx.CommitOffsets] = deque()
        #: of the polling thread; sent and not answered: token -> sequence of its plan, and its
        #: partitions
        self._sent: dict[int, tuple[int, Known]] = {}
        self._sent_at: dict[int, float] = {}
        #: the newest token of each partition, while it is not answered
        self._newest: dict[TopicPartition, int] = {}
        #: planned, and a former commit of the partition is not answered
        self._held: list[fx.CommitOffsets] = []
        #: seconds from a commit to its answer
        self.took = Histogram(CALL_S)

    def plan(self, commit: fx.CommitOffsets) -> None:
        """Send this soon. Any thread, also inside the door."""
        self._planned.append(commit)
        self._seat.wake()

    @property
    def waiting(self) -> bool:
        """Something is planned that may be sent at once."""
        return bool(self._planned)

    # -- on the polling thread ---------------------------------------------------------------------

    def send_planned(self) -> None:
        """Send what was planned; never waits. For use inside a rebalance callback too."""
        planned, self._held = self._held, []
        planned += [self._planned.popleft() for _ in range(len(self._planned))]
        for commit in planned:
            ready: list[fx.PlanItem] = []
            held: list[fx.PlanItem] = []
            for item in commit.items:
                if _holds(item, commit.sequence):
                    waits = self._unanswered(_where(item), RESENT_S)
                    (held if waits else ready).append(item)
            if ready:
                known = _known(ready)
                try:
                    token = self._seat.consumer.commit(_offsets(ready))
                except Exception as error:  # refused at once, before it was sent
                    answers = [CommitAnswer(0, *where, "retry", str(error)) for where in known]
                    self._report(commit.sequence, known, answers)
                else:
                    self._sent[token] = (commit.sequence, known)
                    self._sent_at[token] = time.monotonic()
                    self._newest.update(dict.fromkeys(known, token))
            if held:
                self._held.append(commit._replace(items=held))

    def take(self, answers: Sequence[CommitAnswer]) -> None:
        """Answers to commits sent before, whole requests at a time."""
        by_token: dict[int, list[CommitAnswer]] = {}
        for answer in answers:
            by_token.setdefault(answer.token, []).append(answer)
        for token, group in by_token.items():
            sequence, known = self._sent.pop(token, (0, {}))
            if (sent_at := self._sent_at.pop(token, None)) is not None:
                self.took.observe(time.monotonic() - sent_at)
            for where in known:
                if self._newest.get(where) == token:
                    del self._newest[where]
            self._report(sequence, known, group)

    def under_way(self, where: Collection[TopicPartition], within_s: float = ANSWER_S) -> bool:
        """A commit that names one of these was sent a moment ago and is not answered."""
        return any(self._unanswered(one, within_s) for one in where)

    def _unanswered(self, where: TopicPartition, within_s: float) -> bool:
        token = self._newest.get(where)
        return token is not None and time.monotonic() - self._sent_at[token] < within_s

    def forget(self) -> None:
        """The consumer is another one: the former one's commits get no response."""
        self._sent.clear()
        self._sent_at.clear()
        self._newest.clear()

    def send_last(self, partitions: Sequence[Partition]) -> bool:
        """One last commit from one last snapshot, answered when this returns; whether stored."""
        seat = self._seat
        deadline = time.monotonic() + LAST_COMMIT_S
        where = [(partition.topic, partition.number) for partition in partitions]
        while self.under_way(where, RESENT_S) and time.monotonic() < deadline - LAST_ANSWER_S:
            self.take(seat.consumer.commit_answers(AGAIN_S))
        while (left_s := deadline - time.monotonic()) > 0:
            plan = seat.door.call(lambda engine, now: engine.last_commit(now, partitions))
            if not plan.items:
                return True
            wait_s = min(left_s, LAST_ANSWER_S)
            answers = seat.consumer.commit_and_wait(_offsets(plan.items), wait_s)
            self._report(plan.sequence, _known(plan.items), answers)
            verdicts = {answer.verdict for answer in answers}
            if verdicts == {"stored"}:
                return True
            if verdicts and not verdicts & {"retry", "too_large"}:
                return False  # without a response it may be stored or not: sent once more, it is
            self.take(seat.consumer.commit_answers(AGAIN_S))
        return False

    def _report(self, sequence: int, known: Known, answers: Sequence[CommitAnswer]) -> None:
        found = [
            Answer(known[one.topic, one.partition], sequence, one.verdict, one.reason)
            for one in answers
            if (one.topic, one.partition) in known
        ]
        if found:
            self._seat.door.call(lambda engine, now: engine.commit_answered(now, found))
            stored = all(one.verdict == "stored" for one in found)
            self.on_answered(sequence, stored)

    # -- on the background thread ---------------------------------------------------------------

    def read_back(self, partitions: Sequence[Partition]) -> None:
        """What the broker holds of commits in doubt; may wait."""
        where = [(p.topic, p.number) for p in partitions]
        values: list[tuple[Partition, int | None, str]]
        try:
            held = self._seat.consumer.committed(where, READ_S)
        except Exception:  # whatever it is: the engine asks again once it is answered
            values = [(p, None, "") for p in partitions]
        else:
            read = zip(partitions, [held[one] for one in where], strict=True)
            values = [(p, -1 if offset is None else offset, text) for p, (offset, text) in read]
        self._seat.door.call(lambda engine, now: engine.committed_read(now, values))


def _holds(item: fx.PlanItem, sequence: int) -> bool:
    """It is still the newest word on its partition, and the partition is ours."""
    partition = item.partition
    return partition.last_sent == sequence and partition.state != states.CLOSED


def _known(items: Sequence[fx.PlanItem]) -> Known:
    return {_where(item): item.partition for item in items}


def _where(item: fx.PlanItem) -> TopicPartition:
    return item.partition.topic, item.partition.number


def _offsets(items: Sequence[fx.PlanItem]) -> list[ToCommit]:
    return [ToCommit(i.partition.topic, i.partition.number, i.frontier, i.metadata) for i in items]


class Lease:
    """Confirms the membership after a suspension, for the polling thread; see `Door.trusted`."""

    def __init__(self, seat: Seat, commit: Callable[[fx.CommitOffsets], None]) -> None:
        """`commit` sends a commit that is to prove it."""
        self._seat = seat
        self._commit = commit
        # All of the polling thread.
        #: sequence of the commit that is to prove it; None when none is on the way
        self._proof: int | None = None
        self._ask_at = 0.0

    def renew(self) -> None:
        """The polling thread goes round."""
        door, now = self._seat.door, since_boot()
        if now - door.round_at > STOOD_STILL_S:
            # No thread was faster: the door must see it before the mark moves.
            door.call(lambda _engine, _now: None)
            event(
                "warning",
                "the polling thread was blocked",
                seconds=round(now - door.round_at, 3),
            )
        door.round_at = now
        if door.in_doubt:
            # Have a commit prove that we are a member, where one can.
            seat = self._seat
            # A transaction is fenced by itself.
            if all(p.handler.exact for p in seat.partitions.values()):
                self._lift()
            elif now >= self._ask_at:
                plan = seat.door.call(lambda engine, now: engine.proof_commit(now))
                if plan is not None:
                    self._proof, self._ask_at = plan.sequence, now + PROOF_S
                    self._commit(plan)

    def answered(self, sequence: int, stored: bool) -> None:  # noqa: FBT001  # the callback's
        """A commit was answered; perhaps ours."""
        if sequence != self._proof:
            return
        self._proof, self._ask_at = None, since_boot() + PROOF_AGAIN_S
        if stored:
            self._lift()

    def _lift(self) -> None:
        door = self._seat.door
        door.in_doubt, self._proof = False, None
        door.post(lambda engine, now: engine.halt(now, "membership", on=False))
