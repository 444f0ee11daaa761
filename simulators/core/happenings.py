"""Events of the simulated world: new records, time, process starts and ends, log changes."""

from __future__ import annotations

from perkey.testing.memory import Log
from simulators.core.dice import Dice
from simulators.core.foreign import end_foreign, write_open
from simulators.core.ledger import Source
from simulators.core.liveness import check_liveness
from simulators.core.stage import GROUP
from simulators.core.world import World

DRAIN_TIMEOUT_S = 10.0
TRANSACTION_TIMEOUT_S = 10.0


def produce(world: World, dice: Dice) -> None:
    """A producer writes a few records; markers and aborted batches leave gaps."""
    source = dice.pick(list(world.oracle.sources.values()))
    for _ in range(1 + dice.below(world.setup.produce_max)):
        key = None
        block = world.setup.key_block
        no_key = source.log.end // block % 2 if block else dice.chance(world.setup.null_share)
        if not no_key:
            key = b"%d" % dice.below(world.setup.keys)
        source.add(world.broker.produce(source.tp, key, _value(world, dice)), key)
        if dice.chance(world.odds.gap):
            source.log.gap(1 + dice.below(3))


def _value(world: World, dice: Dice) -> bytes:
    most = world.setup.value_bytes
    return b"v" * (1 if most == 1 else 1 + dice.below(most))


def foreign(world: World, dice: Dice) -> None:
    """Another service writes in transactions: until they end nobody may read past their start."""
    source = dice.pick(list(world.oracle.sources.values()))
    if source.tp not in world.writers or dice.chance(0.3):
        write_open(world, source, 1 + dice.below(3), dice)
    else:
        end_foreign(world, source, committed=dice.chance(0.7))


def retention(world: World, dice: Dice) -> None:
    """Nearly all of a log is deleted, also what a member has not read yet."""
    source = dice.pick(list(world.oracle.sources.values()))
    before = max(source.log.start, source.log.stable_end() - dice.below(4))
    source.log.delete_before(before)
    source.remove({offset for offset in source.alive if offset < before})


def remake(world: World, dice: Dice) -> None:
    """A topic is deleted and made again: other records, other offsets, nothing committed."""
    topic = world.setup.topic(dice.below(len(world.setup.specs)))
    for tp, source in list(world.oracle.sources.items()):
        if tp[0] == topic:
            end_foreign(world, source, committed=False)
            world.broker.logs[tp] = Log()
            world.broker.group(GROUP).committed.pop(tp, None)
            # Epochs of the former topic keep what they know of it.
            world.oracle.sources[tp] = Source(tp, world.broker.logs[tp], source.spec)
    world.oracle.stats["topics made again"] += 1


def pass_time(world: World, dice: Dice) -> None:
    """The clock goes on: a moment or a while."""
    world.now += 10.0 ** (dice.roll() * 3.5 - 2.8)
    tick(world)


def tick(world: World) -> None:
    """Everyone looks at the clock."""
    world.ticked_before, world.ticked_at = world.ticked_at, world.now
    for member in list(world.members.values()):
        member.time_out()
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
        member.engine.halt(world.now, "outputs", on=member.held)
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
        before = min(before, source.log.stable_end())
        source.log.delete_before(before)
        source.remove({offset for offset in source.alive if offset < before})
