"""What commands have in force, and whether a member keeps it (S9, S11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perkey.core.events import AT_MOST_ONCE, Pause, Steering, Tuning
from perkey.core.work import Work
from simulators.core.dice import Dice
from simulators.core.violation import require

#: so many calls more than declared a command sets, with half of the seeds
SET_MORE = 2

if TYPE_CHECKING:
    from simulators.core.member import Member
    from simulators.core.world import World


def steer(world: World, dice: Dice) -> None:
    """Commands pause topics and handlers, and set concurrency and rate; or all of it ends."""
    if not world.members:
        return
    member = dice.pick(list(world.members.values()))
    steering = Steering() if dice.chance(0.4) else _drawn(world, dice)
    world.oracle.stats["steered"] += 1
    obey(world, member, steering)


def grant_ahead(world: World, dice: Dice) -> None:
    """Calls of one handler end fast, or not as fast, or no longer."""
    if not world.members:
        return
    member = dice.pick(list(world.members.values()))
    number = dice.below(len(world.setup.specs))
    most = world.setup.specs[number].ahead
    count = dice.pick((0, most // 2, most))
    world.oracle.stats["granted ahead"] += count > 0
    member.ahead[number] = count
    member.engine.grant_ahead(world.now, number, count)
    member.freed_at = world.now
    member.perform()


def obey(world: World, member: Member, steering: Steering) -> None:
    """The member gets all that is in force from now on."""
    member.steering = steering
    calls = [one.concurrency or 0 for one in steering.tunings.values()]
    member.calls_most = max([member.calls_most, *calls])
    for call in member.calls:
        call.timed = call.timed and timeout_s(member, call.handler) is not None
    member.engine.steer(world.now, steering)
    member.freed_at = world.now
    member.perform()


def _drawn(world: World, dice: Dice) -> Steering:
    setup = world.setup
    number = dice.below(len(setup.specs))
    pause = dice.pick((Pause(), Pause(topic=setup.topic(number)), Pause(handler=number)))
    declared = setup.specs[number].concurrency
    concurrency = dice.pick((None, 1, declared + SET_MORE * (setup.seed % 2)))
    tuning = Tuning(concurrency, dice.pick((None, 20.0)), dice.pick((None, None, 0.5, 4.0)))
    return Steering((pause,) if dice.chance(0.5) else (), {number: tuning})


def calls_max(member: Member, handler: int) -> int:
    """How many calls may be open, by what was declared or set.

    With at_most_once what was marked before it was set must start: it is done for all others.
    """
    spec = member.world.setup.specs[handler]
    tuned = member.steering.tunings.get(handler)
    declared = spec.concurrency + member.ahead.get(handler, spec.ahead)
    if spec.delivery == AT_MOST_ONCE:
        return max(declared, member.calls_most)
    if tuned is None or (tuned.concurrency is None and tuned.timeout_s is None):
        return declared
    return tuned.concurrency or spec.concurrency  # none ahead of a time-out that was set


def timeout_s(member: Member, handler: int) -> float | None:
    """Of one attempt, as declared or set."""
    tuned = member.steering.tunings.get(handler)
    declared = member.world.setup.specs[handler].timeout_s
    return declared if tuned is None or tuned.timeout_s is None else tuned.timeout_s


def check_not_paused(member: Member, works: Sequence[Work]) -> None:
    """S11. What was marked before (see `calls_max`) starts all the same."""
    for work in works:
        handler = work.partition.handler
        where = (work.partition.topic, handler.index)
        paused = any(one.holds(*where) for one in member.steering.pauses)
        if paused and handler.spec.delivery != AT_MOST_ONCE:
            require(False, "S11", f"{work!r} starts, and a command paused it")


def may_start(member: Member, topic: str, handler: int) -> bool:
    """No command is in the way; a rate that was set may be."""
    tuned = member.steering.tunings.get(handler)
    limited = tuned is not None and tuned.rate_limit_per_s is not None
    return not limited and not any(one.holds(topic, handler) for one in member.steering.pauses)
