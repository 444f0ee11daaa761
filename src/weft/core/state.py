"""What the engine holds, shared by its parts. Nothing outside the core may change any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from weft.core import effects as fx
from weft.core.delivery import Delivery
from weft.core.delivery.exactly_once import Portions
from weft.core.endings import RetrySchedule
from weft.core.flow import Flow
from weft.core.handler import Handler
from weft.core.partition import Partition
from weft.core.spec import HandlerSpec, Limits
from weft.core.work import LaneKey, SharedTexts, Work
from weft.types import ErrorInfo, OutcomeName


class OpenBatch(Protocol):
    """A batch that is being gathered, as others may see it."""

    works: list[Work]


class EngineState:
    """Partitions, handlers, schedules and the effects of the event at hand."""

    def __init__(
        self, specs: Iterable[HandlerSpec], limits: Limits, size_of: Callable[[Any], int]
    ) -> None:
        self.limits = limits
        #: bytes of a record's share of outputs
        self.size_of = size_of
        self.portions = Portions(limits)
        self.now = 0.0
        self.handlers = [Handler(index, spec) for index, spec in enumerate(specs)]
        #: the one handler; None where there are more
        self.only = self.handlers[0] if len(self.handlers) == 1 else None
        #: the open or revoking epoch of each partition
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.epochs = 0
        self.retries = RetrySchedule()
        self.flow = Flow(limits)
        #: asked for so far and not taken by the runtime yet
        self.effects: list[fx.Effect] = []
        #: ask the runtime for something; the list's own, for it is called in every turn
        self.emit: Callable[[fx.Effect], None] = self.effects.append
        #: attempts of ended epochs that still run, by where they came from
        self.orphans: dict[tuple[str, int], dict[LaneKey, Work]] = {}
        #: partitions with claims, in the order they got them
        self.claiming: dict[Partition, None] = {}
        #: why nothing may start, beside what each partition says
        self.halts: set[str] = set()
        #: the user's word on all topics, and those of which he has said the opposite since
        self.all_paused = False
        self.exceptions: set[str] = set()
        #: someone reads results: every finished record is reported
        self.reporting = False
        self.stop_mode: str | None = None
        self.drained = False
        self.fatal: fx.Fatal | None = None
        #: of each handler the batches that were not called yet; Batching's alone to change
        self.open_batches: Sequence[Mapping[Any, OpenBatch]] = ()
        #: of each handler
        self.deliveries: Sequence[Delivery] = ()
        #: finished since the last commit was built
        self.finished_since_commit = 0
        #: what failing records have in common
        self.texts = SharedTexts()
        #: things that are counted but belong to no handler, by name
        self.counts: Counter[str] = Counter()

    def note(self, level: str, event: str, **fields: Any) -> None:
        """Ask for a line in the log."""
        self.effects.append(fx.Note(level, event, fields))

    def report(
        self,
        work: Work,
        outcome: OutcomeName,
        error: ErrorInfo | None = None,
        outputs: Any = (),
    ) -> None:
        """Tell whoever reads results what became of the record."""
        if self.reporting:
            self.effects.append(fx.Finished(work, outcome, error, outputs))

    def trouble(self, work: Work, outcome: fx.Trouble, error: ErrorInfo | None = None) -> None:
        """An attempt failed, or the record is given up: something for the log.

        `error`: as the attempt ended with it; else what is kept of the last one.
        """
        failure = work.failure
        assert failure is not None
        assert failure.error is not None
        self.effects.append(
            fx.Troubled(work, outcome, failure.attempts, error or failure.error, work.record)
        )

    def closing(self, partitions: Sequence[Partition]) -> None:
        """Nothing of these that has not begun will begin in this epoch."""
        for handler, delivery in zip(self.handlers, self.deliveries, strict=True):
            ours = [partition for partition in partitions if partition.handler is handler]
            if ours:
                delivery.closing(ours)

    def take_effects(self) -> list[fx.Effect]:
        """What was asked for since the last time, in this order."""
        effects, self.effects = self.effects, []
        self.emit = self.effects.append
        return effects

    def claim(self, work: Work) -> None:
        """The record's next step waits for the next commit of its partition."""
        work.partition.commit.claim(work)
        self.claiming[work.partition] = None

    def unclaim(self, partition: Partition) -> None:
        """Claims of this partition were taken or withdrawn: it is looked at no more without any."""
        if not partition.commit.claims:
            self.claiming.pop(partition, None)

    def hold_lanes(self, where: tuple[str, int], running: dict[LaneKey, Work]) -> None:
        """These attempts outlive their epoch: their lanes wait for them in the next one."""
        # Held lanes of still older epochs stay held by the attempt that runs there.
        if running:
            self.orphans.setdefault(where, {}).update(running)

    def let_go(self, work: Work) -> bool:
        """Such an attempt has ended; False where its lane waits for another one, or for none."""
        where = (work.record.topic, work.record.partition)
        orphans = self.orphans.get(where, {})
        key = work.partition.lanes.key_of(work.record)
        if orphans.get(key) is not work:
            return False
        del orphans[key]
        if not orphans:
            del self.orphans[where]
        return True

    def count(self, name: str, times: int = 1) -> None:
        """Something happened that belongs to no handler."""
        self.counts[name] += times

    def count_finished(self, records: int) -> None:
        """So many more are finished with since the last commit was built."""
        self.finished_since_commit += records

    def begin_commits(self, *, still: int) -> None:
        """Commits are built now; `still` of what has finished waits for the next ones."""
        self.finished_since_commit = still

    def set_paused(self, topic: str | None, *, on: bool) -> None:
        """The user pauses or resumes a topic, or all: for epochs to come as well."""
        if topic is None:
            self.all_paused = on
            self.exceptions.clear()
        elif on == self.all_paused:
            self.exceptions.discard(topic)
        else:
            self.exceptions.add(topic)

    @property
    def paused(self) -> set[str | None]:
        """The topics that are paused; None stands for all (but those resumed since)."""
        return {None} if self.all_paused else set(self.exceptions)

    def is_paused(self, topic: str) -> bool:
        """The user does not want anything of this topic to start."""
        return self.all_paused != (topic in self.exceptions)

    def fail(self, reason: str, error: ErrorInfo | None = None) -> None:
        """End the run; the first reason is the one that is told."""
        if self.fatal is None:
            self.fatal = fx.Fatal(reason, error)
            self.emit(self.fatal)

    def idle(self) -> bool:
        """Nothing is with a handler, on the way to the broker, or waiting for a commit."""
        return not any(
            partition.in_flight or partition.sending or partition.commit.claims
            for partition in self.partitions.values()
        )
