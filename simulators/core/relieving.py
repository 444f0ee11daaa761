"""The oracle's part in `Park(dead_letter=)`: which parked records are given up, and when."""

from __future__ import annotations

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.endings import REFUSED_S
from perkey.core.events import EXACTLY_ONCE
from perkey.core.offsets import PRESSURE, always_fits, runs_fit
from perkey.core.work import Work
from perkey.policies import Park
from simulators.core.ledger import Life
from simulators.core.violation import Violation, require

SLACK = 1e-6
#: the least share that any function in the simulation asks for
SHARE_LEAST = 0.001
#: a record is given up so soon after it is due
WITHIN_S = 5.0


def noted(life: Life, effect: fx.Note, now: float) -> None:
    """S16: the engine gives up a parked record: the oldest that is due, and one at a time."""
    offset, because, tp = effect.fields["offset"], effect.fields["because"], life.source.tp
    require(offset in life.parked, "S16", f"{tp}@{offset} is given up and is not parked")
    going = life.relieved if is_going(life) else None
    require(going is None, "S16", f"{tp}@{offset} is given up while {going} is on its way")
    held = _held(life, offset, now)
    require(not held, "S16", f"{tp}@{offset} is held and given up")
    again = life.refused_at.get(offset, -REFUSED_S) + REFUSED_S
    require(again <= now + SLACK, "S16", f"{tp}@{offset} is given up again before {again:.3f}")
    policy = life.spec.on_exhausted
    if because == "after_s":
        due = life.give_up_at.get(offset, life.parked[offset])
        require(due <= now + SLACK, "S16", f"{tp}@{offset} is given up before {due:.3f}")
    else:
        least = policy.at_map if isinstance(policy, Park) else SHARE_LEAST
        share = _taken(life)
        require(share >= least, "S16", f"{tp}@{offset} is given up at {share:.4f}, not {least}")
    if isinstance(policy, Park):  # those of a function have each their own
        older = [
            o for o in life.parked if o < offset and _due(life, o, now, full=because != "after_s")
        ]
        require(not older, "S16", f"{tp}@{offset} is given up before {older}")
    if life.parked.pop(offset) <= now:
        life.time_over.add(offset)
    life.given_up.add(offset)
    life.relieved = offset
    life.relief_due_since = None
    if life.spec.delivery == EXACTLY_ONCE:
        life.dead_letters.add(offset)


def is_going(life: Life) -> bool:
    """A record is given up, and neither stored nor refused, held or gone."""
    offset = life.relieved
    if offset not in life.given_up or offset in life.finished or offset in life.gone:
        return False
    return life.partition.offsets.incomplete.get(offset) is not None


def sending(life: Life, offset: int) -> None:
    """S16: each letter goes once, and of a handler that parks only for what was given up."""
    tp = life.source.tp
    require(offset not in life.sending, "S16", f"{tp}@{offset} is dead-lettered twice")
    parks = isinstance(life.spec.on_exhausted, Park)
    known = not parks or offset in life.given_up
    require(known, "S16", f"{tp}@{offset} is dead-lettered, and was not given up")


def refused(life: Life, offset: int, now: float) -> None:
    """The broker does not take its letter: it is parked, and not sent again soon."""
    life.refused_at[offset] = now


def check_start(life: Life, offset: int) -> None:
    """S16: nothing of a lane starts before the letter of its parked record is stored."""
    before = life.relieved
    if life.spec.delivery == EXACTLY_ONCE or before is None or not is_going(life):
        return  # there a lane continues when its letter waits for its transaction
    same = life.source.lane(before) == life.source.lane(offset)
    tp = life.source.tp
    require(not same, "S16", f"{tp}@{offset} starts while {before} of its lane is given up")


def is_early(life: Life, offset: int) -> bool:
    """Its letter was not answered: no commit may have it as done."""
    return life.spec.delivery != EXACTLY_ONCE and offset == life.relieved and is_going(life)


def _taken(life: Life) -> float:
    """The share of the map's room that is taken: the rules of `Reach`, counted anew."""
    partition = life.partition
    undone, limit_chars = sorted(partition.offsets.incomplete), partition.commit.map_limit
    near, most = int(always_fits(limit_chars) * PRESSURE), int(runs_fit(limit_chars) * PRESSURE)
    if partition.lanes.far and not partition.in_flight + partition.sending:
        return 1.0
    if not undone:
        return 0.0
    distance = max(0, partition.offsets.top + 1 - undone[0]) / max(1, near)
    window = partition.reach.window
    if window is None:
        return distance
    named = [offset for offset in undone if offset < window.end]
    runs = sum(1 for before, one in zip([-2, *named], named, strict=False) if one != before + 1)
    return min(distance, runs / max(1, most))


def _held(life: Life, offset: int, now: float) -> bool:
    lane = life.source.lane(offset)
    return max(life.holds.get(lane, 0.0), life.held_until.get(offset, 0.0)) > now + SLACK


def _parked(life: Life, offset: int) -> Work | None:
    """The record, if it is the head of its lane and parked in the engine's eyes, too."""
    work = life.partition.offsets.incomplete.get(offset)
    return work if work is not None and work.state == states.PARKED else None


def _due(life: Life, offset: int, now: float, *, full: bool) -> bool:
    """Nothing is in the way of giving it up."""
    if offset not in life.polled or offset not in life.source.keys:
        return False
    # The time of one that came with its attempts used up begins when its bytes are here.
    over = offset not in life.came_spent and life.give_up_at.get(offset, now) < now - SLACK
    work = _parked(life, offset)
    if work is None or not (full or over):
        return False
    if life.spec.batch is not None or life.spec.delivery == EXACTLY_ONCE:
        return False  # its lane may wait for others of a batch, or have gone on past it
    again = life.refused_at.get(offset, -REFUSED_S) + REFUSED_S
    return again <= now - SLACK and not _held(life, offset, now)


def in_time(life: Life, now: float) -> None:
    """L1: what is due is given up soon."""
    policy = life.spec.on_exhausted
    if not isinstance(policy, Park) or not policy.dead_letter:
        return
    full = _taken(life) >= policy.at_map
    if is_going(life) or not any(_due(life, o, now, full=full) for o in life.parked):
        life.relief_due_since = None
        return
    life.relief_due_since = now if life.relief_due_since is None else life.relief_due_since
    waited = now - life.relief_due_since
    if waited > WITHIN_S:
        raise Violation("L1", f"{life.partition!r}: a parked record is due for {waited:.3f} s")
