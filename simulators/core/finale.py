"""After all faults heal, everything must finish: S1, L2, L4, S8 of reliability.md."""

from __future__ import annotations

from perkey.account.account import take
from perkey.account.snapshot import snapshot
from perkey.core.events import AT_MOST_ONCE, EXACTLY_ONCE, Steering
from perkey.policies import DeadLetter, Stop
from simulators.core import actions, answers, exchanges, rebalance
from simulators.core.commanding import put_off, release_all
from simulators.core.dice import Dice
from simulators.core.foreign import end_foreign
from simulators.core.happenings import tick
from simulators.core.ledger import Source
from simulators.core.member import Member
from simulators.core.setup import UNBOUNDED_BYTES, Odds
from simulators.core.stage import GROUP
from simulators.core.steered import obey
from simulators.core.violation import Violation, require
from simulators.core.world import World

STRUCTURE_EVERY = 12  # steps between two recounts of everything
IDLE_ROUNDS_MAX = 40
ROUNDS_MAX = 2_000


def run(world: World) -> None:
    """Heal; let the healthy records finish; then all; then look at what is left behind."""
    _heal(world)
    if _comfortable(world):
        _until(world, _healthy_finished, "L2")
        if world.setup.poison_aborts:
            _until(world, _culprits_failed, "L2")
    world.poison_on = False
    for slot in list(world.members):
        world.stop(world.members[slot], "in_flight")
    _until(world, lambda w: not w.members, "L4")
    world.start_member(0)
    _until(world, _everything_committed, "S1")
    world.check_structure()
    _check_outputs(world)


def _heal(world: World) -> None:
    # No faults that heal: a quota stays, and so does a partition without a leader.
    setup = world.setup
    outputs = setup.poison_outputs or setup.poison_aborts
    slow = setup.transaction_bytes < UNBOUNDED_BYTES or outputs
    world.odds = Odds(outputs=world.odds.outputs if slow else 0.0)
    world.away.clear()
    for member in world.members.values():
        member.user_paused = member.held = False
        member.freed_at = world.now
        member.engine.pause(world.now, None, on=False)
        obey(world, member, Steering())
        member.engine.halt(world.now, "outputs", on=False)
        member.perform()
        for call in member.calls:
            call.stuck = False
    for source in world.oracle.sources.values():
        end_foreign(world, source, committed=True)
    for slot in list(world.dead):
        world.start_member(slot)


def _comfortable(world: World) -> bool:
    """Failing records may stop others only when their own budget is full: here it is not."""
    limits = world.setup.limits
    roomy = limits.buffer_records >= 50_000 and limits.buffer_bytes >= 10**8
    maps = limits.map_chars == 4096 and world.setup.broker_chars == 4096
    return roomy and maps and not any(isinstance(s.on_exhausted, Stop) for s in world.setup.specs)


def _until(world: World, finished: object, name: str) -> None:
    assert callable(finished)
    number = idle = 0
    before: object = None
    while not finished(world):
        _round(world, 0.3 if number < 20 else 5.0, may_start=name != "L4")
        number += 1
        after = _progress(world)
        idle = idle + 1 if after == before else 0
        before = after
        if idle >= IDLE_ROUNDS_MAX or number > ROUNDS_MAX:
            raise Violation(name, f"not finished after {number} quiet rounds: {_left(world)}")


def _progress(world: World) -> object:
    done = sum(len(source.finished) for source in world.oracle.sources.values())
    committed = world.broker.group(GROUP).committed.values()
    read = sum(sum(member.positions.values()) for member in world.members.values())
    return done, read, sum(value.offset for value in committed), len(world.members)


def _round(world: World, seconds: float, *, may_start: bool) -> None:
    """Everyone does all there is to do, then time passes."""
    dice = Dice(world.rng.getrandbits(64))
    world.step += 1
    if not world.members and may_start:
        world.start_member(0)
    for member in list(world.members.values()):
        _serve(world, member, dice)
    world.now += seconds
    tick(world)
    if world.step % STRUCTURE_EVERY == 0:
        world.check_structure()


def _serve(world: World, member: Member, dice: Dice) -> None:
    for _ in range(4):
        rebalance.group(world, member, dice)
        if world.members.get(member.slot) is not member:
            return
    actions.poll(world, member, dice)
    if not world.poison_on:
        release_all(world, member)
    for _ in range(3):
        actions.end_calls(world, member, dice, every=True)
        answers.settle(world, member, dice, every=True)
        while member.requests:
            answers.commits(world, member, dice)
        while member.reads:
            answers.read_back(world, member, dice)
        for _ in range(3):
            exchanges.transact(world, member, dice)
    world.obey(member)


# -- what finished means ---------------------------------------------------------------------------


def _done(source: Source, offset: int) -> bool:
    if source.spec.delivery == AT_MOST_ONCE:
        return source.starts[offset] > 0 or offset in (source.excused | source.finished)
    return offset in source.finished


def _healthy_finished(world: World) -> bool:
    """Every record whose lane has no failing one before it, or one that a commit put off."""
    parked = _parked_lanes(world)
    return all(
        _done(source, offset)
        for tp, source in world.oracle.sources.items()
        for lane, offsets in source.lanes.items()
        if (tp, lane) not in parked and not _poison_lane(world, source, offsets)
        for offset in offsets
        if offset in source.alive
    )


def _parked_lanes(world: World) -> set[tuple[object, object]]:
    """The lanes with a record that is parked, held or put off in an open epoch.

    The log may have lost that record since: what is alive of the lane waits behind it all the same.
    """
    return {
        (life.source.tp, life.source.lane(offset))
        for life in world.oracle.lives.values()
        if life.state == "open"
        for offset in (*life.parked, *life.held_until, *put_off(life, world.now))
        if offset in life.source.keys
    }


def _culprits_failed(world: World) -> bool:
    """What aborts every transaction has failed an attempt, as long as others get through."""
    parked = _parked_lanes(world)
    for source in world.oracle.sources.values():
        source.add(world.broker.produce(source.tp, None, b"v"), None)
    tried = {
        (life.source.tp, offset) for life in world.oracle.lives.values() for offset in life.attempts
    }
    return all(
        (tp, offset) in tried
        for tp, source in world.oracle.sources.items()
        for lane, offsets in source.lanes.items()
        if (tp, lane) not in parked and _poison_lane(world, source, offsets)
        for offset in [o for o in offsets if o in source.alive and not _done(source, o)][:1]
    )


def _poison_lane(world: World, source: Source, offsets: list[int]) -> bool:
    keys = {source.keys[offset] for offset in offsets}
    return any(key is not None and int(key) in world.setup.poison for key in keys)


def _everything_committed(world: World) -> bool:
    """Done, and the group's frontier stands at the end of every log."""
    committed = world.broker.group(GROUP).committed
    for tp, source in world.oracle.sources.items():
        held = committed.get(tp)
        if held is None or held.offset != source.log.end:
            return False
        missing = [offset for offset in source.alive if not _done(source, offset)]
        require(not missing, "S1", f"{tp}: {missing} are committed and were never finished")
    return True


def _left(world: World) -> str:
    rows = []
    for tp, source in world.oracle.sources.items():
        missing = sorted(offset for offset in source.alive if not _done(source, offset))
        held = world.broker.group(GROUP).committed.get(tp)
        rows.append(f"{tp}: unfinished {missing[:10]}, committed {held}, end {source.log.end}")
    states = [snapshot(take(one.engine, 0.0)) for one in world.members.values()]
    return f"{rows} {states}"


def _check_outputs(world: World) -> None:
    """S8: a read_committed reader sees each output once, and those of one lane in order."""
    log = world.broker.logs["out", 0]
    found, _ = log.read(0, 1_000_000, committed=True)
    last: dict[tuple[object, ...], int] = {}
    for stored in found:
        topic, number, offset_text = (stored.value or b"").decode().split(":")
        tp, offset = (topic, int(number)), int(offset_text)
        source = world.oracle.sources[tp]
        seen = world.oracle.outputs_seen
        seen[tp, offset] += 1
        once = seen[tp, offset] == 1
        require(once, "S8", f"{tp}@{offset} is in the output {seen[tp, offset]} times")
        if offset not in world.oracle.refused_ever[tp]:
            lane = (tp, source.lane(offset))
            require(last.get(lane, -1) < offset, "S8", f"{tp}@{offset} comes out of order")
            last[lane] = offset
    _all_there(world)


def _all_there(world: World) -> None:
    oracle = world.oracle
    for tp, offset in oracle.outputs_due:
        source = oracle.sources[tp]
        if source.spec.delivery == EXACTLY_ONCE:
            there = (tp, offset) in oracle.outputs_seen
            require(there, "S8", f"the output of {tp}@{offset} is missing")
    for source in world.oracle.sources.values():
        if isinstance(source.spec.on_exhausted, DeadLetter):
            world.oracle.stats["sources with dead letters"] += 1
