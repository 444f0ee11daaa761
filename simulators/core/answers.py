"""Responses of the broker to outputs, commits and queries, and lost responses."""

from __future__ import annotations

from collections.abc import Iterable

from perkey.core import effects as fx
from perkey.core.events import Answer, Verdict
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.types import Record, Sent
from simulators.core import deciding
from simulators.core.actions import ERROR, OVERHEAD_BYTES, Shared
from simulators.core.budgeted import tags_of
from simulators.core.dice import Dice
from simulators.core.member import Member
from simulators.core.stage import GROUP
from simulators.core.violation import require
from simulators.core.world import World

VERDICTS: dict[str, Verdict] = {
    "": "stored",
    "UNKNOWN_MEMBER_ID": "gone",
    "ILLEGAL_GENERATION": "retry",
    "STALE_MEMBER_EPOCH": "retry",
    "OFFSET_METADATA_TOO_LARGE": "too_large",
    "UNKNOWN_TOPIC_ID": "gone",
}


def settle(world: World, member: Member, dice: Dice, *, every: bool = False) -> None:
    """The broker answers for some of the produced outputs, in any order; so do functions."""
    deciding.answer(world, member, dice, every=every)
    if member.refetches:
        _refetched(world, member, dice, every=every)
    answers = []
    shared: dict[int, bool] = {}
    for pair in list(member.sends):
        work, outputs = pair
        if not every and _is_late(world, member, work, dice):
            continue
        later, refused = dice.chance(0.5), dice.chance(world.odds.output_refused)
        if isinstance(outputs, Shared):  # one answer for all of them
            refused = shared.setdefault(id(outputs), refused)
        elif later and not every:
            continue
        member.sends.remove(pair)
        member.late.pop(work, None)
        alone = not isinstance(outputs, Shared) or outputs.records == 1
        world.oracle.outputs_answered(work, world.now, refused=refused, alone=alone)
        sent = () if refused else (Sent("out", 0, 0, None),)
        answers.append((work, sent, ERROR if refused else None))
    if answers:
        member.engine.outputs_answered(world.now, answers)
        member.perform()


def _refetched(world: World, member: Member, dice: Dice, *, every: bool) -> None:
    """What was asked for is read from the log again, as far as that still has it."""
    for effect in list(member.refetches):
        if not every and dice.chance(0.5):
            continue
        member.refetches.remove(effect)
        life = world.oracle.lives[effect.partition]
        log, wanted = life.source.log, set(effect.offsets)
        found, _ = log.read(max(log.start, effect.offsets[0]), len(log.records) + 1, committed=True)
        records = [
            Record(*life.source.tp, one.offset, 0, one.key, one.value)
            for one in found
            if one.offset in wanted
        ]
        sizes = [OVERHEAD_BYTES + len(record.value or b"") for record in records]
        gone = wanted.difference([record.offset for record in records])
        world.oracle.stats["gone while parked"] += len(gone)
        world.oracle.forgotten(life, gone, world.now)
        for offset in wanted - gone:
            if offset in life.startable:
                life.startable[offset] = max(life.startable[offset], world.now)
        member.engine.refetched(
            world.now,
            effect.partition,
            effect.number,
            records,
            sizes,
            tags_of(effect.partition, records),
        )
        member.perform()


def _is_late(world: World, member: Member, work: Work, dice: Dice) -> bool:
    """Nobody acknowledges it for now: its time is over, and it is produced again, and again."""
    if not world.setup.odds.output_late:
        return False
    if work not in member.late:
        slow = dice.chance(world.odds.output_late)
        member.late[work] = world.now + (20.0 * dice.roll() if slow else 0.0)
        world.oracle.stats["outputs late"] += slow
    return world.now < member.late[work]


def commits(world: World, member: Member, dice: Dice) -> None:
    """The first commit on the way reaches the broker, or does not; its answer likewise."""
    if member.late_answers and dice.chance(0.3):
        member.engine.commit_answered(world.now, member.late_answers.pop(0))
        member.perform()
    if not member.requests:
        return
    request = member.requests.pop(0)
    odds, fate = world.odds, dice.roll()
    answer_lost, refusal = dice.chance(odds.answer_lost), dice.roll()
    if fate < odds.commit_lost:
        world.oracle.stats["commits lost"] += 1
        return
    if refusal < odds.commit_refused:
        verdict = dice.pick(_REFUSALS)
        world.oracle.stats[f"refused {verdict}"] += 1
        answers = [
            Answer(i.partition, request.effect.sequence, verdict) for i in request.effect.items
        ]
    else:
        answers = deliver(world, member, request.effect, request.generation)
    if answer_lost:
        world.oracle.stats["answers lost"] += 1
        if dice.chance(0.5):
            member.late_answers.append(answers)
        return
    stored = []
    for answer in answers:
        partition = answer.partition
        if partition.commit.state and partition.commit.sequence == answer.sequence:
            world.oracle.heard(partition, world.now, stored=answer.verdict == "stored")
            stored += [partition] if answer.verdict == "stored" else []
    member.engine.commit_answered(world.now, answers)
    member.perform()
    check_answered(world, member, stored)


def check_answered(world: World, member: Member, stored: Iterable[Partition]) -> None:
    """S13: a skip is answered when the member knows that the commit with it is stored."""
    known = {one.where for one in stored if not world.oracle.former(one)}
    skips = [command for command in member.unanswered if command.action == "skip"]
    for command in skips:
        topic, _, number, offset = command.target
        tp = (topic, number or 0)
        owed = tp in known and offset is not None and offset in world.held_of(tp)
        require(not owed, "S13", f"{member.name} does not answer {command}, which is stored")


_REFUSALS: tuple[Verdict, ...] = ("retry",) * 6 + ("gone",) * 2 + ("stop",)


def deliver(
    world: World, member: Member, effect: fx.CommitOffsets, generation: int
) -> list[Answer]:
    """The broker takes in one commit."""
    errors = member.store(effect.items, generation)
    return [
        Answer(
            item.partition,
            effect.sequence,
            VERDICTS[errors[item.partition.topic, item.partition.number]],
        )
        for item in effect.items
    ]


def read_back(world: World, member: Member, dice: Dice) -> None:
    """The committed values of commits in doubt are read."""
    if not member.reads:
        return
    values: list[tuple[Partition, int | None, str]] = []
    group = world.broker.group(GROUP)
    for partition in member.reads.pop(0):
        tp = partition.where
        if dice.chance(world.odds.read_fails):
            values.append((partition, None, ""))
            continue
        held = group.committed.get(tp)
        for request in member.requests:
            request.given_up.add(partition)
        values.append((partition, -1, "") if held is None else (partition, *held))
    world.oracle.stats["read back"] += 1
    member.engine.committed_read(world.now, values)
    for partition, _, _ in values:
        world.oracle.heard(partition, world.now, stored=not partition.commit.dirty)
    member.perform()
