"""What the engine holds, shared by its parts. Nothing outside the core may change any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from weft.core import effects as fx
from weft.core.failing import RetrySchedule
from weft.core.flow import Flow
from weft.core.handler import Handler
from weft.core.partition import Partition
from weft.core.spec import HandlerSpec, Limits
from weft.core.work import LaneKey, Work
from weft.types import ErrorInfo, OutcomeName


class EngineState:
    """Partitions, handlers, schedules and the effects of the event at hand."""

    def __init__(self, specs: Iterable[HandlerSpec], limits: Limits) -> None:
        self.limits = limits
        self.now = 0.0
        self.handlers = [Handler(index, spec) for index, spec in enumerate(specs)]
        #: the open or revoking epoch of each partition
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.epochs = 0
        self.retries = RetrySchedule()
        self.flow = Flow(limits)
        #: asked for so far and not taken by the runtime yet
        self.effects: list[fx.Effect] = []
        #: attempts of ended epochs that still run, by where they came from
        self.orphans: dict[tuple[str, int], dict[LaneKey, Work]] = {}
        #: partitions with claims, in the order they got them
        self.claiming: dict[Partition, None] = {}
        #: why nothing may start, beside what each partition says
        self.holds: set[str] = set()
        #: the user's word on all topics, and those of which he has said the opposite since
        self.all_paused = False
        self.exceptions: set[str] = set()
        #: someone reads results: every finished record is reported
        self.reporting = False
        self.stop_mode: str | None = None
        self.drained = False
        self.fatal: fx.Fatal | None = None
        #: finished since the last commit was built
        self.finished_since_commit = 0
        #: things that are counted but belong to no handler, by name
        self.counts: Counter[str] = Counter()

    def emit(self, effect: fx.Effect) -> None:
        """Ask the runtime for something."""
        self.effects.append(effect)

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

    def claim(self, work: Work) -> None:
        """The record's next step waits for the next commit of its partition."""
        work.partition.claims.append(work)
        self.claiming[work.partition] = None

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
            partition.in_flight or partition.sending or partition.claims
            for partition in self.partitions.values()
        )
