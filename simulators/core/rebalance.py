"""Requests of the coordinator to a member, and how the member returns partitions."""

from __future__ import annotations

from simulators.core.answers import deliver
from simulators.core.dice import Dice
from simulators.core.exchanges import finish, transact
from simulators.core.member import Member
from simulators.core.stage import GROUP
from simulators.core.violation import require
from simulators.core.world import World


def group(world: World, member: Member, dice: Dice) -> None:
    """One heartbeat: what the coordinator wants, or the next step of what it wanted before."""
    if member.drained and not member.revoking:
        leave(world, member, dice)
        return
    if member.revoking:
        _revoke_on(world, member, dice)
        return
    if member.begin_again():
        return
    if member.pending and world.setup.logs_matter:  # each by itself, and the others go on
        member.begin_pending(lambda: not dice.chance(world.odds.find_fails))
    elif member.pending and not dice.chance(world.odds.find_fails):
        member.begin_pending(lambda: True)
        return
    change = world.broker.group(GROUP).heartbeat(member.id)
    world.tell(f"{member.id} is told {change}")
    if change.lost:
        world.oracle.stats["lost"] += 1
        member.close(list(member.parts), lost=True, clean=False)
        world.replace(member)
    elif change.revoke:
        world.oracle.stats["revoked"] += 1
        member.revoking = change.revoke
        parts = [member.parts[tp] for tp in change.revoke if tp in member.parts]
        world.oracle.revoking(parts)
        member.engine.revoking(world.now, parts)
        member.perform()
    else:
        member.pending += change.assign


def _revoke_on(world: World, member: Member, dice: Dice) -> None:
    """Inside the callback: wait for what is in flight, until the deadline."""
    if member.running(member.revoking) and not dice.chance(world.odds.slow_drain):
        return
    if member.exchange is not None and dice.chance(0.8):
        transact(world, member, dice)
        return
    _give_up_transaction(world, member)
    tps, member.revoking = member.revoking, ()
    world.tell(f"{member.id} gives back {tps}")
    _close_with_commit(world, member, tps, dice)
    world.broker.group(GROUP).released(member.id, tps)


def _give_up_transaction(world: World, member: Member) -> None:
    """The deadline: nothing of a partition may be in a transaction when the callback returns."""
    while member.exchange is not None:  # each end may let the engine begin the next
        tps = {(i.partition.topic, i.partition.number) for i in member.exchange.effect.items}
        if tps.isdisjoint(member.revoking):
            return
        if member.exchange.phase:
            world.broker.abort(member.producer)
        finish(world, member, committed=False)


def _close_with_commit(
    world: World, member: Member, tps: tuple[tuple[str, int], ...], dice: Dice
) -> None:
    while member.requests:  # answered before the last commit is sent
        request = member.requests.pop(0)
        deliver(world, member, request.effect, request.generation)
    effect = member.last_commit(tps)
    member.excuse_marks(effect.items)
    clean = not dice.chance(world.odds.commit_lost)
    if clean:
        answers = deliver(world, member, effect, member.generation)
        clean = all(answer.verdict == "stored" for answer in answers)
        world.oracle.stats["last commits"] += 1
        if clean:
            member.check_clean(tps)
        if not dice.chance(world.odds.answer_lost):
            member.engine.commit_answered(world.now, answers)
            member.perform()
    # A map of a few characters may have no room for taking a mark back: then it is missed.
    member.close(tps, lost=False, clean=clean and world.setup.limits.map_chars == 4096)


def leave(world: World, member: Member, dice: Dice) -> None:
    """The engine has drained: commit, close, go."""
    if member.exchange is not None:
        transact(world, member, dice)
        return
    _close_with_commit(world, member, tuple(member.parts), dice)
    late = member.unanswered  # a process that dies may owe answers, one that leaves may not
    require(not late, "S13", f"{member.name} leaves and answers {late} never")
    world.bury(member, left=True)
