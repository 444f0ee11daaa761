"""Shared by all parts of one seed: the broker, the clock, the oracle, and the trace."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from typing import Protocol

from perkey.core import effects as fx
from perkey.core.events import AT_MOST_ONCE
from perkey.core.work import Work
from perkey.testing.memory import MemoryBroker, OffsetAndMetadata, ProducerId
from perkey.types import TopicPartition
from simulators.core.ledger import Claimed, Source
from simulators.core.oracle import Oracle
from simulators.core.profiles import draw
from simulators.core.setup import Odds, Setup

GROUP = "g"


class Process(Protocol):
    """A process in the group."""

    name: str
    #: what the coordinator calls it
    id: str


class Stage:
    """One seed, as its processes see it."""

    def __init__(self, seed: int, steps: int = 300, *, trace: list[str] | None = None) -> None:
        self.setup: Setup = draw(seed, steps)
        self.odds: Odds = self.setup.odds
        self.rng = random.Random(seed ^ 0x5EED)
        self.now = 0.0
        self.step = 0
        #: the last two looks at the clock
        self.ticked_at = self.ticked_before = 0.0
        self.trace = trace
        self.digest = 0
        self.oracle = Oracle(lambda: self.now)
        if self.setup.broker_chars >= self.setup.limits.map_chars:
            self.oracle.map_chars_kept = self.setup.limits.map_chars
        self.broker = MemoryBroker()
        self.poison_on = True
        #: other services with a transaction open in these logs
        self.writers: dict[TopicPartition, ProducerId] = {}
        self._held: dict[TopicPartition, tuple[OffsetAndMetadata | None, Claimed]] = {}
        group = self.broker.group(GROUP, self.setup.protocol)
        group.metadata_chars_max = self.setup.broker_chars
        self.broker.create_topic("out", 1)
        for index, spec in enumerate(self.setup.specs):
            topic = self.setup.topic(index)
            self.broker.create_topic(topic, self.setup.partitions)
            for number in range(self.setup.partitions):
                tp = (topic, number)
                self.oracle.sources[tp] = Source(tp, self.broker.logs[tp], spec)

    def held(self, work: Work) -> Claimed:
        """What the broker holds for the record's partition."""
        return self.held_of((work.record.topic, work.record.partition))

    def held_of(self, tp: TopicPartition) -> Claimed:
        """What the broker holds for this partition."""
        value = self.broker.group(GROUP).committed.get(tp)
        known = self._held.get(tp)
        if known is None or known[0] is not value:
            known = self._held[tp] = (value, Claimed(*(value or (0, ""))))
        return known[1]

    def value(self, item: fx.PlanItem) -> OffsetAndMetadata:
        """A plan item as the broker stores it."""
        return OffsetAndMetadata(item.frontier, item.metadata)

    def processes(self) -> Iterable[Process]:
        """Those that live."""
        return ()

    def owner(self, tp: TopicPartition) -> str | None:
        """The process that has this partition, by the coordinator."""
        owner = self.broker.group(GROUP).owner(tp)
        return next((one.name for one in self.processes() if one.id == owner), None)

    def once(self, handler: int) -> bool:
        """Nothing is ever handled twice by this handler."""
        return self.setup.specs[handler].delivery == AT_MOST_ONCE

    def poisoned(self, work: Work) -> bool:
        """The handler always fails for this key."""
        if work.record.key is not None and self.step < self.setup.keyed_fail_to:
            return True
        outputs = self.setup.poison_outputs or self.setup.poison_aborts
        return not outputs and self.poison(work)

    def unacknowledged(self, work: Work) -> bool:
        """What is put out for this key, alone or in a batch, nobody takes or refuses."""
        return self.setup.poison_outputs and self.poison_in(work)

    def aborts(self, work: Work) -> bool:
        """Each transaction with what is put out for this key is aborted."""
        return self.setup.poison_aborts and self.poison_in(work)

    def outage(self) -> bool:
        """Every transaction is aborted now, whatever is in it."""
        begin, end = self.setup.outage
        return begin <= self.step < end

    def poison_in(self, work: Work) -> bool:
        """It has outputs, and some of them are of such a key."""
        outputs = work.outputs
        if outputs is None:
            return False
        if isinstance(outputs, fx.SendDeadLetter):  # to another topic
            return False
        return any(map(self.poison, getattr(outputs, "works", (work,))))

    def poison(self, work: Work) -> bool:
        """It is of a key that something is wrong with, for as long as that lasts."""
        key = work.record.key
        return bool(self.poison_on and self.setup.poison and key and int(key) in self.setup.poison)

    def trace_effect(self, process: str, effect: fx.Effect) -> None:
        """Every effect is part of what a seed's replay must reproduce (S10)."""
        text = f"{process} {_brief(effect)}"
        self.digest = zlib.crc32(text.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.step:4d} {self.now:9.4f}   {text}")

    def tell(self, text: str) -> None:
        """A line in the trace that is no effect."""
        if self.trace is not None:
            self.trace.append(f"{self.step:4d} {self.now:9.4f}   {text}")


def _brief(effect: fx.Effect) -> str:
    name = type(effect).__name__
    if isinstance(effect, fx.Answered):
        return f"{name} {effect.command} {effect.rows}"
    if isinstance(effect, fx.Start):
        return f"{name} {[(*w.record[:3], w.record.attempt) for w in effect.works]}"
    if isinstance(effect, fx.CommitOffsets | fx.Transact):
        items = [
            (i.partition.topic, i.partition.number, i.partition.epoch, i.frontier, i.metadata)
            for i in effect.items
        ]
        return f"{name} {effect.sequence} {items}"
    of_work = fx.Send, fx.SendDeadLetter, fx.AskExhausted, fx.Finished, fx.Troubled
    if isinstance(effect, of_work):
        return f"{name} {effect.work.record[:3]}"
    return name
