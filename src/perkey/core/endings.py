"""What happens to a record when its call ends: done, sent, tried again, or given up.

Theory of operation. A call that ended is one of four things::

    done ───────────────────────────────────────────────┐
    Returned ──► SENDING ──► acknowledged ──────────────┴──► `handled`: by the rules of its delivery
                    └──────► refused ───┐
    Failed ─────────────────────────────┴──► `_failed`
                                               ├ NotNow, an outage, or a brake: costs no attempt
                                               ├ attempts left           `_retry`: RETRYING
                                               └ none left               `_exhausted`, `_give_up`
    Unhandled ──► QUEUED, as if it had not started

- Without attempts left the policy decides: a dead letter is SENDING like outputs, a skip is
  `handled`, a park waits for its release (`_park`). A function as policy is asked first (`_ask`).
- A batch that failed as a whole costs no record an attempt: `_split` tries it again in halves.
- Of an epoch that has ended everything is counted and dropped (`_late`).
- When its turn comes, what is known of a record is looked at (`turn_comes`): what the commit
  remembers (`_restored`), a hold, bytes that are not kept, its attempts, its delay. So it may wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.commands import wait_held
from perkey.core.events import Failed, Returned
from perkey.core.lanes import unfollow
from perkey.core.memory import longest_s, used_up_by
from perkey.core.partition import plain_done
from perkey.core.retries import batch_delay_s, retry_delay_s
from perkey.core.work import USED_UP, Decision, Failure, HeldBy
from perkey.policies import DECIDED_RETRIES_MAX, DeadLetter, GivenUp, Park, Retry, Skip
from perkey.types import LETTER_REFUSED, ErrorInfo, Sent

if TYPE_CHECKING:
    from perkey.core.delivery import AtLeastOnce
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Decided, Ended
    from perkey.core.work import Work

REFUSED_S = 30.0  # a parked record's refused dead letter is not sent again before


class Endings:
    """Handles the reports of handlers and the producer."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        #: number of the last question to an `on_exhausted` function
        self._numbers = count(1)

    # -- calls that ended ----------------------------------------------------------------------

    def done(self, works: Sequence[Work]) -> None:
        """Calls that returned and have nothing to send: the hot path."""
        state = self._state
        others = plain_done(works)
        if state.only is not None:
            state.only.done += len(works) - len(others)
        else:
            for handler, count in Counter(
                [work.partition.handler for work in works if work.state == states.DONE]
            ).items():
                handler.done += count
        state.finished_since_commit += len(works)
        for work in others:  # late, or of a delivery that needs more
            if work.state == states.RUNNING:
                work.partition.call_ended()
                self._delivery(work).handled(work, report=False)
            else:
                self._late(work)
        if state.reporting_batches:
            state.emit(fx.BatchFinished(works))
        if state.reporting:
            for work in works:
                if work.state == states.DONE:
                    state.report(work, "done")

    def ended(self, endings: Sequence[Ended]) -> None:
        """Calls that ended in any other way."""
        for ending in endings:
            self._ended(ending)

    def _ended(self, ending: Ended) -> None:
        work = ending.work
        partition, handler = work.partition, work.partition.handler
        if work.state != states.RUNNING:
            self._late(work)
            return
        partition.call_ended()
        if isinstance(ending, Returned):
            self._delivery(work).send(work, ending.outputs)
        elif isinstance(ending, Failed):
            self._failed(work, ending)
        else:
            if ending.cancelled:
                handler.superseded += 1
                self._state.report(work, "superseded")
            self._delivery(work).given_back(work)
            work.move(states.QUEUED)
            self._goes_back(work)

    def _goes_back(self, work: Work) -> None:
        """To the head of its lane, or behind its predecessor in the same batch."""
        partition = work.partition
        if unfollow(work):
            return
        if partition.held_by(work, self._state.now) is None:
            partition.lanes.put_back([work])
            partition.handler.enlist(partition)
        else:
            self.turn_comes(work)

    def batch_member(self, ending: Ended, *, batch_failed: int) -> None:
        """One record of a batch call that has ended.

        `batch_failed`: how many records failed together, to be tried again in halves. A record
        behind another one of its lane in this batch that is not done waits for that one.
        """
        work = ending.work
        may_again = self._delivery(work).refused(work)
        if work.state != states.RUNNING or not isinstance(ending, Failed) or not may_again:
            self._ended(ending)
            return
        behind = unfollow(work)
        if ending.not_now or (ending.away and not self._state.outages.is_charged(work)):
            work.partition.call_ended()
            self._waits(work, ending, behind=behind)
            return
        if not behind and batch_failed <= 1:
            self._ended(ending)
            if work.failure is not None:
                work.failure.batch_max = 1 if batch_failed else 0
            return
        work.partition.call_ended()
        self._split(work, ending, batch_failed, behind=behind)

    def _split(self, work: Work, failed: Failed, count: int, *, behind: bool) -> None:
        """A batch of `count` failed as one: the record's next batch is half as large.

        It is not known which record is at fault, so it costs none of them an attempt.
        """
        failure = self._attempt_failed(work, failed.error)
        failure.shared += 1
        failure.batch_max = count // 2
        if behind:
            self._requeue(work, failure)
        else:
            retry, good_calls = work.retry, work.partition.handler.good_calls
            self._retry(work, failure, batch_delay_s(retry, failure, good_calls, failed.delay_s))

    def _outputs_refused(self, work: Work, error: ErrorInfo, *, ordered: bool) -> None:
        """The outputs of the call cannot be stored: its attempt failed.

        `ordered`: its lane still waits for it. Outputs that a batch returned together fail all of
        its records, in halves.
        """
        count = getattr(work.outputs, "records", 0)
        work.outputs = None
        if not self._delivery(work).refused(work):
            self._failed(work, Failed(work, error))  # final, which keeps the lane's order
            return
        behind = ordered and count > 0 and unfollow(work)
        if behind or count > 1:
            self._split(work, Failed(work, error), count, behind=behind)
            return
        self._failed(work, Failed(work, error))
        if work.failure is not None:
            work.failure.batch_max = min(1, count)

    def _late(self, work: Work) -> None:
        """An attempt of an epoch that has ended: counted and dropped.

        A lane that waited for it continues in the current epoch.
        """
        state, partition = self._state, work.partition
        partition.handler.superseded += 1
        state.count("late_completions")
        state.report(work, "superseded")
        if not state.end_orphan(work):
            return
        present = state.partitions.get(partition.where)
        if present is not None and present.lanes.vacate(partition.lanes.key_of(work.record)):
            present.handler.enlist(present)

    # -- success -------------------------------------------------------------------------------

    def outputs_answered(self, work: Work, sent: tuple[Sent, ...], error: ErrorInfo | None) -> None:
        """The broker has answered for all outputs (or the dead letter) of a record."""
        partition = work.partition
        if work.state != states.SENDING:
            self._state.count("late_acknowledgements")
            return
        partition.sent()
        failure = work.failure
        if error is None:
            work.outputs = sent
            self.handled(work)
            if failure is not None and failure.given_up is not None:
                partition.handler.relieve_at = 0.0
        elif failure is not None and failure.given_up is not None:
            self._no_dead_letter(work, failure, error)
        else:
            self._outputs_refused(work, error, ordered=True)

    def handled(self, work: Work) -> None:
        """The record is done, by the rules of its delivery."""
        self._state.finished_since_commit += 1
        self._delivery(work).handled(work)

    def _delivery(self, work: Work) -> AtLeastOnce:
        return self._state.deliveries[work.partition.handler.index]

    def outputs_stored(self, sent: Sequence[tuple[Work, tuple[Sent, ...]]]) -> None:
        """exactly_once: a transaction is committed, with these stored outputs."""
        for work, stored in sent:
            if work.state == states.PENDING:
                work.outputs = stored

    def outputs_refused(self, refused: Sequence[tuple[Work, ErrorInfo]]) -> None:
        """exactly_once: the broker refuses these outputs; each fails its attempt."""
        for work, error in refused:
            failure = work.failure = work.failure or Failure(self._state.texts)
            failure.left_lane = True
            self._state.portions.drop(work)
            work.next = None  # the lane has continued past it: nothing follows it any more
            if failure.given_up == "dead_lettered":
                self._no_dead_letter(work, failure, error)
            else:
                self._outputs_refused(work, error, ordered=False)

    # -- failure -------------------------------------------------------------------------------

    def _attempt_failed(self, work: Work, error: ErrorInfo) -> Failure:
        """Count and report one more failed attempt; the kept data is charged to the buffers."""
        work.partition.handler.failures += 1
        failure = work.fail(self._state.now, error, self._state.texts)
        work.partition.charge_failure(work, failure)
        self._state.trouble(work, "failed", error)
        return failure

    def _waits(self, work: Work, failed: Failed, *, behind: bool = False) -> None:
        """An outage, or NotNow: the attempt costs nothing, and the record waits.

        `behind`: another record of its lane and batch goes first. NotNow is no failure: attempts
        and last error stay as they are.
        """
        if failed.not_now:
            failure, alone_s = work.failure or Failure(self._state.texts), failed.delay_s
            work.failure = failure
            work.partition.charge_failure(work, failure)
            self._state.count("not_now")
        else:
            failure = self._attempt_failed(work, failed.error)
            failure.shared += 1
            alone_s = self._state.outages.failed(work, failed.error)
        if behind:
            self._requeue(work, failure)
        elif alone_s is not None:
            self._retry(work, failure, alone_s)
        else:
            self._try_again(work, failure)

    def _try_again(self, work: Work, failure: Failure) -> None:
        """The next attempt starts as soon as the handler may start something."""
        work.drop_traceback()
        if not self._is_behind(work, failure):
            self._requeue(work, failure)
            self.turn_comes(work)

    def _failed(self, work: Work, failed: Failed) -> None:
        later = failed.not_now and self._delivery(work).refused(work)
        if later or (failed.away and not self._state.outages.is_charged(work)):
            self._waits(work, failed)
            return
        failure = self._attempt_failed(work, failed.error)
        allowed, braked = work.retry.attempts, work.partition.handler.flood is not None
        spent = allowed is not None and failure.attempts - failure.shared >= allowed
        if not (failed.final or spent):
            self._retry(work, failure, failed.delay_s)
        elif braked and self._state.outages.is_spared(work, failed.error):
            failure.shared += 1
            self._try_again(work, failure)
        else:
            failure.exhausted_by = "attempts" if spent else "rejected"
            immediate = isinstance(work.partition.handler.spec.on_exhausted, Skip)
            if immediate or not self._is_behind(work, failure):
                self._exhausted(work, failure, failed.error)

    def _retry(self, work: Work, failure: Failure, asked_s: float | None) -> None:
        delay_s = retry_delay_s(work.retry, work, asked_s)
        failure.note(self._state.now, f"next attempt in {delay_s:.2g} s")
        work.drop_traceback()
        failure.own_due = self._state.now + delay_s
        work.partition.handler.retries += 1
        if not self._is_behind(work, failure):
            self._state.retries.add(failure.own_due, work)
            work.partition.wait(work, states.RETRYING)

    def _is_behind(self, work: Work, failure: Failure) -> bool:
        """Another record of its lane and batch goes first: what is next is seen at its turn."""
        behind = not failure.left_lane and self._delivery(work).refused(work) and unfollow(work)
        if behind:
            self._requeue(work, failure)
            work.partition.remember(work)
        return behind

    def retry_due(self) -> None:
        """The delay of these records is over, or their hold, or their time as parked ones."""
        for work in self._state.retries.due(self._state.now):
            partition, failure = work.partition, work.failure
            assert failure is not None
            if partition.lanes.mate_runs(work):
                # One at a time: its batch still handles a later record of its lane.
                self._state.retries.wait_for_mates(work, failure)
                continue
            if work.state == states.PARKED:
                if work.parked_by is None or work.parked_by.after_s is None:
                    self.release(work, "its time is over")  # otherwise `Relief` gives it up
                continue
            self._requeue(work, failure)
            self.turn_comes(work)

    def _requeue(self, work: Work, failure: Failure) -> None:
        """It waits for its next attempt in its lane, at the head or behind an earlier record."""
        work.try_again(failure)
        work.partition.charge_failure(work, failure)
        if work.state in states.STALLED:
            work.partition.lift(work)
        else:
            work.move(states.QUEUED)

    def turns_come(self) -> None:
        """The turn of these heads has come, in partitions that know something of records."""
        turns = self._state.turns
        while turns:
            work = turns.popleft()
            if work.state == states.QUEUED:  # otherwise its epoch has ended
                self.turn_comes(work)

    def turn_comes(self, work: Work) -> None:
        """The head of a lane is next: it is ready, or something is known of it for which it waits.

        The same for one whose wait is over: something else may keep it waiting.
        """
        partition, failure = work.partition, work.failure
        known = partition.memory.recall(work.offset) if partition.memory.waiting else None
        if known is not None:
            partition.watch()
            if self._restored(work, known):
                return
            failure = work.failure
        exhausted = failure is not None and failure.exhausted_by
        held = None if exhausted else partition.held_by(work, self._state.now)
        if partition.holds and held is None:
            partition.end_expired(work, self._state.now)
        if held is not None:
            wait_held(self._state, work, held)
        elif failure is None:
            partition.make_ready(work)
        else:
            self._continue(work, failure)

    def _continue(self, work: Work, failure: Failure) -> None:
        """Nothing else keeps a record that has failed waiting; maybe its own delay does."""
        partition = work.partition
        if work in partition.shelves.bare:
            partition.wait(work, states.BYTES)
        elif failure.exhausted_by:  # since before it came here, or its turn came
            if failure.error is None:
                failure.replace(USED_UP)
            self._exhausted(work, failure, failure.error or USED_UP)
        elif failure.own_due > self._state.now:  # since before its turn came
            self._state.retries.add(failure.own_due, work)
            partition.wait(work, states.RETRYING)
        elif failure.left_lane:
            failure.left_lane = False
            partition.lanes.rejoin(work)
            partition.handler.enlist(partition)
        else:
            partition.make_ready(work)

    def release(self, work: Work, why: str) -> None:
        """A parked record's attempts start over."""
        failure = work.failure
        assert failure is not None
        self.start_over(work, failure, why)
        work.partition.lift(work)
        self.turn_comes(work)

    def start_over(self, work: Work, failure: Failure, why: str) -> None:
        """Count its attempts from the first one again."""
        failure.attempts = failure.shared = failure.rounds = 0
        failure.given_up, failure.own_due = None, 0.0
        failure.exhausted_by, failure.decision = "", None
        failure.waits_since, failure.ticket = None, -1
        failure.note(self._state.now, f"released: {why}")
        work.try_again(failure)
        work.partition.charge_failure(work, failure)

    def _exhausted(self, work: Work, failure: Failure, error: ErrorInfo) -> None:
        """Its attempts are used up."""
        policy = work.partition.handler.spec.on_exhausted
        if failure.given_up == "dead_lettered" and work.parked_by is not None:
            self.send_letter(work, failure, work.parked_by.topic_for(work.record.topic))
        elif isinstance(policy, GivenUp):
            self._give_up(work, failure, policy)
        else:
            self._ask(work, failure, error)

    def _ask(self, work: Work, failure: Failure, error: ErrorInfo) -> None:
        """Its policy is a function: wait for its result.

        It is user code, so it is called outside: the core requests it by an effect and gets the
        answer as an event. The executor of the last call cannot call it: it does not see refused
        outputs, halved batches and restored records, which exhaust a record as well. Meanwhile the
        record waits as for a retry: its lane is blocked, commands work, and a commit remembers it
        as exhausted, so the next owner calls the function again.
        """
        decision = failure.decision = failure.decision or Decision()
        decision.policy, decision.asked = None, next(self._numbers)
        failure.note(self._state.now, "attempts used up: on_exhausted decides")
        failure.due = failure.own_due = self._state.now
        self._state.emit(fx.AskExhausted(work, decision.asked, work.record, error))
        work.drop_traceback()
        work.partition.wait(work, states.ASKED)

    def decided(self, answer: Decided) -> None:
        """The function has returned; an answer that no record waits for any more is dropped."""
        work, outcome, error = answer.work, answer.outcome, answer.error
        failure = work.failure
        decision = None if failure is None else failure.decision
        if work.state != states.ASKED or failure is None or decision is None:
            return  # held: called again after the hold
        if decision.asked != answer.number:
            return
        work.partition.lift(work)
        decision.retries += isinstance(outcome, Retry)
        if isinstance(outcome, Retry) and decision.retries > DECIDED_RETRIES_MAX:
            what = f"on_exhausted returned Retry more than {DECIDED_RETRIES_MAX} times"
            outcome, error = None, ErrorInfo("OnExhausted", what)
        if isinstance(outcome, Retry):
            self.start_over(work, failure, "on_exhausted returned Retry")
            failure.decision, decision.retry = decision, outcome
            self._retry(work, failure, answer.delay_s)
            return
        if outcome is None:
            error = error or ErrorInfo("OnExhausted", "on_exhausted returned nothing")
            before = "" if failure.error is None else f"; the record failed: {failure.error.line}"
            failure.keep(error._replace(message=f"{error.message}{before}"))
            self._state.count("on_exhausted_failed")
        decision.policy = outcome or Park()
        if isinstance(outcome, Park) and outcome.dead_letter:
            work.partition.handler.park = outcome
        self._give_up(work, failure, decision.policy)

    def _give_up(self, work: Work, failure: Failure, policy: GivenUp) -> None:
        failure.note(self._state.now, f"given up: {type(policy).__name__}")
        if isinstance(policy, DeadLetter):
            self.send_letter(work, failure, policy.topic_for(work.record.topic))
        elif isinstance(policy, Park):
            self._park(work, failure)
        elif isinstance(policy, Skip):
            failure.given_up = "skipped"
            self.handled(work)
        else:
            self._park(work, failure, outcome_failed=True)
            # After a fix and a restart it must be tried again.
            work.partition.memory.forget(work.record.offset)
            self._state.fail(
                f"{work.partition.handler.name}: {work.record!r} is exhausted "
                "and its policy is Stop",
                failure.error,
            )

    def send_letter(self, work: Work, failure: Failure, topic: str) -> None:
        """The record is given up, and goes to this topic."""
        failure.given_up = "dead_lettered"
        assert failure.error is not None
        work.partition.remember(work)
        letter = fx.SendDeadLetter(work, topic, failure.error)
        self._delivery(work).send_dead_letter(work, letter)

    def _no_dead_letter(self, work: Work, failure: Failure, error: ErrorInfo) -> None:
        """The broker refuses the dead letter: the record gets this error, and is parked."""
        work.outputs = None
        failure.given_up = None
        failure.exhausted_by = "other"
        failure.own_due = self._state.now + REFUSED_S
        of_record = f"; the record failed: {failure.error.line}" if failure.error else ""
        failure.keep(ErrorInfo(error.type, f"{LETTER_REFUSED}{error.message[:200]}{of_record}"))
        failure.note(self._state.now, f"{LETTER_REFUSED}{error.message[:200]}")
        policy = work.given_up_by
        has_end = isinstance(policy, Park) and policy.after_s is not None
        self._park(work, failure, due=failure.parked_until if has_end else None)

    def _park(
        self,
        work: Work,
        failure: Failure,
        *,
        due: float | None = None,
        outcome_failed: bool = False,
    ) -> None:
        """`due`: when it is given up, if that was set before."""
        self._set_release(work, failure, due)
        work.partition.wait(work, states.PARKED)
        work.partition.handler.parked += 1
        self._state.report(work, "failed" if outcome_failed else "parked", failure.error)
        self._state.trouble(work, "parked")
        work.drop_traceback()
        self._state.put_away(work)

    def relieve(self, work: Work, failure: Failure, why: str) -> None:
        """A parked record is given up to the dead-letter topic of its `Park`."""
        failure.parked_until = failure.due if failure.ticket >= 0 else None
        failure.given_up = "dead_lettered"
        failure.exhausted_by = failure.exhausted_by or "policy"
        failure.note(self._state.now, f"given up: {why}")
        work.partition.lift(work)
        self.turn_comes(work)

    def lost(self, work: Work) -> None:
        """A released record no longer exists in the log: it counts as skipped."""
        partition, failure = work.partition, work.failure
        assert failure is not None
        if work.state in states.STALLED:
            partition.lift(work)
        partition.shelves.drop(work)
        failure.given_up = "skipped"
        failure.note(self._state.now, "it is not in the log any more")
        if failure.error is None:  # it arrived parked
            failure.replace(USED_UP)
        partition.record_done(work)
        self._state.complete(work)

    def _set_release(self, work: Work, failure: Failure, due: float | None = None) -> None:
        """Set when the policy releases the record, if it does; `due`: as it was set before."""
        failure.due, failure.ticket = self._state.now, -1
        released_at = self._released_at(work, due)
        if released_at is not None:
            self._state.retries.add(released_at, work)

    def _released_at(self, work: Work, due: float | None = None) -> float | None:
        """When its policy releases a parked record, or gives it up; `due`: as it was set before."""
        policy = work.given_up_by
        if policy is None:  # it arrived parked, and the function's result is not remembered
            return due
        if not isinstance(policy, Park):
            return None
        after_s = policy.after_s if policy.release_after_s is None else policy.release_after_s
        if after_s is None:
            return None
        latest = self._state.now + after_s
        return latest if due is None else min(due, latest)

    # -- restored from the commit ------------------------------------------------------------------

    def _restored(self, work: Work, known: Remembered) -> bool:
        """It starts with what is remembered of it; True if it waits, for the rest of its delay."""
        partition, now = work.partition, self._state.now
        known = partition.memory.unless_released(known, partition.lanes.key_of(work.record))
        until = None
        if known.until_s is not None:  # a commit may not delay a record longer than its cause could
            until = min(known.until_s - self._state.wall_s, now + longest_s(work, known))
        released_at, policy = self._released_at(work, until), work.parked_by
        has_end = policy is not None and policy.after_s is not None
        if known.parked and released_at is not None and released_at <= now and not has_end:
            known = Remembered(known.offset, 0, error=known.error)
        failure = work.resume(known.attempts, self._state.texts)
        failure.known_hash = known.error
        failure.exhausted_by = used_up_by(known, partition.handler.spec)
        failure.note(now, f"{known.attempts} failed attempts before epoch {partition.epoch}")
        partition.memory.keep(work)
        due = now if until is None else until
        held = known.held and due > now
        partition.charge_failure(work, failure)
        if not (known.parked or failure.exhausted_by or due > now):
            return False
        if known.parked:
            self._set_release(work, failure, until)
            partition.wait(work, states.PARKED)
        else:
            failure.own_due = now if held else due
            if held:
                partition.set_hold(work.offset, HeldBy(due))
            # An exhausted record is given up immediately, unless it is held.
            self._state.retries.add(now if failure.exhausted_by and not held else due, work)
            partition.wait(work, states.HELD if held else states.RETRYING)
        if known.parked or held:
            self._state.put_away(work)
        return True
