"""The engine's data, and the epochs that open and close in it.

`EngineState` has the data, and operations on it that several parts of the core share. The account
(`perkey.account`) reads it; other packages use the view of engine.py.

`Epochs`: every completion, acknowledgement and commit answer refers to its `Partition` object. When
an epoch ends its object is closed, and whatever still comes for it is counted and dropped: the
broker accepts commits from a member that has just lost the partition, so Perkey needs its own
fence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.budgets import budgets_of, divide
from perkey.core.commits import CommitState
from perkey.core.delivery import AtLeastOnce, AtMostOnce, Each, ExactlyOnce
from perkey.core.events import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Limits
from perkey.core.gates import Gate, Outages
from perkey.core.memory import Memory
from perkey.core.offsets import Offsets
from perkey.core.partition import Partition
from perkey.core.portions import Portions
from perkey.core.retries import RetrySchedule
from perkey.core.scheduling import Desired, Flow, Handler
from perkey.core.work import SharedTexts
from perkey.types import ErrorInfo, OutcomeName

if TYPE_CHECKING:
    from perkey.core.batching import Batching, Gathering
    from perkey.core.commits import Commits
    from perkey.core.events import Assignment, HandlerSpec
    from perkey.core.work import LaneKey, Work

#: (delivery, whether each record is committed separately) -> class
_DELIVERIES: dict[tuple[str, bool], Callable[[EngineState], AtLeastOnce]] = {
    (AT_LEAST_ONCE, False): AtLeastOnce,
    (AT_LEAST_ONCE, True): Each,
    (AT_MOST_ONCE, False): AtMostOnce,
    (EXACTLY_ONCE, False): ExactlyOnce,
}


class EngineState:
    """Partitions, handlers, schedules and the effects of the current event."""

    def __init__(
        self, specs: Iterable[HandlerSpec], limits: Limits, size_of: Callable[[Any], int]
    ) -> None:
        self.limits = limits
        #: bytes of a record's share of outputs
        self.size_of = size_of
        self.portions = Portions(self)
        self.now = 0.0
        #: UNIX seconds at zero of the engine's clock
        self.wall_s = 0.0
        self.handlers = [Handler(index, spec) for index, spec in enumerate(specs)]
        #: budgets that handlers share, by name
        self.budgets = budgets_of(self)
        #: for each handler, how many partitions its topics have; None: not known yet, missing: as
        #: many as this member has (budgets.py)
        self.totals: Mapping[int, int | None] = {}
        #: the only handler; None if there are more
        self.only = self.handlers[0] if len(self.handlers) == 1 else None
        #: the rules of each handler's delivery
        self.deliveries: list[AtLeastOnce] = [
            _DELIVERIES[h.spec.delivery, h.spec.commit_each](self) for h in self.handlers
        ]
        #: the open or revoking epoch of each partition
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.epochs = 0
        #: heads whose turn has come in partitions that know something of records to come; looked
        #: at before anything starts (`Endings.turns_come`)
        self.turns: deque[Work] = deque()
        self.retries = RetrySchedule()
        self.flow = Flow(limits)
        self.outages = Outages(self)
        #: requested and not taken by the runtime yet
        self.effects: list[fx.Effect] = []
        #: adds an effect; the list's own method, as it is called in every turn
        self.emit: Callable[[fx.Effect], None] = self.effects.append
        #: attempts of ended epochs that still run, by partition and lane
        self.orphans: dict[tuple[str, int], dict[LaneKey, Work]] = {}
        #: partitions with claims, in the order they got them
        self.claiming: dict[Partition, None] = {}
        #: partitions with records that are kept as offsets
        self.shelving: dict[Partition, None] = {}
        #: why nothing of this member may start
        self.gate = Gate()
        self.desired = Desired()
        #: results are read: every finished record is reported
        self.reporting = False
        #: for each list of records that are done there is one effect
        self.reporting_batches = False
        self.stop_mode: str | None = None
        self.drained = False
        self.fatal: fx.Fatal | None = None
        #: for each handler the open batches, by group
        self.open_batches: list[dict[Any, Gathering]] = [{} for _ in self.handlers]
        #: records finished since everything was last committed (see `Commits.run`)
        self.finished_since_commit = 0
        #: texts that failing records have in common
        self.texts = SharedTexts()
        #: counts that belong to no handler, by name
        self.counts: Counter[str] = Counter()

    # -- effects ---------------------------------------------------------------------------------

    def take_effects(self) -> list[fx.Effect]:
        """The effects requested since the last call, in order."""
        effects, self.effects = self.effects, []
        self.emit = self.effects.append
        return effects

    def note(self, level: str, event: str, **fields: Any) -> None:
        """Request a line in the log."""
        self.emit(fx.Note(level, event, fields))

    def report(
        self, work: Work, outcome: OutcomeName, error: ErrorInfo | None = None, outputs: Any = ()
    ) -> None:
        """Report the record's outcome, if results are read."""
        if self.reporting:
            self.emit(fx.Finished(work, outcome, error, outputs, work.record))

    def trouble(self, work: Work, outcome: fx.Trouble, error: ErrorInfo | None = None) -> None:
        """Report a failed attempt, or a record that is given up, for the log.

        `error`: the error of this attempt; otherwise the last one that was kept.
        """
        failure = work.failure
        assert failure is not None
        assert failure.error is not None
        error = error or failure.error
        self.emit(fx.Troubled(work, outcome, failure.attempts, error, work.record))

    def complete(self, work: Work, *, report: bool = True) -> None:
        """The record is finished for good: count and report it."""
        handler, failure = work.partition.handler, work.failure
        if failure is None or failure.given_up is None:
            handler.done += 1
            if report:
                self.report(work, "done", None, work.outputs or ())
        elif failure.given_up == "skipped":
            handler.skipped += 1
            self.trouble(work, "skipped")
            self.report(work, "skipped", failure.error)
        else:
            handler.dead_lettered += 1
            self.trouble(work, "dead_lettered")
            self.report(work, "dead_lettered", failure.error, work.outputs or ())

    def fail(self, reason: str, error: ErrorInfo | None = None) -> None:
        """End the run; the first reason is the one that is reported."""
        if self.fatal is None:
            self.fatal = fx.Fatal(reason, error)
            self.emit(self.fatal)

    # -- what is shared --------------------------------------------------------------------------

    def closing(self, partitions: Sequence[Partition]) -> None:
        """Records of these partitions that have not started will not start in this epoch."""
        for handler, delivery in zip(self.handlers, self.deliveries, strict=True):
            if ours := [partition for partition in partitions if partition.handler is handler]:
                delivery.closing(ours)

    def divide_budgets(self) -> None:
        """Partitions were assigned or revoked: update each budget's share."""
        if self.budgets:
            divide(self)

    def find(self, topic: str, number: int, offset: int) -> Work | None:
        """A record that is not done."""
        partition = self.partitions.get((topic, number))
        if partition is None:
            return None
        return partition.offsets.incomplete.get(offset) or partition.commit.marked.get(offset)

    def claim(self, work: Work) -> None:
        """The record's next step waits for the next commit of its partition."""
        work.partition.commit.claims.append(work)
        self.claiming[work.partition] = None

    def unclaim(self, partition: Partition) -> None:
        """Claims of this partition were removed: it leaves the list if it has none."""
        if not partition.commit.claims:
            self.claiming.pop(partition, None)

    def orphan(self, where: tuple[str, int], running: dict[LaneKey, Work]) -> None:
        """These attempts outlive their epoch: their lanes wait for them in the next one."""
        # Lanes occupied since older epochs stay so, by the attempt that runs there.
        if running:
            self.orphans.setdefault(where, {}).update(running)

    def put_away(self, work: Work) -> None:
        """Keep only offsets of a parked or held lane, if it can be fetched again."""
        if self.limits.forget_parked:
            work.partition.shelves.put_away(work)
            self.watch_shelves(work.partition, on=True)

    def watch_shelves(self, partition: Partition, *, on: bool) -> None:
        """Whether the partition has records that are kept as offsets."""
        if on:
            self.shelving[partition] = None
        else:
            self.shelving.pop(partition, None)

    def end_orphan(self, work: Work) -> bool:
        """Such an attempt has ended; False if its lane waits for another one, or for none."""
        where = work.partition.where
        orphans = self.orphans.get(where, {})
        key = work.partition.lanes.key_of(work.record)
        if orphans.get(key) is not work:
            return False
        del orphans[key]
        if not orphans:
            del self.orphans[where]
        return True

    def set_clock(self, unix_s: float) -> None:
        """Set the engine's clock against UNIX seconds."""
        self.wall_s = unix_s - self.now

    def count(self, name: str, times: int = 1) -> None:
        """Count something that belongs to no handler."""
        self.counts[name] += times


# -- epochs ----------------------------------------------------------------------------------------


class Epochs:
    """Opens and closes partition epochs."""

    def __init__(self, state: EngineState, commits: Commits, batching: Batching) -> None:
        self._state = state
        self._commits = commits
        self._batching = batching

    def opened(self, assignments: Sequence[Assignment]) -> list[Partition]:
        """Open an epoch for each; an epoch of the same partition that is still open is lost."""
        state = self._state
        opened = []
        for new in assignments:
            state.set_clock(new.unix_s)
            where = (new.topic, new.partition)
            if where in state.partitions:
                self.closed([state.partitions[where]], lost=True)
            state.epochs += 1
            offsets = Offsets(new.start, new.restored_top, new.restored_not_done)
            limit = state.limits.map_chars
            handler = state.handlers[new.handler]
            memory = Memory(new.remembered, on=handler.remembers)
            commit = CommitState(
                offsets, new.committed, state.now, limit, repeat=new.commit_start, memory=memory
            )
            occupied = state.orphans.get(where, ())
            partition = Partition(
                *where, state.epochs, handler, offsets, commit, occupied, state.turns, new.log_end
            )
            state.partitions[where] = partition
            if new.commit_start:
                self._commits.soon()
            state.desired.open(partition, state.now)
            opened.append(partition)
        state.divide_budgets()
        return opened

    def revoking(self, partitions: Iterable[Partition]) -> None:
        """The partitions are being revoked: start nothing new of them."""
        going = [partition for partition in partitions if partition.state == states.OPEN]
        for partition in going:
            partition.move(states.REVOKING)
        self._state.closing(going)

    def last_commit(self, partitions: Iterable[Partition]) -> fx.CommitOffsets:
        """The last commit of partitions that are about to be closed; the caller sends it.

        A commit in flight does not delay it; the caller has waited for that one as long as it may.
        """
        partitions = list(partitions)
        self._state.closing(partitions)
        due = [
            partition
            for partition in partitions
            if partition.state != states.CLOSED
            and not partition.handler.exact
            and not (partition.settled and not partition.commit.claims)
        ]
        return self._commits.last(due)

    def closed(self, partitions: Iterable[Partition], *, lost: bool) -> None:
        """The epochs have ended."""
        state = self._state
        ending = [partition for partition in partitions if partition.state != states.CLOSED]
        self._state.closing(ending)
        for partition in ending:
            partition.move(states.CLOSED)
            if state.partitions.get(partition.where) is partition:
                del state.partitions[partition.where]
            self._drop(partition)
            state.flow.forget(partition)
            state.portions.forget(partition)
            state.unclaim(partition)
            state.watch_shelves(partition, on=False)
            state.count("partitions_lost" if lost else "partitions_revoked")
        self._commits.ended()
        state.divide_budgets()

    def _drop(self, partition: Partition) -> None:
        """Drop everything that waits; running records are fenced and hold their lanes."""
        running: dict[LaneKey, Work] = {}
        for work in partition.works():
            if work.state == states.RUNNING:
                running[partition.lanes.key_of(work.record)] = work
            elif work.state in states.HANDLED:
                self._state.deliveries[partition.handler.index].dropped(work)
                self._state.report(work, "superseded")
            work.move(states.SUPERSEDED)
        self._batching.forget(partition)
        self._state.retries.forget()
        self._state.orphan(partition.where, running)
        for command, row in partition.commit.answers:
            lost = row._replace(outcome="lost", detail="the partition went away first: ask again")
            self._state.emit(fx.Answered(command, [lost]))
        partition.close()
