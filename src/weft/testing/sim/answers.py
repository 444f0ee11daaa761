"""What the broker answers to outputs, commits and questions, and what gets lost on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core import effects as fx
from weft.core.commits import Answer
from weft.core.partition import Partition
from weft.kafka.ports import Verdict
from weft.testing.sim.actions import ERROR, Shared
from weft.testing.sim.dice import Dice
from weft.testing.sim.member import GROUP, Member
from weft.types import Sent

if TYPE_CHECKING:
    from weft.testing.sim.world import World

VERDICTS: dict[str, Verdict] = {
    "": "stored",
    "UNKNOWN_MEMBER_ID": "gone",
    "ILLEGAL_GENERATION": "retry",
    "STALE_MEMBER_EPOCH": "retry",
    "OFFSET_METADATA_TOO_LARGE": "too_large",
}


def settle(world: World, member: Member, dice: Dice, *, every: bool = False) -> None:
    """The broker answers for some of the produced outputs, in any order."""
    settled = []
    shared: dict[int, bool] = {}
    for pair in list(member.sends):
        work, outputs = pair
        later, refused = dice.chance(0.5), dice.chance(world.odds.output_refused)
        if isinstance(outputs, Shared):  # one answer for all of them
            refused = shared.setdefault(id(outputs), refused)
        elif later and not every:
            continue
        member.sends.remove(pair)
        alone = not isinstance(outputs, Shared) or outputs.records == 1
        world.oracle.settled(work, world.now, refused=refused, alone=alone)
        sent = () if refused else (Sent("out", 0, 0, None),)
        settled.append((work, sent, ERROR if refused else None))
    if settled:
        member.engine.outputs_settled(world.now, settled)
        member.perform()


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
    for answer in answers:
        partition = answer.partition
        if partition.commit_state and partition.commit_sequence == answer.sequence:
            world.oracle.heard(partition, world.now, stored=answer.verdict == "stored")
    member.engine.commit_answered(world.now, answers)
    member.perform()


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
        tp = (partition.topic, partition.number)
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
        world.oracle.heard(partition, world.now, stored=not partition.dirty)
    member.perform()
