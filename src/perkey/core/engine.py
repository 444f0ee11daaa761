"""The only entry to the core: every event is one method, effects are taken with `take_effects`.

One owner at a time calls it (`perkey.runtime.door`). Each method gets the time, does all that
follows from the event, starts what may start, and commits what is due. The same calls in the same
order give the same effects.

Its data is `EngineState` (engine_state.py). Other packages use only the part named "the view".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core import events, states
from perkey.core.batching import Batching
from perkey.core.commands import Commands
from perkey.core.commits import Commits, Plans
from perkey.core.endings import Endings
from perkey.core.engine_state import EngineState, Epochs
from perkey.core.events import Limits
from perkey.core.gates import STOPPING
from perkey.core.memory import Returns
from perkey.core.retries import Relief
from perkey.types import ErrorInfo, Record, Sent, StopMode

if TYPE_CHECKING:
    from perkey.core.events import (
        Answer,
        Assignment,
        Command,
        Ended,
        HandlerSpec,
        OutputsAnswer,
        Steering,
        Stuck,
    )
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler, Room
    from perkey.core.work import Tags, Work

NO_TAGS: Mapping[Partition, Sequence[Tags]] = {}
_RESUME_EVERY = 64  # completions between two checks of what may be fetched again


class Engine:
    """Decides what starts, what pauses and what is committed. Has no clock and does no I/O."""

    def __init__(
        self,
        specs: Iterable[HandlerSpec],
        limits: Limits | None = None,
        size_of: Callable[[Any], int] = lambda _outputs: 0,
    ) -> None:
        """`size_of`: bytes of a record's share of outputs, whose type the core does not know."""
        self.state = EngineState(specs, limits or Limits(), size_of)
        self._endings = Endings(self.state)
        self._batching = Batching(self.state, self._endings)
        self._plans = Plans(self.state)
        self._commits = Commits(self.state, self._plans)
        self._commands = Commands(self.state, self._endings, self._batching)
        self._epochs = Epochs(self.state, self._commits, self._batching)
        self._returns = Returns(self.state, self._endings)
        self._relief = Relief(self.state, self._endings)
        self._since_resume = 0

    # -- partitions ------------------------------------------------------------------------------

    def assigned(self, now: float, assignments: Sequence[Assignment]) -> list[Partition]:
        """Epochs start; records of them may be polled from now on."""
        self.state.now = now
        opened = self._epochs.opened(assignments)
        self._turn()
        return opened

    def revoking(self, now: float, partitions: Sequence[Partition]) -> None:
        """These are being revoked: nothing new of them starts."""
        self.state.now = now
        self._epochs.revoking(partitions)

    def running(self, partitions: Sequence[Partition]) -> list[Work]:
        """Records of these partitions that are in a handler now."""
        works = [work for partition in partitions for work in partition.works()]
        return [work for work in works if work.state == states.RUNNING]

    def last_commit(self, now: float, partitions: Sequence[Partition]) -> fx.CommitOffsets:
        """The final commit of epochs about to end; the caller sends it and waits."""
        self.state.now = now
        return self._epochs.last_commit(partitions)

    def proof_commit(self, now: float) -> fx.CommitOffsets | None:
        """A commit without changes: the broker accepts it only from members of the group.

        The caller sends it; None while every partition has a commit in flight.
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
        self,
        now: float,
        batches: Sequence[tuple[Partition, Sequence[Record], Sequence[int]]],
        tags: Mapping[Partition, Sequence[Tags]] = NO_TAGS,
    ) -> None:
        """Records of one poll, by partition, each ascending, with their sizes in bytes.

        `tags`: results of the user's functions for each record, if the handler has such functions.
        """
        state = self.state
        state.now = now
        touched = []
        for partition, records, sizes in batches:
            if partition.state == states.CLOSED:
                state.count("records_of_closed_epochs", len(records))
                continue
            partition.admit(records, sizes)
            if tags and partition in tags:
                partition.tag(records, tags[partition])
            partition.handler.enlist(partition)
            self._batching.arrived(partition.handler)
            touched.append(partition)
        if pause := state.flow.to_pause(touched, state.partitions.values()):
            state.emit(fx.PauseIntake(pause))
        self._turn()

    def resumed(self, attempts: Mapping[tuple[str, int, int], int]) -> None:
        """Failed attempts of an earlier run, by topic, partition and offset; before they start."""
        for place, failed in attempts.items():
            work = self.state.find(*place)
            if work is not None and failed and work.failure is None:
                work.resume(failed, self.state.texts)

    def reached(self, now: float, ends: Sequence[tuple[Partition, int]]) -> None:
        """The consumer is at these positions: nothing remains to be read before them."""
        self.state.now = now
        for partition, position in ends:
            if partition.state != states.CLOSED:
                partition.offsets.advance(position)
        self._turn()

    def refetched(
        self,
        now: float,
        partition: Partition,
        number: int,
        records: Sequence[Record],
        sizes: Sequence[int],
        tags: Sequence[Tags] = (),
    ) -> None:
        """Refetched records, as far as the log has them; `tags`: see `polled`."""
        self.state.now = now
        self._returns.came(partition, number, records, sizes)
        if tags:
            partition.tag(records, tags)
        self._batching.arrived(partition.handler)
        self._turn()

    def log_ends(self, ends: Sequence[tuple[Partition, int]]) -> None:
        """The current ends of these partitions' logs."""
        for partition, end in ends:
            partition.log_end = end

    # -- outcomes --------------------------------------------------------------------------------

    def calls_ended(self, now: float, done: Sequence[Work], ended: Sequence[Ended] = ()) -> None:
        """Handler calls that ended since the last turn; `done` returned and have no outputs."""
        state, count = self.state, len(done) + len(ended)
        state.now = now
        if state.only is not None:
            state.only.slots.give(count)
        else:  # each of these had its own slot
            for work in (*done, *(ending.work for ending in ended)):
                work.partition.handler.slots.give()
        if state.budgets:
            # Report these calls to the budgets of their handlers.
            for work in (*done, *(ending.work for ending in ended)):
                if (budget := work.partition.handler.budget) is not None:
                    budget.ended()
            for ending in ended:
                budget = ending.work.partition.handler.budget
                if budget is None:
                    continue
                if isinstance(ending, events.Unhandled):
                    budget.refund(ending.work)
                elif isinstance(ending, events.Failed) and ending.budget_s is not None:
                    budget.wait(ending.budget_s, ending.error)
        self._endings.done(done)
        if ended:
            self._endings.ended(ended)
        self._since_resume += count
        self._turn()

    def charged(self, now: float, charges: Sequence[events.Charged]) -> None:
        """The actual cost of calls that run, or have ended."""
        self.state.now = now
        for charge in charges:
            budget = self.state.handlers[charge.handler].budget
            if budget is not None:
                budget.charged(charge)
        self._turn()

    def totals_known(self, now: float, totals: Mapping[int, int | None]) -> None:
        """How many partitions the topics of each handler have; None: not known yet."""
        self.state.now = now
        self.state.totals = totals
        self.state.divide_budgets()
        self._turn()

    def batch_progressed(self, now: float, done: Sequence[Work], ended: Sequence[Ended]) -> None:
        """Records acknowledged in running batches: they are done, the slot is still taken."""
        self.state.now = now
        self._endings.done(done)
        self._endings.ended(ended)
        self.state.retries.batches_moved(now)
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
        """One batch call has ended, with the results of the records not acknowledged before."""
        self.state.now = now
        self._batching.ended(self.state.handlers[handler], done, ended, whole=whole)
        self._since_resume += len(done) + len(ended)
        self._turn()

    def outputs_answered(self, now: float, answers: Sequence[OutputsAnswer]) -> None:
        """The broker has answered for the outputs of these records."""
        self.state.now = now
        for work, sent, error in answers:
            self._endings.outputs_answered(work, sent, error)
        self._since_resume += len(answers)
        self._turn()

    def decided(self, now: float, answers: Sequence[events.Decided]) -> None:
        """Functions given as `on_exhausted` have returned."""
        self.state.now = now
        for answer in answers:
            self._endings.decided(answer)
        self._turn()

    def commit_answered(self, now: float, answers: Sequence[Answer]) -> None:
        """The broker has answered a commit."""
        self.state.now = now
        self._commits.answered(answers)
        self._turn()

    def committed_read(
        self, now: float, values: Sequence[tuple[Partition, int | None, str]]
    ) -> None:
        """What the broker stores for commits that were in doubt."""
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
        slow: bool = False,
        sent: Sequence[tuple[Work, tuple[Sent, ...]]] = (),
        refused: Sequence[Stuck] = (),
        stuck: Sequence[Stuck] = (),
        reason: ErrorInfo | None = None,
        maps_too_large: bool = False,
    ) -> None:
        """A transaction has ended; `refused` are records whose outputs the broker refuses.

        `sent`: the records with outputs, and what was stored of them; `stuck`: those of an aborted
        one that were neither stored nor refused. `slow`: it was aborted because it timed out.
        `reason`: it was aborted because of its content, and none of its outputs was named.
        `maps_too_large`: it was aborted because the broker does not store an offset map of that
        size.
        """
        self.state.now = now
        failed = self.state.portions.ended(
            [work for work, _ in sent], stuck, committed=committed, slow=slow, reason=reason
        )
        if committed:
            self._endings.outputs_stored(sent)
        self._endings.outputs_refused(
            self._commits.transacted(
                sequence,
                committed=committed,
                refused=[*refused, *failed],
                maps_too_large=maps_too_large,
            )
        )
        self._turn()

    def fail(self, now: float, reason: str) -> None:
        """End the run: calls that nothing can end keep every slot of a handler."""
        self.state.now = now
        self.state.fail(reason)

    # -- time and control ------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has passed."""
        self.state.now = now
        self._endings.retry_due()
        self._commits.in_doubt()
        self.state.outages.look_at_floods()
        for handler in self.state.handlers:
            for partition in list(handler.short_of_room):
                partition.reopen()
        self._since_resume = _RESUME_EVERY
        self._turn()

    def commit_soon(self, now: float) -> None:
        """Commit what is done without waiting for the interval."""
        self.state.now = now
        self._commits.soon()
        self._turn()

    @property
    def commit_at(self) -> float:
        """When everything is committed next: part of `next_deadline`, and cheap to look at."""
        return self._commits.next_at

    def next_deadline(self) -> float:
        """When `tick` next has something to do, as far as known now."""
        state = self.state
        due = [self._commits.next_due(), state.retries.next_due(), state.outages.next_due()]
        due += [budget.due for budget in state.budgets]
        for handler in state.handlers:
            if self._may_start(handler):
                due += self._starts_due(handler)
        return min(time for time in due if time is not None)

    def _starts_due(self, handler: Handler) -> tuple[float | None, float | None]:
        """When its rate limit, and its open batches, let something start."""
        return handler.tokens_due(), self._batching.next_due(handler)

    def halt(self, now: float, reason: str, *, on: bool) -> None:
        """Start nothing (or start again) for an external reason: outputs or results back up."""
        self.state.now = now
        self.state.gate.put(reason, on=on)
        self._turn()

    def pause(self, now: float, topic: str | None, *, on: bool) -> None:
        """The user pauses or resumes a topic, or all."""
        self.state.now = now
        self.state.desired.by_app(topic, on=on)
        for partition in self.state.partitions.values():
            if topic in (None, partition.topic):
                self.state.desired.apply(partition)
        self._turn()

    def steer(self, now: float, steering: Steering) -> None:
        """All pauses and settings by command that are in force from now on."""
        self.state.now = now
        self.state.desired.by_command(steering, self.state.handlers)
        for partition in self.state.partitions.values():
            self.state.desired.apply(partition)
        self._turn()

    def grant_ahead(self, now: float, handler: int, count: int) -> None:
        """Grant this many calls of this handler beyond its concurrency from now on.

        Its executor does not run more of them together: it only has the next ones available.
        """
        self.state.now = now
        self.state.handlers[handler].grant_ahead(count)
        self._turn()

    def end_outages(self, now: float, handlers: Collection[int]) -> None:
        """An operator ends all outages of these handlers: nothing waits for a probe any more."""
        self.state.now = now
        for index in handlers:
            self.state.outages.end_all(self.state.handlers[index])
        self._turn()

    def obey(self, now: float, commands: Sequence[Command], unix_s: float) -> None:
        """Commands of an operator to lanes and records; each is answered (`effects.Answered`).

        `unix_s`: this moment in UNIX seconds, as used for times in commands.
        """
        self.state.now = now
        self.state.set_clock(unix_s)
        self._commands.obey(commands)
        self._commits.soon()
        self._turn()

    def stop(self, now: float, mode: StopMode) -> None:
        """Finish what `mode` requires and return `Drained`; a later, harsher mode wins."""
        self.state.now = now
        order = ("buffered", "in_flight", "now")
        present = self.state.stop_mode
        if present is None or order.index(mode) > order.index(present):
            self.state.stop_mode = mode
        if self.state.stop_mode != "buffered":
            self.state.gate.close(STOPPING)
        if self.state.stop_mode == "now":
            self.state.closing(list(self.state.partitions.values()))
        self._turn()

    def take_effects(self) -> list[fx.Effect]:
        """The effects that the runtime must perform now, in this order."""
        return self.state.take_effects()

    # -- every turn ends like this -----------------------------------------------------------------

    def _turn(self) -> None:
        """Look at what waits; start what may; ask for and commit what is due."""
        state = self.state
        outages = state.outages
        if state.turns:
            self._endings.turns_come()
        if outages.timers or outages.probing:
            outages.look()
        for handler in state.handlers:
            if self._may_start(handler):
                self._start(handler)
            if handler.park is not None:
                self._relief.look(handler)
        for budget in state.budgets:
            budget.start([sharer for sharer in budget.handlers if self._may_start(sharer)])
        if state.shelving or state.flow.paused:
            self._fetch()
        commits = self._commits
        if (
            state.now >= commits.next_at
            or state.claiming
            or state.finished_since_commit >= commits.enough
        ):
            commits.run()
        if state.stop_mode is not None and not state.drained:
            self._check_drained()

    def _start(self, handler: Handler) -> None:
        if handler.short_of_room:
            # Records past the reach of the map: enough was done that there may be room.
            for partition in list(handler.short_of_room):
                partition.reopen()
        if handler.slots.free > 0 and (handler.rotation or handler.batched):
            self._fill(handler)

    def _fetch(self) -> None:
        """Read again what was kept as offsets, and partitions whose fetch is paused."""
        state = self.state
        if state.shelving:
            self._returns.ask()
        if state.flow.paused and self._since_resume >= _RESUME_EVERY:
            self._since_resume = 0
            if resume := state.flow.to_resume():
                state.emit(fx.ResumeIntake(resume))

    def _may_start(self, handler: Handler) -> bool:
        """Whether its calls may start, and those of the member."""
        return not (self.state.gate.reasons or handler.gate.reasons)

    def _fill(self, handler: Handler) -> None:
        state, slots = self.state, handler.slots
        if handler.batched:
            if handler.outages:
                spare = slots.free - state.outages.most(handler)
                slots.take(spare)
                self._batching.fill(handler)
                slots.give(spare)
            else:
                self._batching.fill(handler)
            return
        if handler.budget is not None:
            handler.budget.gather(handler)
            return
        if handler.outages:
            works = state.outages.take(handler)
        else:
            works = handler.take(state.now, slots.free)
        if works:
            slots.take(len(works))
            state.deliveries[handler.index].start(handler, works)

    def _check_drained(self) -> None:
        state = self.state
        # Something is in a handler, on the way to the broker, or waits for a commit.
        busy = any(
            partition.in_flight or partition.sending or partition.commit.claims
            for partition in state.partitions.values()
        )
        if state.stop_mode == "buffered" and not busy:  # something can still be finished
            busy = self._batching.waiting() or any(
                partition.will_start
                for partition in state.partitions.values()
                if not partition.gate.reasons
            )
        if state.stop_mode == "now" or not busy:
            state.drained = True
            state.emit(fx.Drained())

    # -- the view: what others may read (tests/test_core_view.py) ----------------------------------

    def report_results(self, *, on: bool) -> None:
        """Whether finished records are reported as results."""
        self.state.reporting = on

    def report_batches(self) -> None:
        """Report each list of records that are done (`effects.BatchFinished`)."""
        self.state.reporting_batches = True

    def note(self, level: str, event: str, **fields: Any) -> None:
        """Request a line in the log."""
        self.state.note(level, event, **fields)

    @property
    def has_effects(self) -> bool:
        """Whether `take_effects` would return any."""
        return bool(self.state.effects)

    @property
    def handlers(self) -> Sequence[Handler]:
        """With their rules and counts."""
        return self.state.handlers

    @property
    def stop_mode(self) -> str | None:
        """The harshest requested stop."""
        return self.state.stop_mode

    @property
    def paused(self) -> set[str | None]:
        """The topics that the user paused; None means all (except those resumed since)."""
        return self.state.desired.topics

    @property
    def intake_paused(self) -> bool:
        """Whether a partition is not fetched because buffers are full."""
        return bool(self.state.flow.paused)

    def room(self, every: Collection[Partition]) -> Room:
        """How much may arrive from any partition without a pause of the intake."""
        return self.state.flow.room(every)

    def under_way(self) -> int:
        """How many calls are in handlers, plus records whose outputs are with the producer."""
        calls = sum(h.slots.taken for h in self.state.handlers)
        return calls + sum(partition.sending for partition in self.state.partitions.values())
