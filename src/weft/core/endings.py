"""What becomes of a record when its call ends: done, sent on, tried again, or given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.core import effects as fx
from weft.core import states
from weft.core.charge import block_lane
from weft.core.failing import record_failure, retry_delay_s
from weft.core.spec import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from weft.core.state import EngineState
from weft.core.work import Failure, Work
from weft.policies import DeadLetter, Park, Skip
from weft.types import ErrorInfo, Sent

MATE_WAIT_S = 0.05  # how soon it is looked again whether a batch has let go of a lane


class Returned(NamedTuple):
    """The call returned outputs that must be acknowledged before the record is done."""

    work: Work
    outputs: Any


class Failed(NamedTuple):
    """The call failed. `delay_s` is what RetryAfter or the policy's callable asked for.

    `counts` is False where the attempt is not the record's fault (a batch that is split).
    """

    work: Work
    error: ErrorInfo
    final: bool = False
    delay_s: float | None = None


class GivenBack(NamedTuple):
    """The call never started: the record goes back to the head of its lane."""

    work: Work


Ended = Returned | Failed | GivenBack


class Endings:
    """Takes in what handlers and the producer report."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    # -- calls that ended ----------------------------------------------------------------------

    def done(self, works: Sequence[Work]) -> None:
        """Calls that returned and have nothing to send: the hot path."""
        for work in works:
            partition = work.partition
            handler = partition.handler
            handler.free += 1
            if handler.spec.timeout_s is not None:
                handler.ended(work)
            if work.state != states.RUNNING:
                self._late(work)
                continue
            partition.in_flight -= 1
            if handler.spec.delivery == AT_LEAST_ONCE and not handler.spec.commit_each:
                partition.finish(work)
                handler.done += 1
            elif handler.spec.delivery == EXACTLY_ONCE and work.failure is None:
                work.state = states.PENDING  # `_finish` written out: this is a hot path, too
                self._state.claim(work)
                partition.release(work)
                work.charge = None
            else:
                self._finish(work, report=False)
        self._state.finished_since_commit += len(works)
        if self._state.reporting:
            for work in works:
                if work.state == states.DONE:
                    self._state.report(work, "done")

    def ended(self, endings: Sequence[Ended]) -> None:
        """Calls that ended any other way."""
        for ending in endings:
            self._ended(ending)

    def _ended(self, ending: Ended) -> None:
        work = ending.work
        partition, handler = work.partition, work.partition.handler
        handler.free += 1
        handler.ended(work)
        if work.state != states.RUNNING:
            self._late(work)
            return
        partition.in_flight -= 1
        if isinstance(ending, Returned):
            self._send(work, ending.outputs)
        elif isinstance(ending, Failed):
            self._failed(work, ending)
        else:
            self._given_back(work)

    def _given_back(self, work: Work) -> None:
        """Back to the head of its lane, or behind the record it was in one batch with."""
        partition = work.partition
        if partition.handler.spec.delivery == AT_MOST_ONCE:
            partition.unmark(work)
        work.move(states.QUEUED)
        if partition.predecessors.pop(work, None) is None:
            partition.ready.appendleft(work)
            partition.handler.enlist(partition)

    def batch_member(self, ending: Ended, *, batch_failed: int) -> None:
        """One record of a batch call that has ended.

        `batch_failed`: how many records failed together, to be tried again in halves. A record
        behind another one of its lane in this batch that is not done waits for that one.
        """
        work = ending.work
        once = work.partition.handler.spec.delivery == AT_MOST_ONCE
        if work.state != states.RUNNING or not isinstance(ending, Failed) or once:
            self._ended(ending)
            return
        behind = work.partition.predecessors.pop(work, None) is not None
        if not behind and batch_failed <= 1:
            self._ended(ending)
            if work.failure is not None:
                work.failure.batch_max = 1 if batch_failed else 0
            return
        handler = work.partition.handler
        handler.free += 1
        handler.ended(work)
        work.partition.in_flight -= 1
        self._split(work, ending, batch_failed, behind=behind)

    def _split(self, work: Work, failed: Failed, count: int, *, behind: bool) -> None:
        """Of a batch of `count` that failed as one: its next batch is half as large."""
        handler = work.partition.handler
        handler.failures += 1
        failure = record_failure(work, self._state.now, failed.error)
        failure.batch_max = count // 2
        if behind:
            self._requeue(work, failure)
        else:
            # Not the policy's growing delay: the healthy half should not wait for the bad one.
            retry = handler.spec.retry
            delay_s = 1.0 if callable(retry.delay_s) else retry.delay_s
            self._retry(work, failure, delay_s if failed.delay_s is None else failed.delay_s)

    def _outputs_refused(self, work: Work, error: ErrorInfo, *, ordered: bool) -> None:
        """What the call returned cannot be stored: its attempt failed.

        `ordered`: its lane still waits for it. Outputs that a batch returned together fail all of
        its records, in halves.
        """
        count = getattr(work.extra, "records", 0)
        work.extra = None
        if work.partition.handler.spec.delivery == AT_MOST_ONCE:
            self._failed(work, Failed(work, error))  # final, and the lane's order is kept by it
            return
        behind = ordered and count > 0 and work.partition.predecessors.pop(work, None) is not None
        if behind or count > 1:
            self._split(work, Failed(work, error), count, behind=behind)
            return
        self._failed(work, Failed(work, error))
        if work.failure is not None:
            work.failure.batch_max = min(1, count)

    def _requeue(self, work: Work, failure: Failure) -> None:
        """Back into its lane, where an earlier record goes first."""
        work.record = work.record._replace(attempt=failure.attempts + 1, last_error=failure.error)
        work.move(states.QUEUED)

    def _late(self, work: Work) -> None:
        """An attempt of an epoch that has ended: counted and dropped; its lane may go on."""
        partition = work.partition
        partition.handler.superseded += 1
        self._state.counts["late_completions"] += 1
        self._state.report(work, "superseded")
        self.release_orphan(work)

    def release_orphan(self, work: Work) -> None:
        """The lane that waited for this old attempt goes on in the present epoch."""
        where = (work.record.topic, work.record.partition)
        orphans = self._state.orphans.get(where)
        key = work.partition.lane_key(work.record)
        if not orphans or orphans.get(key) is not work:
            return
        del orphans[key]
        if not orphans:
            del self._state.orphans[where]
        present = self._state.partitions.get(where)
        if present is not None:
            head = present.held.pop(key, None)
            if head is not None:
                present.ready.append(head)
                present.handler.enlist(present)

    # -- success -------------------------------------------------------------------------------

    def _send(self, work: Work, outputs: Any) -> None:
        if work.partition.handler.spec.delivery == EXACTLY_ONCE:
            work.extra = outputs
            self._finish(work)
            return
        work.move(states.SENDING)
        work.partition.sending += 1
        work.extra = outputs
        self._state.emit(fx.Send(work, outputs))

    def settled(self, work: Work, sent: tuple[Sent, ...], error: ErrorInfo | None) -> None:
        """The broker has answered for all outputs (or the dead letter) of a record."""
        partition = work.partition
        if work.state != states.SENDING:
            self._state.counts["late_acknowledgements"] += 1
            return
        partition.sending -= 1
        failure = work.failure
        if failure is not None and failure.given_up is not None:
            self._dead_letter_settled(work, failure, sent, error)
        elif error is None:
            work.extra = sent
            self._finish(work)
        else:
            self._outputs_refused(work, error, ordered=True)

    def _finish(self, work: Work, *, report: bool = True) -> None:
        """The record is done, by the rules of its delivery."""
        partition, spec = work.partition, work.partition.handler.spec
        self._state.finished_since_commit += report  # `done` counts its own, all at once
        if spec.delivery == EXACTLY_ONCE:
            work.move(states.PENDING)
            self._state.claim(work)
            if work.failure is None or not work.failure.left_lane:
                partition.release(work)  # the lane does not wait for the transaction
                work.charge = None
        elif spec.commit_each:
            work.move(states.COMMITTING)
            self._state.claim(work)
            partition.handler.free -= 1  # it keeps its slot until the commit is acknowledged
        elif spec.delivery == AT_MOST_ONCE:
            # The ledger has it since its mark; only the lane is left.
            partition.bytes -= work.size
            del partition.running_marked[work.record.offset]
            work.state = states.DONE
            partition.release(work)
            self.complete(work, report=report)
        else:
            partition.finish(work)
            self.complete(work, report=report)

    def complete(self, work: Work, *, report: bool = True) -> None:
        """The record is finished with for good: count it and tell."""
        handler, failure = work.partition.handler, work.failure
        error = None if failure is None else failure.error
        if failure is None or failure.given_up is None:
            handler.done += 1
            if report:
                self._state.report(work, "done", None, work.extra or ())
        elif failure.given_up == "skipped":
            handler.skipped += 1
            self._state.report(work, "skipped", error)
        else:
            handler.dead_lettered += 1
            self._state.report(work, "dead_lettered", error, work.extra or ())

    def refused(self, refused: Sequence[tuple[Work, ErrorInfo]]) -> None:
        """exactly_once: outputs that the broker does not take; each failed its attempt."""
        for work, error in refused:
            failure = work.failure = work.failure or Failure()
            failure.left_lane = True
            work.next = None
            if failure.given_up == "dead_lettered":
                work.extra = None
                failure.given_up = None
                failure.error = error
                self._park(work, failure)
            else:
                self._outputs_refused(work, error, ordered=False)

    # -- failure -------------------------------------------------------------------------------

    def _failed(self, work: Work, failed: Failed) -> None:
        handler = work.partition.handler
        handler.failures += 1
        failure = record_failure(work, self._state.now, failed.error)
        retry = handler.spec.retry
        spent = retry.attempts is not None and failure.attempts >= retry.attempts
        if failed.final or spent:
            self._exhausted(work, failure)
        else:
            self._retry(work, failure, failed.delay_s)

    def _retry(self, work: Work, failure: Failure, asked_s: float | None) -> None:
        delay_s = retry_delay_s(work.partition.handler.spec.retry, work, asked_s)
        failure.due = self._state.now + delay_s
        failure.tell(self._state.now, f"next attempt in {delay_s:.3g} s")
        work.move(states.RETRYING)
        work.partition.retrying += 1
        work.partition.handler.retries += 1
        block_lane(work.partition, work)
        self._state.retries.add(failure.due, work)

    def retry_due(self) -> None:
        """Put every record whose delay is over at the end of its partition's queue."""
        for work in self._state.retries.due(self._state.now):
            partition, failure = work.partition, work.failure
            assert failure is not None
            if partition.predecessors and partition.mate_runs(work):
                # One at a time: its batch still handles a later record of its lane.
                self._state.retries.add(self._state.now + MATE_WAIT_S, work)
                continue
            self._requeue(work, failure)
            partition.retrying -= 1
            if failure.left_lane:
                failure.left_lane = False
                partition.rejoin(work)
            elif work not in partition.predecessors:  # else it is next when that one is done
                partition.ready.append(work)
            partition.handler.enlist(partition)

    def _exhausted(self, work: Work, failure: Failure) -> None:
        policy = work.partition.handler.spec.on_exhausted
        failure.tell(self._state.now, f"given up: {type(policy).__name__}")
        if isinstance(policy, DeadLetter):
            self._dead_letter(work, failure, policy)
        elif isinstance(policy, Park):
            self._park(work, failure)
        elif isinstance(policy, Skip):
            failure.given_up = "skipped"
            self._finish(work)
        else:
            self._park(work, failure, outcome_failed=True)
            self._state.fail(
                f"{work.partition.handler.name}: {work.record!r} is exhausted "
                "and its policy is Stop",
                failure.error,
            )

    def _park(self, work: Work, failure: Failure, *, outcome_failed: bool = False) -> None:
        partition = work.partition
        block_lane(partition, work)
        assert work.charge is not None
        work.charge.parked = True
        work.move(states.PARKED)
        partition.parked += 1
        partition.handler.parked += 1
        self._state.report(work, "failed" if outcome_failed else "parked", failure.error)
        error = failure.error or ErrorInfo("unknown", "")
        self._state.note(
            "warning",
            "record parked",
            topic=partition.topic,
            partition=partition.number,
            offset=work.record.offset,
            attempts=failure.attempts,
            error=f"{error.type}: {error.message}",
        )

    def _dead_letter(self, work: Work, failure: Failure, policy: DeadLetter) -> None:
        failure.given_up = "dead_lettered"
        error = failure.error or ErrorInfo("unknown", "")
        topic = policy.topic_for(work.record.topic)
        if work.partition.handler.spec.delivery == EXACTLY_ONCE:
            work.extra = fx.SendDeadLetter(work, topic, error)
            self._finish(work)
            return
        block_lane(work.partition, work)
        work.move(states.SENDING)
        work.partition.sending += 1
        self._state.emit(fx.SendDeadLetter(work, topic, error))

    def _dead_letter_settled(
        self, work: Work, failure: Failure, sent: tuple[Sent, ...], error: ErrorInfo | None
    ) -> None:
        if error is not None:
            failure.given_up = None
            failure.error = error
            failure.tell(self._state.now, f"dead letter refused: {error.message[:200]}")
            self._park(work, failure)
            return
        work.extra = sent
        self._finish(work)
