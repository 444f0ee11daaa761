"""The life of one seed: steps with faults, then healing, and what must be true at the end."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from typing import Any

from weft.core import effects as fx
from weft.core.invariants import check
from weft.core.spec import AT_MOST_ONCE
from weft.core.work import Work
from weft.testing.groups import Committed, TopicPartition
from weft.testing.memory import MemoryBroker
from weft.testing.sim import actions, answers, exchanges, finale, rebalance
from weft.testing.sim.dice import Dice
from weft.testing.sim.ledger import Claimed, Source
from weft.testing.sim.liveness import check_liveness
from weft.testing.sim.member import GROUP, Member
from weft.testing.sim.oracle import Oracle
from weft.testing.sim.setup import Odds, Setup, draw
from weft.testing.sim.violation import Violation

STRUCTURE_EVERY = 12  # steps between two recounts of everything
DRAIN_TIMEOUT_S = 10.0
TRANSACTION_TIMEOUT_S = 10.0


class World:
    """One seed."""

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
        self.broker = MemoryBroker()
        self.poison_on = True
        self._held: dict[TopicPartition, tuple[Committed | None, Claimed]] = {}
        group = self.broker.group(GROUP, self.setup.protocol)
        group.metadata_chars_max = self.setup.broker_chars
        self.broker.create_topic("out", 1)
        for index, spec in enumerate(self.setup.specs):
            topic = self.setup.topic(index)
            self.broker.create_topic(topic, self.setup.partitions)
            for number in range(self.setup.partitions):
                tp = (topic, number)
                self.oracle.sources[tp] = Source(tp, self.broker.logs[tp], spec)
        self.runs: Counter[int] = Counter()
        self.members: dict[int, Member] = {}
        #: slots whose process died, since when; the broker still counts their member
        self.dead: dict[int, tuple[float, str]] = {}
        self.start_member(0)

    # -- members -----------------------------------------------------------------------------------

    def start_member(self, slot: int) -> None:
        """A process starts in this slot."""
        dead = self.dead.pop(slot, None)
        if dead is not None:
            self.broker.leave(GROUP, dead[1])
        self.runs[slot] += 1
        self.members[slot] = Member(self, slot, self.runs[slot])

    def bury(self, member: Member, *, left: bool) -> None:
        """The process is gone; `left`: it said goodbye to the broker."""
        self.tell(f"{member.id} {'leaves' if left else 'dies'}")
        del self.members[member.slot]
        self.oracle.gone(member.name)
        if left:
            self.broker.leave(GROUP, member.id)
        self.dead[member.slot] = (self.now, member.id)

    def replace(self, member: Member) -> None:
        """Thrown out of the group, the client joins again."""
        self.runs[100 + member.slot] += 1
        member.rejoin(self.runs[100 + member.slot])

    # -- what the actions ask ----------------------------------------------------------------------

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

    def value(self, item: fx.PlanItem) -> Committed:
        """A plan item as the broker stores it."""
        return Committed(item.frontier, item.metadata)

    def owner(self, tp: TopicPartition) -> str | None:
        """The process that has this partition, by the coordinator."""
        owner = self.broker.group(GROUP).owner(tp)
        return next((m.name for m in self.members.values() if m.id == owner), None)

    def once(self, handler: int) -> bool:
        """Nothing is ever handled twice by this handler."""
        return self.setup.specs[handler].delivery == AT_MOST_ONCE

    def poisoned(self, work: Work) -> bool:
        """The handler always fails for this key."""
        key = work.record.key
        return bool(self.poison_on and self.setup.poison and key and int(key) in self.setup.poison)

    def trace_effect(self, member: Member, effect: fx.Effect) -> None:
        """Every effect is part of what a seed's replay must reproduce (S10)."""
        text = f"{member.name} {_brief(effect)}"
        self.digest = zlib.crc32(text.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.step:4d} {self.now:9.4f}   {text}")

    def tell(self, text: str) -> None:
        """A line in the trace that is no effect."""
        if self.trace is not None:
            self.trace.append(f"{self.step:4d} {self.now:9.4f}   {text}")

    # -- steps -------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole life. Raises Violation."""
        for step in range(self.setup.steps):
            self.step = step
            self.one_step(Dice(self.rng.getrandbits(64)))
            if self.step % STRUCTURE_EVERY == 0:
                self.check_structure()
        finale.run(self)

    def one_step(self, dice: Dice) -> None:
        """One action of one member, or of the world."""
        roll = dice.roll()
        name = next((name for end, name in self.setup.ends if roll < end), "time")
        self.now += 0.001
        present = list(self.members.values())
        self.digest = zlib.crc32(name.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.step:4d} {self.now:9.4f} {name}")
        world_action = _WORLD_ACTIONS.get(name)
        if world_action is not None:
            world_action(self, dice)
        elif present:
            member = dice.pick(present)
            _MEMBER_ACTIONS[name](self, member, dice)
            self.obey(member)

    def obey(self, member: Member) -> None:
        """A fatal error drains and ends the process."""
        if member.fatal and member.stop_at is None:
            self.stop(member, "in_flight")

    def stop(self, member: Member, mode: Any) -> None:
        """Ask the member to stop."""
        member.stop_at = self.now
        member.engine.stop(self.now, mode)
        member.perform()
        if mode == "now" and not member.drained:
            raise Violation("L4", f"{member.name} does not end at once")

    def check_structure(self) -> None:
        """Recount everything inside every engine."""
        for member in self.members.values():
            calls = [0] * len(self.setup.specs)
            for call in member.calls:
                calls[call.handler] += 1
            check(member.engine.state, calls)


def _brief(effect: fx.Effect) -> str:
    name = type(effect).__name__
    if isinstance(effect, fx.Start | fx.StartBatch):
        return f"{name} {[(*w.record[:3], w.record.attempt) for w in effect.works]}"
    if isinstance(effect, fx.CommitOffsets | fx.Transact):
        items = [
            (i.partition.topic, i.partition.number, i.partition.epoch, i.frontier, i.metadata)
            for i in effect.items
        ]
        return f"{name} {effect.sequence} {items}"
    if isinstance(effect, fx.Send | fx.SendDeadLetter | fx.Cancel | fx.Finished):
        return f"{name} {effect.work.record[:3]}"
    return name


# -- what happens to the world ---------------------------------------------------------------------


def produce(world: World, dice: Dice) -> None:
    """A producer writes a few records; markers and aborted batches leave gaps."""
    source = dice.pick(list(world.oracle.sources.values()))
    for _ in range(1 + dice.below(5)):
        key = None
        if not dice.chance(world.setup.null_share):
            key = b"%d" % dice.below(world.setup.keys)
        source.add(world.broker.produce(source.tp, key, b"v"), key)
        if dice.chance(world.odds.gap):
            source.log.gap(1 + dice.below(3))


def pass_time(world: World, dice: Dice) -> None:
    """The clock goes on: a moment or a while."""
    world.now += 10.0 ** (dice.roll() * 3.5 - 2.8)
    tick(world)


def tick(world: World) -> None:
    """Everyone looks at the clock."""
    world.ticked_before, world.ticked_at = world.ticked_at, world.now
    for member in list(world.members.values()):
        member.engine.tick(world.now)
        member.perform()
        if member.stop_at is not None and world.now > member.stop_at + DRAIN_TIMEOUT_S:
            world.stop(member, "now")
        world.obey(member)
        check_liveness(world, member)
    for slot, (since, _) in world.dead.items():
        if world.now > since + TRANSACTION_TIMEOUT_S:
            world.broker.expire_transaction(f"{GROUP}-{slot}")


def churn(world: World, dice: Dice) -> None:
    """Processes start, crash, freeze, stop."""
    slot, kind = dice.below(world.setup.slots), dice.roll()
    member = world.members.get(slot)
    if member is None:
        if slot in world.dead and kind < 0.3:
            world.broker.leave(GROUP, world.dead[slot][1])  # its session times out
        else:
            world.start_member(slot)
    elif kind < 0.45:
        world.oracle.stats["crashes"] += 1
        world.bury(member, left=kind < 0.25)
    elif kind < 0.7:
        world.oracle.stats["expelled"] += 1
        world.tell(f"{member.id} is expelled")
        world.broker.leave(GROUP, member.id)  # frozen past its session: it does not know yet
    elif member.stop_at is None:
        world.oracle.stats["stops"] += 1
        world.stop(member, dice.pick(("in_flight", "in_flight", "buffered", "now")))


def control(world: World, dice: Dice) -> None:
    """The user pauses and resumes; outputs back up and flow again."""
    if not world.members:
        return
    member = dice.pick(list(world.members.values()))
    if dice.chance(0.5):
        member.user_paused = not member.user_paused
        topic = dice.pick((None, world.setup.topic(0)))
        member.engine.pause(world.now, topic if member.user_paused else None, on=member.user_paused)
    else:
        member.held = not member.held
        member.engine.hold(world.now, "outputs", on=member.held)
    member.freed_at = world.now
    member.perform()


def change_log(world: World, dice: Dice) -> None:
    """Compaction, retention, stacked transaction markers."""
    source = dice.pick(list(world.oracle.sources.values()))
    kind = dice.roll()
    if kind < 0.6:
        source.log.gap(1 + dice.below(3))
    elif kind < 0.9 and source.log.records:
        offset = dice.pick(source.log.records).offset
        source.log.compact([offset])
        source.remove({offset})
    elif source.log.records:
        before = source.log.records[dice.below(len(source.log.records))].offset
        source.log.delete_before(before)
        source.remove({offset for offset in source.alive if offset < before})


_WORLD_ACTIONS = {
    "produce": produce,
    "time": pass_time,
    "churn": churn,
    "control": control,
    "log": change_log,
}
_MEMBER_ACTIONS = {
    "poll": actions.poll,
    "end_calls": actions.end_calls,
    "settle": answers.settle,
    "commits": answers.commits,
    "read_back": answers.read_back,
    "transact": exchanges.transact,
    "group": rebalance.group,
}
