"""The oracle's part in what is remembered and commanded: riders, parked records, holds, skips."""

from __future__ import annotations

from collections.abc import Collection

from perkey.codec import Remembered, UnreadableMap, decode
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import AT_MOST_ONCE, DELAY_MAX_S, EXACTLY_ONCE, HOLD_MAX_S
from perkey.policies import PARKED_S_MAX, DeadLetter, GivenUp, OnExhausted, Park, Stop
from perkey.testing.memory import OffsetAndMetadata
from simulators.core.ledger import Claimed, Life
from simulators.core.violation import require

#: the simulated clock begins then
UNIX_S = 1_700_000_000.0
SLACK = 1e-6
NEVER = float("inf")


def remembers(life: Life) -> bool:
    """Its commits have riders."""
    return life.spec.retry.remember and life.spec.delivery != AT_MOST_ONCE


def begin(life: Life, committed: OffsetAndMetadata | None, log_end: int, now: float) -> None:
    """The epoch begins with what the commit says."""
    if committed is None or not remembers(life):
        return
    try:
        known = decode(committed.offset, committed.metadata, log_end=log_end)
    except UnreadableMap:  # another client's
        return
    for one in known.rider.entries:
        if one.offset >= life.source.log.start:
            _restore(life, one, now)


def _restore(life: Life, one: Remembered, now: float) -> None:
    offset, spec = one.offset, life.spec
    life.attempts[offset] = life.own_attempts[offset] = one.attempts
    due = None if one.until_s is None else min(one.until_s - UNIX_S, now + _longest_s(life, one))
    if one.parked:
        park(life, offset, now, due)
        return
    allowed = spec.retry.attempts
    spent = bool(one.exhausted_by) or (allowed is not None and one.attempts >= allowed)
    spent = spent and not isinstance(spec.on_exhausted, Stop)
    if due is not None and due > now and (one.held or not spent):
        (life.held_until if one.held else life.not_before)[offset] = due
    if not spent:
        return
    life.came_spent.add(offset)
    if not isinstance(spec.on_exhausted, GivenUp):
        ask(life, offset)
    elif isinstance(spec.on_exhausted, Park):
        park(life, offset, now)
    else:
        life.given_up.add(offset)
        if isinstance(spec.on_exhausted, DeadLetter) and spec.delivery == EXACTLY_ONCE:
            life.dead_letters.add(offset)


def _longest_s(life: Life, one: Remembered) -> float:
    """A commit, which anyone may write, puts a record off for no longer than its cause can."""
    if one.parked:
        return PARKED_S_MAX
    retry = life.spec.retry
    longest = retry.delay_max_s * (1.0 + retry.jitter)
    return max(longest, HOLD_MAX_S if one.held else DELAY_MAX_S)


def ask(life: Life, offset: int) -> None:
    """It does not start before `on_exhausted` has returned."""
    life.asked[offset] = 0
    life.startable.pop(offset, None)


def park(
    life: Life,
    offset: int,
    now: float,
    due: float | None = None,
    policy: OnExhausted | None = None,
) -> None:
    """It does not start before it is released."""
    policy = policy or life.spec.on_exhausted
    if not isinstance(policy, GivenUp):  # it came parked
        life.parked[offset] = NEVER if due is None else due
        return
    life.give_up_at.pop(offset, None)
    if isinstance(policy, Park) and policy.after_s is not None:
        latest = now + policy.after_s
        life.give_up_at[offset] = latest if due is None else min(due, latest)
        life.parked[offset] = NEVER
        return
    after = policy.release_after_s if isinstance(policy, Park) else None
    latest = NEVER if after is None else now + after
    life.parked[offset] = latest if due is None or after is None else min(due, latest)


def release(life: Life, offset: int, now: float) -> None:
    """Its attempts begin anew."""
    del life.parked[offset]
    life.attempts[offset] = life.own_attempts[offset] = 0
    life.not_before[offset] = now
    if offset in life.polled:
        life.startable[offset] = now + 1.0
    life.came_spent.discard(offset)
    life.waits_since.pop(offset, None)
    life.policies.pop(offset, None)
    life.retries.pop(offset, None)
    life.refused_at.pop(offset, None)


def may_start(life: Life, offset: int, now: float) -> None:
    """Nothing that is remembered or was commanded stands against its start."""
    if life.parked.get(offset, NEVER) <= now + SLACK:
        release(life, offset, now)
    tp = life.source.tp
    require(offset not in life.parked, "S12", f"{tp}@{offset} is parked and starts")
    require(offset not in life.asked, "S12", f"{tp}@{offset} starts before it is decided on")
    spent = offset in life.given_up
    require(not spent, "S12", f"{tp}@{offset} was given up or skipped, and starts")
    gone = offset in life.source.skipped
    require(not gone, "S13", f"{tp}@{offset} starts, and it was answered that it is skipped")
    if offset in life.marked:
        return  # at_most_once: its start had begun with its mark
    until = max(life.held_until.get(offset, 0.0), life.holds.get(life.source.lane(offset), 0.0))
    require(until <= now + SLACK, "S13", f"{tp}@{offset} starts and is held until {until:.3f}")


def check_rider(life: Life, item: fx.PlanItem, says: Claimed, now: float, *, room: bool) -> None:
    """S12: what a rider says is what was, and where there is room it says all."""
    entries = decode(item.frontier, item.metadata).rider.entries
    if not remembers(life):
        require(not entries, "S12", f"{life.source.tp}: a rider that nobody asked for")
        return
    for one in entries:
        _check_entry(life, one, says, now)
    if room and len(item.metadata) < 3_900:
        claims = {work.record.offset for work in item.claims}
        _check_whole(life, {one.offset for one in entries}, says, claims, now)


def _check_entry(life: Life, one: Remembered, says: Claimed, now: float) -> None:
    offset, place = one.offset, f"{life.source.tp}@{one.offset}"
    require(offset not in says, "S12", f"{place} is done, and remembered")
    if life.parked.get(offset, NEVER) <= now + SLACK or offset in life.time_over:
        return  # released, or about to be
    own = life.own_attempts[offset]
    require(one.attempts == own, "S12", f"{place} failed {own} times, the rider says {one}")
    parked = offset in life.parked
    given_up_next = parked and bool(one.exhausted_by)  # when its turn comes
    known = one.parked == parked or offset in life.came_spent or offset == life.relieved
    known = known or given_up_next
    require(known, "S12", f"{place} is {'' if parked else 'not '}parked, the rider says {one}")
    if one.until_s is not None and not one.parked and offset in life.polled:
        due = life.not_before.get(offset, 0.0)
        soon = one.until_s - UNIX_S < due - SLACK and due > now  # any time that is over is as good
        require(not soon, "S12", f"{place} waits until {due + UNIX_S}, the rider says {one}")


def _check_whole(
    life: Life, told: Collection[int], says: Claimed, claims: Collection[int], now: float
) -> None:
    stops = isinstance(life.spec.on_exhausted, Stop)
    for offset in {*life.own_attempts, *life.parked}:
        if offset in told or offset in says or offset in claims or offset in life.claimable:
            continue
        parked = offset in life.parked
        if (parked and stops) or offset in life.given_up or offset in life.passed:
            continue
        if offset < life.partition.position and offset not in life.polled:
            continue  # the log has it no more
        if life.parked.get(offset, NEVER) <= now + SLACK:
            continue
        own = life.own_attempts[offset]
        require(not (own or parked), "S12", f"{life.source.tp}@{offset}: {own} attempts forgotten")


def _on_a_shelf(life: Life, offset: int) -> bool:
    """It came, and only its offset is kept."""
    undone = life.partition.offsets.incomplete
    return offset in undone and undone[offset] is None


def _begins_anew(life: Life, offset: int) -> bool:
    """It was given up, and held before its letter was sent; now it is to be handled again."""
    work = life.partition.offsets.incomplete.get(offset)
    failure = None if work is None else work.failure
    waits = work is not None and work.state in states.WAITING
    return waits and failure is not None and not (failure.given_up or failure.exhausted_by)


def answered(life: Life, row: fx.Obeyed, now: float, order: str) -> None:
    """A command was obeyed in this epoch; `order`: its id."""
    offset = row.offset
    if row.outcome in ("held", "skipped", "released", "retried"):
        known = offset >= 0 and offset in life.known
        require(not known, "S18", f"{life.source.tp}: {row}, and the group has it as done")
    if row.outcome == "held" and offset in life.asked:
        life.asked[offset] = 0
    if row.outcome == "skipped":
        twice = order in life.source.skipped_by
        require(not twice, "S18", f"{life.source.tp}: {row}, for the second time")
        life.source.skipped_by.add(order)
        life.source.skipped.add(offset)
    elif row.outcome in ("released", "retried") and offset >= 0:
        if offset in life.parked:
            release(life, offset, now)
        elif offset in life.given_up and (offset in life.came_spent or _begins_anew(life, offset)):
            life.given_up.remove(offset)
            life.dead_letters.discard(offset)
            life.came_spent.discard(offset)
            life.refused_at.pop(offset, None)
            life.attempts[offset] = life.own_attempts[offset] = 0
        elif offset not in life.polled or offset in life.asked or _on_a_shelf(life, offset):
            # it was remembered, or exhausted
            life.attempts[offset] = life.own_attempts[offset] = 0
            life.given_up.discard(offset)
            life.came_spent.discard(offset)
            life.policies.pop(offset, None)
            life.retries.pop(offset, None)
        life.asked.pop(offset, None)
        life.held_until.pop(offset, None)
        life.not_before[offset] = now
        if offset in life.polled:
            life.startable[offset] = now + 1.0
