"""What handlers call is away, or their brake holds them, and whether a member keeps that (S15)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from perkey.core.events import Ended, Returned, Unhandled
from perkey.core.work import Work
from perkey.policies import Hold
from simulators.core.dice import Dice
from simulators.core.violation import require

if TYPE_CHECKING:
    from simulators.core.ledger import Life
    from simulators.core.member import Member
    from simulators.core.oracle import Oracle
    from simulators.core.world import World

SLACK = 1e-6
WHOLE, BRAKE = "whole", "brake"
#: (member, handler, value of `Hold.by`)
Place = tuple[str, int, Hashable]


def by_key(record: object) -> Hashable:
    """Stands for a function as `Hold(by=)`: the core never calls it, `tags_of` answers."""
    raise AssertionError(record)


class Outage:
    """One of a member, as it must be by what is seen from outside."""

    def __init__(self, hold: Hold, now: float) -> None:
        self.hold, self.since = hold, now
        #: the record that probes, and how many have
        self.probe: Work | None = None
        self.probes = 0

    def over(self, now: float) -> bool:
        """The retry policy has taken over."""
        return now >= self.since + self.hold.max_s


class Flood:
    """Records of a handler that ended since its member began, or since its brake was released."""

    def __init__(self) -> None:
        self.done = self.exhausted = 0


def come_and_go(world: World, dice: Dice) -> None:
    """What a handler calls goes away, all of it or for one key; or it answers again."""
    handler = dice.below(len(world.setup.specs))
    key = b"%d" % dice.below(world.setup.keys)
    if world.away.pop(handler, None) is None or dice.chance(0.3):
        world.away[handler] = None if dice.chance(0.5) else key
    world.oracle.stats["went away or came back"] += 1


def is_away(world: World, work: Work) -> bool:
    """What is called for this record does not answer."""
    handler = work.partition.handler
    if handler.spec.hold is None or handler.index not in world.away:
        return False
    return world.away[handler.index] in (None, work.record.key)


def _place(member: str, work: Work) -> Place:
    handler = work.partition.handler
    hold = handler.spec.hold
    whole = hold is None or hold.by is None
    return member, handler.index, WHOLE if whole else work.record.key


def _places(member: str, work: Work) -> tuple[Place, Place]:
    return _place(member, work), (member, work.partition.handler.index, BRAKE)


def begins(member: Member, works: Sequence[Work]) -> None:
    """A call is made: while it is away that is the probe, alone and not too early."""
    for place in _places(member.name, works[0]):
        outage = member.oracle.outages.get(place)
        if outage is not None:
            _begins(member, works, outage)


def _begins(member: Member, works: Sequence[Work], outage: Outage) -> None:
    oracle, now = member.oracle, member.world.now
    if not outage.over(now):
        other = outage.probe is not None
        require(not other, "S15", f"{works[0]!r} starts while {outage.probe!r} probes")
        outage.probes += 1
        allowed = (now - outage.since) / outage.hold.probe_s + SLACK
        early = f"{works[0]!r} is probe {outage.probes} after {now - outage.since:.3f} s"
        require(outage.probes <= allowed, "S15", early)
        oracle.stats["probes"] += 1
    if outage.probe is None:
        outage.probe = works[0]


def ended(member: Member, work: Work, ending: Ended | None) -> None:
    """A call has ended, in this way; None: it returned."""
    for place in _places(member.name, work):
        outage = member.oracle.outages.get(place)
        if outage is not None and outage.probe is work:
            _ended(member, place, outage, ending)


def _ended(member: Member, place: Place, outage: Outage, ending: Ended | None) -> None:
    oracle = member.oracle
    outage.probe = None
    if ending is None or isinstance(ending, Returned):
        oracle.stats["outages ended"] += 1
        del oracle.outages[place]
        if place[2] == BRAKE:
            oracle.floods[place[:2]] = Flood()
        member.freed_at = member.world.now
    elif isinstance(ending, Unhandled):
        outage.probes -= 1


def closed(oracle: Oracle, partitions: Sequence[object]) -> None:
    """A probe of an epoch that has ended is none."""
    for outage in oracle.outages.values():
        if outage.probe is not None and outage.probe.partition in partitions:
            outage.probe = None
            outage.probes -= 1


def is_free(oracle: Oracle, life: Life, work: Work, now: float) -> bool:
    """An attempt failed since what it calls is away; False where that costs as ever."""
    hold, offset = life.spec.hold, work.record.offset
    assert hold is not None
    place = _place(life.member, work)
    outage, since = oracle.outages.get(place), life.waits_since.get(offset)
    late = since is not None and now - since >= hold.max_s
    if late or (outage is not None and outage.over(now)):
        oracle.stats["attempts charged after max_s"] += 1
        return False
    life.attempts[offset] += 1
    life.waits_since.setdefault(offset, now)
    alone = outage is None and since is not None
    life.not_before[offset] = now + (hold.probe_s if alone and life.spec.batch is None else 0.0)
    life.startable[offset] = now + (hold.probe_s if alone else 0.0) + 1.0
    oracle.stats["attempts free"] += 1
    if alone:
        oracle.stats["waits alone"] += 1
    elif outage is None:
        oracle.outages[place] = Outage(hold, now)
    return True


def done(member: Member, work: Work) -> None:
    """A record is done."""
    if work.partition.handler.spec.brake is not None:
        member.oracle.flood(member.name, work).done += 1


def is_spared(oracle: Oracle, life: Life, work: Work, now: float) -> bool:
    """A record's attempts are used up; True: its handler's brake holds, and it waits instead."""
    brake, offset = life.spec.brake, work.record.offset
    place = (life.member, work.partition.handler.index, BRAKE)
    outage = oracle.outages.get(place)
    if outage is not None and outage.probe is not work:
        life.own_attempts[offset] -= 1
        life.not_before[offset], life.startable[offset] = now, now + 1.0
        oracle.stats["attempts spared"] += 1
        return True
    flood = oracle.flood(life.member, work)
    flood.exhausted += 1
    ended = flood.done + flood.exhausted
    assert brake is not None
    if outage is None and ended >= brake.at_least and flood.exhausted >= brake.share * ended:
        oracle.outages[place] = Outage(Hold((OSError,), brake.probe_s, max_s=1e9), now)
        oracle.stats["brakes"] += 1
    return False


def waits(oracle: Oracle, life: Life, offset: int, now: float) -> bool:
    """It waits for the end of an outage."""
    hold, index = life.spec.hold, life.partition.handler.index
    value = WHOLE if hold is None or hold.by is None else life.source.keys[offset]
    found = [oracle.outages.get((life.member, index, name)) for name in (value, BRAKE)]
    return any(one is not None and not one.over(now) for one in found)
