"""The run of one seed: steps with faults, then healing, and the final checks."""

from __future__ import annotations

import zlib

from simulators.core import (
    actions,
    answers,
    away,
    budgeted,
    commanding,
    exchanges,
    finale,
    happenings,
    rebalance,
    steered,
)  # fmt: skip
from simulators.core.dice import Dice
from simulators.core.finale import STRUCTURE_EVERY
from simulators.core.world import World


def live(world: World) -> None:
    """The whole life. Raises Violation."""
    for step in range(world.setup.steps):
        world.step = step
        one_step(world, Dice(world.rng.getrandbits(64)))
        if world.step % STRUCTURE_EVERY == 0:
            world.check_structure()
    finale.run(world)


def one_step(world: World, dice: Dice) -> None:
    """One action of one member, or of the world."""
    roll = dice.roll()
    name = next((name for end, name in world.setup.ends if roll < end), "time")
    world.now += 0.001
    present = list(world.members.values())
    world.digest = zlib.crc32(name.encode(), world.digest)
    if world.trace is not None:
        world.trace.append(f"{world.step:4d} {world.now:9.4f} {name}")
    happening = _WORLD_ACTIONS.get(name)
    if happening is not None:
        happening(world, dice)
    elif present:
        member = dice.pick(present)
        _MEMBER_ACTIONS[name](world, member, dice)
        world.obey(member)


_WORLD_ACTIONS = {
    "produce": happenings.produce,
    "time": happenings.pass_time,
    "churn": happenings.churn,
    "control": happenings.control,
    "steer": steered.steer,
    "ahead": steered.grant_ahead,
    "away": away.come_and_go,
    "log": happenings.change_log,
    "retention": happenings.retention,
    "foreign": happenings.foreign,
    "remake": happenings.remake,
    "command": commanding.command,
    "meddle": commanding.meddle,
    "repeat": commanding.repeat,
}
_MEMBER_ACTIONS = {
    "poll": actions.poll,
    "charge": budgeted.charge,
    "end_calls": actions.end_calls,
    "settle": answers.settle,
    "commits": answers.commits,
    "read_back": answers.read_back,
    "transact": exchanges.transact,
    "group": rebalance.group,
}
