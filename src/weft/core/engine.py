"""The only door of the core: every event is one method, effects are taken with `take_effects`.

One owner at a time calls it, whoever that is (`weft.runtime.door`). Each method takes the time,
does all that follows from the event, starts what may start, and commits what is due. The same
calls in the same order give the same effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Literal

from weft.core import effects as fx
from weft.core import states
from weft.core.batching import Batching
from weft.core.commits import Answer, Commits
from weft.core.endings import Ended, Endings
from weft.core.epochs import Assignment, Epochs
from weft.core.handler import Handler
from weft.core.partition import Partition
from weft.core.plans import Plans
from weft.core.spec import AT_MOST_ONCE, HandlerSpec, Limits
from weft.core.state import EngineState
from weft.core.window import reopen
from weft.core.work import Work
from weft.types import ErrorInfo, Record, Sent

StopMode = Literal["in_flight", "buffered", "now"]
_RESUME_EVERY = 64  # completions between two looks at what may be fetched again


class Engine:
    """Decides what starts, what pauses and what is committed. Holds no clock and does no I/O."""

    def __init__(self, specs: Iterable[HandlerSpec], limits: Limits | None = None) -> None:
        self.state = EngineState(specs, limits or Limits())
        self._endings = Endings(self.state)
        self._batching = Batching(self.state, self._endings)
        self._plans = Plans(self.state, self._batching)
        self._commits = Commits(self.state, self._endings, self._batching, self._plans)
        self._epochs = Epochs(self.state, self._commits, self._plans, self._batching)
        self._since_resume = 0

    # -- partitions ------------------------------------------------------------------------------

    def assigned(self, now: float, assignments: Sequence[Assignment]) -> list[Partition]:
        """Epochs begin; records of them may be polled from now on."""
        self.state.now = now
        opened = self._epochs.opened(assignments)
        self._turn()
        return opened

    def revoking(self, now: float, partitions: Sequence[Partition]) -> None:
        """The broker takes these away: nothing new of them starts."""
        self.state.now = now
        self._epochs.revoking(partitions)

    def running(self, partitions: Sequence[Partition]) -> list[Work]:
        """Records of these partitions that are with a handler now."""
        return self._epochs.running(partitions)

    def last_commit(self, now: float, partitions: Sequence[Partition]) -> fx.CommitOffsets:
        """The final commit of epochs about to end; the caller sends it and waits."""
        self.state.now = now
        return self._epochs.last_commit(partitions)

    def proof_commit(self, now: float) -> fx.CommitOffsets | None:
        """A commit that says nothing new: the broker takes it from members of the group only.

        The caller sends it; None while every partition has a commit on the way.
        """
        self.state.now = now
        return self._commits.proof()

    def closed(self, now: float, partitions: Sequence[Partition], *, lost: bool = False) -> None:
        """These epochs have ended."""
        self.state.now = now
        self._epochs.closed(partitions, lost=lost)
        self._turn()

    # -- records ---------------------------------------------------------------------------------

    def polled(
        self, now: float, batches: Sequence[tuple[Partition, Sequence[Record], Sequence[int]]]
    ) -> None:
        """Records of one poll, by partition, each ascending, with their sizes in bytes."""
        state = self.state
        state.now = now
        touched = []
        for partition, records, sizes in batches:
            if partition.state == states.CLOSED:
                state.counts["records_of_closed_epochs"] += len(records)
                continue
            partition.admit(records, sizes)
            partition.handler.enlist(partition)
            if partition.handler.spec.batch is not None:
                self._batching.grew(partition.handler)
            touched.append(partition)
        pause = state.flow.to_pause(touched, state.partitions.values())
        if pause:
            state.emit(fx.PauseIntake(pause))
        self._turn()

    def reached(self, now: float, ends: Sequence[tuple[Partition, int]]) -> None:
        """The consumer stands at these positions: nothing is left to read before them."""
        self.state.now = now
        for partition, position in ends:
            if partition.state != states.CLOSED:
                partition.advance(position)
        self._turn()

    # -- outcomes --------------------------------------------------------------------------------

    def calls_ended(self, now: float, done: Sequence[Work], ended: Sequence[Ended] = ()) -> None:
        """Handler calls that ended since the last turn; `done` returned and have no outputs."""
        self.state.now = now
        self._endings.done(done)
        if ended:
            self._endings.ended(ended)
        self._since_resume += len(done) + len(ended)
        self._turn()

    def batch_progressed(self, now: float, done: Sequence[Work], ended: Sequence[Ended]) -> None:
        """Records of batches that still run were acknowledged one by one."""
        self.state.now = now
        self._batching.progressed(done, ended)
        self._turn()

    def batch_ended(
        self,
        now: float,
        handler: int,
        done: Sequence[Work],
        ended: Sequence[Ended],
        *,
        whole: bool = False,
    ) -> None:
        """One batch call has ended, with what became of the records not acknowledged before."""
        self.state.now = now
        self._batching.ended(self.state.handlers[handler], done, ended, whole=whole)
        self._since_resume += len(done) + len(ended)
        self._turn()

    def outputs_settled(
        self, now: float, settled: Sequence[tuple[Work, tuple[Sent, ...], ErrorInfo | None]]
    ) -> None:
        """The broker has answered for the outputs of these records."""
        self.state.now = now
        for work, sent, error in settled:
            self._endings.settled(work, sent, error)
        self._since_resume += len(settled)
        self._turn()

    def commit_answered(self, now: float, answers: Sequence[Answer]) -> None:
        """The broker has answered a commit."""
        self.state.now = now
        self._commits.answered(answers)
        self._turn()

    def committed_read(
        self, now: float, values: Sequence[tuple[Partition, int | None, str]]
    ) -> None:
        """What the broker holds for commits that were in doubt."""
        self.state.now = now
        for partition, offset, metadata in values:
            self._commits.read_back(partition, offset, metadata)
        self._turn()

    def transacted(
        self,
        now: float,
        sequence: int,
        *,
        committed: bool,
        sent: Sequence[tuple[Work, tuple[Sent, ...]]] = (),
        refused: Sequence[tuple[Work, ErrorInfo]] = (),
    ) -> None:
        """A transaction has ended; `refused` are records whose output the broker does not take."""
        self.state.now = now
        for work, outputs in sent:
            if committed and work.state == states.PENDING:
                work.extra = outputs
        self._endings.refused(
            self._commits.transacted(sequence, committed=committed, refused=refused)
        )
        self._turn()

    # -- time and control ------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has passed."""
        self.state.now = now
        self._endings.retry_due()
        self._commits.in_doubt()
        self._expire()
        for handler in self.state.handlers:
            for partition in list(handler.crowded):
                reopen(partition)
        self._since_resume = _RESUME_EVERY
        self._turn()

    def commit_soon(self, now: float) -> None:
        """Commit what is done without waiting for the interval."""
        self.state.now = now
        self._commits.soon()
        self._turn()

    def next_deadline(self) -> float:
        """When `tick` has something to do next, as far as is known now."""
        due = [self._commits.next_due(), self.state.retries.next_due()]
        for handler in self.state.handlers:
            due += [handler.tokens_due(), self._batching.next_due(handler)]
            due.append(next(iter(handler.running.values()), None))
        return min(time for time in due if time is not None)

    def hold(self, now: float, reason: str, *, on: bool) -> None:
        """Start nothing (or start again) for a reason outside: outputs or results back up."""
        self.state.now = now
        (self.state.holds.add if on else self.state.holds.discard)(reason)
        self._turn()

    def pause(self, now: float, topic: str | None, *, on: bool) -> None:
        """The user pauses or resumes a topic, or all."""
        self.state.now = now
        self.state.set_paused(topic, on=on)
        for partition in self.state.partitions.values():
            if topic in (None, partition.topic):
                partition.user_paused = on
                partition.startable = not on and partition.state == states.OPEN
                partition.handler.enlist(partition)
        self._turn()

    def stop(self, now: float, mode: StopMode) -> None:
        """Finish what `mode` says and ask for `Drained`; a later, harsher mode wins."""
        self.state.now = now
        order = ("buffered", "in_flight", "now")
        present = self.state.stop_mode
        if present is None or order.index(mode) > order.index(present):
            self.state.stop_mode = mode
        if self.state.stop_mode == "now":
            self._plans.withdraw_marks(self.state.partitions.values())
        self._turn()

    def take_effects(self) -> list[fx.Effect]:
        """What the runtime must do now, in this order."""
        effects, self.state.effects = self.state.effects, []
        return effects

    # -- every turn ends like this -----------------------------------------------------------------

    def _turn(self) -> None:
        state = self.state
        if not state.holds and state.stop_mode in (None, "buffered"):
            for handler in state.handlers:
                if handler.crowded:
                    self._look_again(handler)
                if handler.free > 0 and (handler.rotation or handler.spec.batch is not None):
                    self._fill(handler)
        if state.flow.paused and self._since_resume >= _RESUME_EVERY:
            self._since_resume = 0
            resume = state.flow.to_resume()
            if resume:
                state.emit(fx.ResumeIntake(resume))
        self._commits.run()
        if state.stop_mode is not None and not state.drained:
            self._check_drained()

    def _look_again(self, handler: Handler) -> None:
        """Records past the reach of the map: so much was done that there may be room."""
        for partition in list(handler.crowded):
            if (
                partition.top >= partition.measure_at_top
                or partition.measured_frontier not in partition.incomplete
            ):
                reopen(partition)

    def _fill(self, handler: Handler) -> None:
        state = self.state
        if handler.spec.batch is not None:
            self._batching.fill(handler)
            return
        works = handler.take(state.now)
        if not works:
            return
        if handler.spec.delivery == AT_MOST_ONCE:
            for work in works:
                state.claim(work)
        else:
            state.effects.append(fx.Start(handler.index, works))

    def _expire(self) -> None:
        """Attempts past their `timeout_s`: ask for their end, once each."""
        now = self.state.now

        def is_due(item: tuple[Work, float]) -> bool:
            return item[1] <= now

        for handler in self.state.handlers:
            for work in [work for work, _ in takewhile(is_due, handler.running.items())]:
                del handler.running[work]
                handler.overdue[work] = now
                self.state.emit(fx.Cancel(handler.index, work))
            self._give_up_on(handler)

    def _give_up_on(self, handler: Handler) -> None:
        """Every slot has hung for ten time-outs: nothing will ever start again."""
        spec = handler.spec
        if spec.timeout_s is None or len(handler.overdue) < spec.concurrency:
            return
        if self.state.now - max(handler.overdue.values()) >= 10 * spec.timeout_s:
            self.state.fail(
                f"handler {handler.name}: all {spec.concurrency} slots have been overdue for ten "
                f"times timeout_s={spec.timeout_s}"
            )

    def _check_drained(self) -> None:
        state = self.state
        if state.stop_mode == "now" or (state.idle() and not self._more_to_do()):
            state.drained = True
            state.emit(fx.Drained())

    def _more_to_do(self) -> bool:
        """Stop mode "buffered": something in memory can still be finished."""
        if self.state.stop_mode != "buffered":
            return False
        return self._batching.waiting() or any(
            partition.ready or partition.retrying
            for partition in self.state.partitions.values()
            if partition.startable
        )

    # -- what is known -----------------------------------------------------------------------------

    def report_results(self, *, on: bool) -> None:
        """Someone reads results, or nobody does any more."""
        self.state.reporting = on

    def under_way(self) -> int:
        """How many calls are with a handler, and records' outputs with the producer."""
        calls = sum(h.spec.concurrency + h.spec.ahead - h.free for h in self.state.handlers)
        return calls + sum(partition.sending for partition in self.state.partitions.values())

    def snapshot(self) -> dict[str, Any]:
        """Partitions and handlers as plain data (the contract's `app.snapshot()`)."""
        from weft.core.snapshot import snapshot

        return snapshot(self.state)
