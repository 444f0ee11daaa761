"""What is committed, when, and what follows from the answer.

Each partition has at most one commit on the way. With no answer in time it is in doubt: what the
broker holds is read back before the next is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from weft.core import effects as fx
from weft.core import states
from weft.core.batching import Batching
from weft.core.endings import Endings
from weft.core.partition import Partition
from weft.core.plans import Plans
from weft.core.spec import AT_MOST_ONCE, EXACTLY_ONCE
from weft.core.state import EngineState
from weft.core.window import reopen
from weft.core.work import Work
from weft.types import Committed, ErrorInfo

Verdict = Literal["stored", "retry", "too_large", "gone", "stop"]


class Answer(NamedTuple):
    """What the broker said of one partition of a commit."""

    partition: Partition
    sequence: int
    verdict: Verdict
    reason: str = ""


class Commits:
    """Builds commit plans and takes in their answers."""

    def __init__(
        self, state: EngineState, endings: Endings, batching: Batching, plans: Plans
    ) -> None:
        self._plans = plans
        self._state = state
        self._endings = endings
        self._batching = batching
        self._sequence = 0
        self._next_at = 0.0
        #: sequence of the transaction on the way; None when there is none
        self._transaction: int | None = None

    # -- when ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Commit what is due."""
        state, limits = self._state, self._state.limits
        many = limits.commit.max_records
        if state.now >= self._next_at or (many and state.finished_since_commit >= many):
            self._next_at = state.now + limits.commit.interval_s
            # While a commit is on the way, what finished since is not in it: `many` is still due.
            waits = any(
                p.dirty and p.commit_state == states.SENT for p in state.partitions.values()
            )
            state.finished_since_commit = many if many and waits else 0
            self._commit(list(state.partitions.values()))
        elif state.claiming:
            self._commit(list(state.claiming))

    def soon(self) -> None:
        """Do not wait for the interval this time."""
        self._next_at = self._state.now

    def next_due(self) -> float | None:
        """When there is something to do for the commits, as far as is known now."""
        due = [self._next_at]
        for partition in self._state.partitions.values():
            if partition.commit_state == states.SENT:
                due.append(partition.commit_at)  # noqa: PERF401 - two conditions read best as loops
        for partition in self._state.claiming:
            if partition.commit_state == states.IDLE and partition.commit_at > self._state.now:
                due.append(partition.commit_at)  # noqa: PERF401 - see above
        return min(due)

    # -- what ------------------------------------------------------------------------------------

    def _commit(self, partitions: Iterable[Partition]) -> None:
        plans, transactional = [], []
        for partition in partitions:
            if partition.handler.spec.delivery == EXACTLY_ONCE:
                transactional.append(partition)
            elif self._due(partition):
                plans.append(self._plans.plan(partition))
        plain = [item for item in plans if item is not None]
        if plain:
            self._send(fx.CommitOffsets, plain)
        if transactional and self._transaction is None:
            items = self._whole([self._plans.plan(p) for p in transactional if self._due(p)])
            if items:
                self._transaction = self._send(fx.Transact, items)

    def _whole(self, plans: Sequence[fx.PlanItem | None]) -> list[fx.PlanItem]:
        """Records that share outputs go into one transaction, or all of them wait."""
        items = [item for item in plans if item is not None]
        torn = self._torn(items)
        if not any(id(work.extra) in torn for item in items for work in item.claims if torn):
            return [item for item in items if item.claims or item.partition.dirty]
        return self._whole([self._plan_without(item.partition, torn) for item in items])

    def _torn(self, items: Sequence[fx.PlanItem]) -> set[int]:
        """Outputs of records that are not all in these plans; only batches share outputs."""
        if all(handler.spec.batch is None for handler in self._state.handlers):
            return set()
        inside = {id(work) for item in items for work in item.claims}
        return {
            id(work.extra)
            for partition in self._state.claiming
            for work in partition.claims
            if work.extra is not None and id(work) not in inside
        }

    def _plan_without(self, partition: Partition, torn: set[int]) -> fx.PlanItem | None:
        """Without these, and without what came after one of them in its lane.

        The lane has gone on since: its later outputs may not appear before the earlier ones.
        """
        left, waiting = [], set()
        for work in partition.claims:
            lane = partition.lane_key(work.record)
            if id(work.extra) in torn or lane in waiting:
                waiting.add(lane)
            else:
                left.append(work)
        return self._plans.plan(partition, left)

    def _due(self, partition: Partition) -> bool:
        return (
            (partition.dirty or bool(partition.claims))
            and partition.commit_state == states.IDLE
            and partition.state != states.CLOSED
            and partition.commit_at <= self._state.now
        )

    def last(self, partitions: Sequence[Partition]) -> fx.CommitOffsets:
        """The final commit of partitions that go away; sent by the caller, answered as others."""
        plans = [self._plans.plan(partition) for partition in partitions]
        items = [item for item in plans if item is not None]
        return fx.CommitOffsets(self._mark_sent(items), items)

    def proof(self) -> fx.CommitOffsets | None:
        """One partition as it stands, dirty or not; None where each has a commit on the way."""
        for partition in self._state.partitions.values():
            idle = partition.commit_state == states.IDLE and partition.state == states.OPEN
            if idle and partition.handler.spec.delivery != EXACTLY_ONCE:
                return self.last([partition])
        return None

    def _send(self, kind: type[fx.CommitOffsets | fx.Transact], items: list[fx.PlanItem]) -> int:
        self._state.emit(kind(self._mark_sent(items), items))
        return self._sequence

    def _mark_sent(self, items: list[fx.PlanItem]) -> int:
        self._sequence += 1
        for item in items:
            partition = item.partition
            partition.commit_state = states.SENT
            partition.commit_sequence = self._sequence
            partition.commit_at = self._state.now + self._state.limits.commit_answer_s
            partition.sent_plan = item
            partition.dirty = False
            # What is left out waits for something to change, not for this answer.
            partition.crowded = len(item.claims) < len(partition.claims)
        return self._sequence

    # -- answers ---------------------------------------------------------------------------------

    def answered(self, answers: Sequence[Answer]) -> None:
        """The broker has answered a commit."""
        stored = []
        for answer in answers:
            partition = answer.partition
            if (
                partition.commit_sequence != answer.sequence
                or partition.commit_state == states.IDLE
            ):
                self._state.counts["late_commit_answers"] += 1
                continue
            partition.commit_state = states.IDLE
            partition.commit_at = 0.0
            if answer.verdict == "stored":
                stored.append(self._stored(partition))
            else:
                self._refused(partition, answer)
        if stored:
            self._state.emit(fx.CommitsStored(stored))

    def _stored(self, partition: Partition) -> Committed:
        item = partition.sent_plan
        assert item is not None
        partition.sent_plan = None
        partition.committed = item.frontier
        partition.map_stored = len(item.metadata)
        if partition.crowded:  # the same commit again would say nothing new
            partition.commit_at = self._state.now + self._state.limits.commit_retry_s
        if item.claims:
            self._settle(partition, item.claims)
        reopen(partition)
        return Committed(partition.topic, partition.number, item.frontier, item.done_beyond)

    def _refused(self, partition: Partition, answer: Answer) -> None:
        sent, partition.sent_plan = partition.sent_plan, None
        partition.dirty = True
        partition.commit_at = self._state.now + self._state.limits.commit_retry_s
        self._state.counts["commits_refused"] += 1
        if answer.verdict == "too_large":
            # The broker stores less than we thought: a smaller map, in the end none at all.
            # What it has stored before it stores again, and for two modes it must (see `plan`).
            if sent is not None and len(sent.metadata) <= partition.map_stored:
                partition.map_stored = 0  # unless the broker's limit was lowered since
            partition.map_limit = max(partition.map_limit // 2, partition.map_stored)
            self._state.note(
                "warning",
                "commit metadata refused as too large",
                topic=partition.topic,
                partition=partition.number,
                next_limit_chars=partition.map_limit,
                fix="raise offset.metadata.max.bytes on the broker to 4096",
            )
        elif answer.verdict == "stop":
            self._state.fail(f"commit refused for {partition!r}: {answer.reason}")
        elif answer.verdict == "gone":
            # Not ours any more: the rebalance that says so is on its way.
            partition.commit_at = self._state.now + 10 * self._state.limits.commit_retry_s

    def in_doubt(self) -> None:
        """Commits without an answer in time: ask what the broker holds."""
        doubtful = [
            partition
            for partition in self._state.partitions.values()
            if partition.commit_state == states.SENT
            and partition.commit_at <= self._state.now
            and partition.handler.spec.delivery != EXACTLY_ONCE
        ]
        for partition in doubtful:
            partition.commit_state = states.IN_DOUBT
            partition.commit_at = self._state.now + self._state.limits.commit_answer_s
        if doubtful:
            self._state.counts["commits_in_doubt"] += len(doubtful)
            self._state.emit(fx.ReadCommitted(doubtful))

    def read_back(self, partition: Partition, offset: int | None, metadata: str) -> None:
        """What the broker holds of a commit in doubt; None where it could not be read."""
        if partition.commit_state != states.IN_DOUBT or partition.state == states.CLOSED:
            return
        item = partition.sent_plan
        assert item is not None
        if offset is None:
            partition.commit_state = states.SENT  # still in doubt: ask again later
            partition.commit_at = self._state.now + self._state.limits.commit_retry_s
        elif (offset, metadata) == (item.frontier, item.metadata):
            partition.commit_state, partition.commit_at = states.IDLE, 0.0
            self._state.emit(fx.CommitsStored([self._stored(partition)]))
        else:
            partition.commit_state, partition.commit_at = states.IDLE, 0.0
            partition.sent_plan, partition.dirty = None, True

    def transacted(
        self, sequence: int, *, committed: bool, refused: Sequence[tuple[Work, ErrorInfo]]
    ) -> list[tuple[Work, ErrorInfo]]:
        """The transaction has ended; which of the refused records must fail an attempt."""
        if sequence != self._transaction:
            return []
        self._transaction = None
        answers = [
            Answer(p, sequence, "stored" if committed else "retry")
            for p in self._state.partitions.values()
            if p.commit_state == states.SENT and p.commit_sequence == sequence
        ]
        self.answered(answers)
        for work, _ in refused:
            if work.state == states.PENDING:
                work.partition.claims.remove(work)
                if not work.partition.claims:
                    self._state.claiming.pop(work.partition, None)
        return [pair for pair in refused if pair[0].state == states.PENDING]

    # -- claims ----------------------------------------------------------------------------------

    def _settle(self, partition: Partition, claims: list[Work]) -> None:
        """The commit these records waited for is stored: each takes its next step."""
        if partition.claims[: len(claims)] == claims:  # mostly: the first ones, in their order
            del partition.claims[: len(claims)]
        else:
            settled = set(map(id, claims))
            partition.claims = [work for work in partition.claims if id(work) not in settled]
        if not partition.claims:
            self._state.claiming.pop(partition, None)
        spec = partition.handler.spec
        if spec.delivery == AT_MOST_ONCE:
            self._start_marked(partition, claims)
            return
        if spec.delivery == EXACTLY_ONCE:
            self._transacted(partition, claims)
        else:
            self._committed_each(partition, claims)
        partition.dirty = partition.dirty or bool(partition.claims)

    def _transacted(self, partition: Partition, claims: list[Work]) -> None:
        handler, reporting = partition.handler, self._state.reporting
        for work in claims:
            partition.settle(work)
            if work.failure is None and not reporting:
                handler.done += 1
            else:
                self._endings.complete(work)

    def _committed_each(self, partition: Partition, claims: list[Work]) -> None:
        for work in claims:
            partition.finish(work)
            if work in partition.slotless:
                partition.slotless.discard(work)
            else:
                partition.handler.free += 1
            self._endings.complete(work)

    def _start_marked(self, partition: Partition, claims: list[Work]) -> None:
        works = [work for work in claims if work.state == states.MARKING]  # else withdrawn
        for work in works:
            partition.mark(work)
        if not works:
            return
        handler = partition.handler
        if handler.spec.batch is not None:
            self._batching.marked(handler, works)
            return
        handler.time(works, self._state.now)
        self._state.emit(fx.Start(handler.index, works))
