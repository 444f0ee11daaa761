"""The oracle's part in the pressure valve: what it exports, in which order, and whether it must."""

from __future__ import annotations

from collections.abc import Collection

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import EXACTLY_ONCE
from perkey.core.offsets import PRESSURE, always_fits, runs_fit
from perkey.core.valve import REFUSED_S
from perkey.policies import GivenUp, Park
from simulators.core.ledger import Life
from simulators.core.violation import Violation, require

SLACK = 1e-6
#: the least share that any function in the simulation asks for
SHARE_LEAST = 0.001
#: an export begins so soon after it is due
WITHIN_S = 5.0


def exported(life: Life, effect: fx.Exported, now: float) -> None:
    """S16: a whole lane with a parked head is taken, since it must be."""
    offsets, tp = effect.offsets, life.source.tp
    first = offsets[0]
    require(first in life.parked, "S16", f"{tp}@{first} is exported and is not parked")
    lane = life.source.lane(first)
    if first not in life.refused:  # else, with exactly_once, its lane has gone on past it
        of_lane = life.source.lanes[lane]
        whole = [o for o in of_lane if o in life.polled and life.needs_handling(o)]
        ordered = [o for o in offsets if o not in life.refused]
        same = ordered == [o for o in whole if o not in life.refused]
        require(same, "S16", f"{tp} lane {lane!r}: {offsets} are exported of {whole}")
    held = life.holds.get(lane, 0.0) > now + SLACK
    require(not held, "S16", f"{tp} lane {lane!r} is held and exported")
    policy = life.spec.on_exhausted
    if effect.why == "time":
        due = life.export_at.get(first, life.parked[first])
        require(due <= now + SLACK, "S16", f"{tp}@{first} is exported before {due:.3f}")
    else:
        least = SHARE_LEAST if not isinstance(policy, Park) else policy.at_map or 2.0
        share = _taken(life, _under_way(life))
        require(share >= least, "S16", f"{tp}: exports at {share:.4f}, not {least}")
    for offset in offsets:
        if life.parked.pop(offset, now + 1.0) <= now:
            life.time_over.add(offset)
        life.given_up.add(offset)
        life.exported_ever.add(offset)
        if life.spec.delivery == EXACTLY_ONCE:
            life.dead_letters.add(offset)
    life.exports[first] = list(offsets)
    life.export_due_since = None


def ended(life: Life, effect: fx.ExportEnded) -> None:
    """The rest of a lane waits again behind the record whose letter was refused."""
    for offset in effect.offsets:
        life.given_up.discard(offset)
        life.exported_ever.discard(offset)
        life.dead_letters.discard(offset)
    left = set(effect.offsets)
    life.exports = {one: o for one, o in life.exports.items() if not left.intersection(o)}


def refused(life: Life, offset: int) -> None:
    """exactly_once: its letter was not taken; the others of its lane go on without it."""
    life.exported_ever.remove(offset)
    for offsets in life.exports.values():
        if offset in offsets:
            offsets.remove(offset)


def letter(life: Life, offset: int) -> None:
    """S16: the letters of a lane go in the order of its offsets, each once."""
    for first, offsets in list(life.exports.items()):
        if offset not in offsets:
            continue
        there = [one for one in offsets if one in life.polled]
        require(
            there[0] == offset, "S16", f"{life.source.tp}@{offset} is exported before {there[0]}"
        )
        life.exports[first] = there[1:]
        if not there[1:]:
            del life.exports[first]
        return
    policy = life.spec.on_exhausted
    parks = isinstance(policy, Park)
    require(not parks, "S16", f"{life.source.tp}@{offset} is dead-lettered, and not exported")


def transacted(life: Life, item: fx.PlanItem) -> None:
    """The same of letters in a transaction, which may be aborted and go again."""
    letters = [w.record.offset for w in item.claims if isinstance(w.outputs, fx.SendDeadLetter)]
    for offsets in life.exports.values():
        ours = [offset for offset in letters if offset in offsets and offset not in life.refused]
        require(ours == sorted(ours), "S16", f"{life.source.tp}: exported as {ours}")


def check_start(life: Life, offset: int) -> None:
    """S16: nothing of a lane starts before all that is exported of it is through."""
    if life.spec.delivery == EXACTLY_ONCE:
        return  # a lane goes on when its letters wait for their transaction
    lane = life.source.lane(offset)
    open_ones = [o for o in _under_way(life) if o in life.source.keys]
    before = [o for o in open_ones if life.source.lane(o) == lane and o not in life.refused]
    tp = life.source.tp
    require(not before, "S16", f"{tp}@{offset} starts while {before} of its lane are exported")


def _under_way(life: Life) -> set[int]:
    """What is exported and not through."""
    policy = life.spec.on_exhausted
    if isinstance(policy, GivenUp) and not isinstance(policy, Park):
        return set()
    return life.given_up.intersection(life.exported_ever, life.polled) - life.passed


def is_early(life: Life, offset: int) -> bool:
    """Its letter was not answered: no commit may have it as done."""
    return life.spec.delivery != EXACTLY_ONCE and offset in _under_way(life)


def _taken(life: Life, claimed: Collection[int]) -> float:
    """The share of the map's room that is taken: the rules of `Reach`, counted anew."""
    partition = life.partition
    undone, limit_chars = sorted(partition.offsets.incomplete), partition.commit.map_limit
    near, most = int(always_fits(limit_chars) * PRESSURE), int(runs_fit(limit_chars) * PRESSURE)
    claimed = {*claimed, *_claims(life)}
    under_way = partition.in_flight + partition.sending
    if partition.lanes.far and not claimed and not under_way:
        return 1.0
    left = [offset for offset in undone if offset not in claimed]
    if not left:
        return 0.0
    distance = (partition.offsets.top + 1 - left[0]) / max(1, near)
    window = partition.reach.window
    if window is None:
        return distance
    named = [offset for offset in left if offset < window.end]
    runs = sum(1 for before, one in zip([-2, *named], named, strict=False) if one != before + 1)
    return min(distance, runs / max(1, most))


def _claims(life: Life) -> list[int]:
    """Done but for their transaction; without letters of what is only about to be exported."""
    return [
        work.record.offset
        for work in life.partition.commit.claims
        if not isinstance(work.outputs, fx.SendDeadLetter)
        or work.record.offset in life.dead_letters
    ]


def look(life: Life, now: float) -> None:
    """What came with its attempts used up is parked when its hold is over and its bytes are here.

    Its time begins then.
    """
    policy = life.spec.on_exhausted
    if isinstance(policy, Park) and policy.after_s is not None:
        waiting = [o for o in life.came_spent if o in life.export_at and not _is_given_up(life, o)]
        life.export_at.update(dict.fromkeys(waiting, now + policy.after_s))


def _is_given_up(life: Life, offset: int) -> bool:
    work = life.partition.offsets.incomplete.get(offset)
    return work is None or offset not in life.came_spent or work.state == states.PARKED


def in_time(life: Life, now: float, refused_at: float) -> None:
    """L1: what must be exported is, soon."""
    policy, partition = life.spec.on_exhausted, life.partition
    simple = life.spec.batch is None and life.spec.delivery != EXACTLY_ONCE
    if not isinstance(policy, Park) or not policy.export or not simple:
        return
    full = policy.at_map is not None and _taken(life, _under_way(life)) >= policy.at_map
    if now < refused_at + REFUSED_S + WITHIN_S or not any(
        _can_go(life, offset, now)
        for offset in life.parked
        if full or life.export_at.get(offset, now) < now
    ):
        life.export_due_since = None
        return
    life.export_due_since = life.export_due_since if life.export_due_since is not None else now
    waited = now - life.export_due_since
    if waited > WITHIN_S:
        raise Violation("L1", f"{partition!r}: to be exported for {waited:.3f} s")


def _can_go(life: Life, offset: int, now: float) -> bool:
    lane = life.source.lane(offset) if offset in life.source.keys else None
    if offset not in life.polled or lane is None or life.next_of(lane) != offset:
        return False
    if life.holds.get(lane, 0.0) > now:
        return False
    if not _is_given_up(life, offset):
        return False
    of_lane = [o for o in life.source.lanes[lane] if life.needs_handling(o)]
    waits = (life.asked, life.held_until, life.running, life.sending, life.not_before)
    return not any(o in some for o in of_lane[1:] for some in waits)
