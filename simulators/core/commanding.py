"""A person's commands, and what other clients do to riders."""

from __future__ import annotations

import random

from perkey.codec import Remembered, rider, wire, with_rider, zstd
from perkey.core import effects as fx
from perkey.core.events import Action, Command, Target
from perkey.core.partition import Partition
from perkey.testing.memory import OffsetAndMetadata
from simulators.core.dice import Dice
from simulators.core.ledger import Life
from simulators.core.member import Member
from simulators.core.remembering import UNIX_S
from simulators.core.stage import GROUP
from simulators.core.violation import require
from simulators.core.world import World

ACTIONS: tuple[Action, ...] = ("hold", "hold", "release", "retry", "skip")
RIDERS = ("shed", "cut", "version", "hostile")


def command(world: World, dice: Dice) -> None:
    """Somebody commands a lane or a record; now and then the same twice."""
    if not world.members:
        return
    member = dice.pick(list(world.members.values()))
    source = dice.pick(list(world.oracle.sources.values()))
    offset: int | None = None
    key: bytes | None = b"%d" % dice.below(world.setup.keys)
    if dice.chance(0.6) and source.alive:
        near = sorted(source.alive - source.finished)[:6] or sorted(source.alive)
        offset, key = dice.pick(near), None
    target = Target(source.tp[0], key, source.tp[1], offset)
    until_s = UNIX_S + world.now + dice.pick((-1.0, 0.5, 3.0, 20.0))
    order = Command(dice.pick(ACTIONS), target, str(world.step), until_s, "drawn")
    world.orders.append(order)
    for _ in range(dice.pick((1, 1, 2))):
        obey(world, member, order)


def repeat(world: World, dice: Dice) -> None:
    """An owner obeys an earlier command, which it or the owner before has obeyed as well.

    S18: that changes nothing twice, and charges no attempt.
    """
    known = [
        (order, member, part)
        for order in world.orders
        for member in world.members.values()
        if (part := member.parts.get((order.target.topic, order.target.partition or 0))) is not None
    ]
    if not known:
        return
    order, member, part = dice.pick(known)
    world.oracle.stats["obeyed again"] += 1
    before = _attempts(part, order)
    obey(world, member, order)
    after = _attempts(part, order)
    require(after in (before, 0), "S18", f"{order}: {before} attempts are {after} by it")


def _attempts(part: Partition, order: Command) -> int:
    offset = order.target.offset
    work = None if offset is None else part.offsets.incomplete.get(offset)
    failure = None if work is None else work.failure
    return 0 if failure is None else failure.attempts - failure.shared


def obey(world: World, member: Member, command: Command) -> None:
    """The engine obeys, and what it says is true from then on."""
    target, oracle = command.target, world.oracle
    tp = (target.topic, target.partition or 0)
    part = member.parts.get(tp)
    life = None if part is None else oracle.lives.get(part)
    member.engine.obey(world.now, [command], UNIX_S + world.now)
    answers = [e for e in member.engine.state.effects if isinstance(e, fx.Answered)]
    rows = [row for effect in answers if effect.command is command for row in effect.rows]
    outcome = rows[0].outcome if rows else "skipped"
    if target.offset is None and command.action != "skip" and outcome != "refused":
        _hold_later(world, member, command)
    if life is None or oracle.former(life.partition):
        member.perform()
        return
    if not rows:
        member.unanswered.append(command)
    require(len(rows) <= 1, "S13", f"{command} is answered {rows}")
    if outcome == "held" and rows[0].offset == life.relieved:
        life.relieved = None  # meanwhile the next one goes
    until = command.until_s - UNIX_S
    if target.offset is None:
        if outcome != "refused":
            _obeyed_lane(life, command, outcome)
    elif command.action == "hold" and outcome == "held" and rows[0].detail != "it is parked":
        life.held_until[target.offset] = until
    elif outcome == "skipped" and (
        target.offset not in life.passed or target.offset in life.refused
    ):  # else a second skip of what is done
        life.given_up.add(target.offset)
        if life.relieved == target.offset:
            life.relieved = None  # no letter of it is sent
        life.asked.pop(target.offset, None)
    member.freed_at = world.now
    member.perform()


def _obeyed_lane(life: Life, command: Command, outcome: str) -> None:
    """A lane is held, or the holds of it and of its records are over."""
    target = command.target
    if command.action == "hold" and outcome == "held":
        life.holds[target.key] = command.until_s - UNIX_S
    elif command.action in ("release", "retry"):
        life.holds.pop(target.key, None)
        here = life.partition.offsets.incomplete
        for offset in [o for o in life.held_until if here.get(o) is None]:  # it is to come
            if life.source.keys.get(offset) == target.key:
                del life.held_until[offset]
    if outcome in ("released", "retried"):  # with all of the lane that is held
        lane = life.source.lane
        life.held_until = {o: u for o, u in life.held_until.items() if lane(o) != target.key}


def _hold_later(world: World, member: Member, command: Command) -> None:
    """Epochs of this process that begin later know of it, unless it was refused."""
    target = command.target
    place = (member.name, (target.topic, target.partition or 0), target.key)
    if command.action == "hold" and command.until_s <= UNIX_S + world.now:
        return  # it is over already
    if command.action == "hold":
        world.oracle.holds[place] = command.until_s - UNIX_S
    else:
        world.oracle.holds.pop(place, None)


def release_all(world: World, member: Member) -> None:
    """Everything that waits for a person goes on."""
    for tp, part in list(member.parts.items()):
        life = world.oracle.lives[part]
        if life.state != "open" or world.oracle.former(part):
            continue
        for offset in sorted({*life.parked, *life.held_until, *put_off(life, world.now)}):
            target = Target(tp[0], None, tp[1], offset)
            obey(world, member, Command("release", target, reason="the end"))


def put_off(life: Life, now: float) -> set[int]:
    """What waits for longer than any policy drawn: another client's commit says so."""
    return {offset for offset, due in life.not_before.items() if due > now + 10.0}


def meddle(world: World, dice: Dice) -> None:
    """Another client, or an older version, commits the same map with another rider."""
    committed = world.broker.group(GROUP).committed
    if not committed:
        return
    tp = dice.pick(list(committed))
    held = committed[tp]
    rng = random.Random(dice.below(10**9))
    text = _other(rng.choice(RIDERS), held, rng)
    if text is not None and len(text) <= world.setup.broker_chars:
        world.oracle.stats["riders meddled with"] += 1
        committed[tp] = OffsetAndMetadata(held.offset, text)


def _other(kind: str, held: OffsetAndMetadata, rng: random.Random) -> str | None:
    if kind == "hostile":
        return _hostile(held, rng)
    if not held.metadata:
        return None
    encoding, body, frames = wire.from_text(held.metadata)
    if not frames:
        return None
    plain = zstd.compress(body)
    content = frames[8:]
    if kind == "cut":
        content = content[: rng.randrange(len(content) + 1)]
    elif kind == "version":
        content = b"\x02" + content[1:]
    frame = frames[:4] + len(content).to_bytes(4, "little") + content
    return wire.to_text(encoding, plain + (b"" if kind == "shed" else frame))


def _hostile(held: OffsetAndMetadata, rng: random.Random) -> str:
    offsets = sorted({held.offset + rng.randrange(12) for _ in range(rng.choice((1, 3, 8)))})
    entries = [
        Remembered(
            offset,
            rng.choice((0, 1, 2, 2**31 - 1)),
            rng.random() < 0.4,
            rng.random() < 0.2,
            rng.choice(rider.EXHAUSTED_BY),
            rng.choice((None, None, 0, int(UNIX_S) + 5, 2**40)),
            rng.choice((None, 7)),
        )
        for offset in offsets
    ]
    text = held.metadata
    if text:
        encoding, body, _ = wire.from_text(text)
        text = wire.to_text(encoding, zstd.compress(body) if encoding.is_compressed else body)
    return with_rider(held.offset, text, entries)[0]
