"""Liveness checks during faults (S5, L1)."""

from __future__ import annotations

from math import inf

from perkey.core import states
from perkey.core.events import ALL_STARTS_PER_S, AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, NEVER
from simulators.core import away, budgeted, relieving
from simulators.core.ledger import Life
from simulators.core.member import Member
from simulators.core.steered import calls_max, may_start, timeout_s
from simulators.core.violation import Violation
from simulators.core.world import World

START_WITHIN_S = 1.0


def check_liveness(world: World, member: Member) -> None:
    """After the clock has moved and the engine has looked at it."""
    for partition in member.parts.values():
        life = world.oracle.lives[partition]
        if life.state == "open":
            _commits_in_time(world, member, life)
            stands = member.user_paused or member.held or member.stop_at is not None or member.fatal
            if not stands and may_start(member, partition.topic, partition.handler.index):
                relieving.in_time(life, world.now)
            if _may_start(world, member, life) and budgeted.has_room(world, member, life):
                _starts_in_time(world, member, life)
    if world.setup.limits.commit_after < NEVER:
        _many_are_committed(world, member)
    _ends_asked_for(world, member)


def _ends_asked_for(world: World, member: Member) -> None:
    """Calls past their time, which counts from their beginning, also with all acknowledged."""
    for call in member.calls:
        limit_s = timeout_s(member, call.handler)
        if limit_s is None or not call.timed or call.begun_at is None or call.cancelled:
            continue
        if world.now > call.begun_at + limit_s + 1e-6:
            raise Violation("L1", f"{call.first!r} runs since {call.begun_at:.3f}, not ended")


def _commits_in_time(world: World, member: Member, life: Life) -> None:
    """What is done is committed within the interval, unless an answer is waited for."""
    if life.spec.delivery == AT_MOST_ONCE:
        return  # a mark that nothing waits for is not owed
    if life.uncovered_since is None or _waits_for_answer(member, life):
        return
    limits = world.setup.limits
    if life.spec.delivery == EXACTLY_ONCE and limits.map_chars < 4096:
        return  # outputs that records share may wait for room in the map, all of them together
    if world.setup.broker_chars < 4096 and _waits_for_room(life):
        return
    allowed = limits.commit.interval_s + 10 * limits.commit_retry_s + limits.commit_answer_s
    waited = world.now - life.uncovered_since
    if waited > allowed:
        raise Violation("S5", f"{life.source.tp}: done for {waited:.3f} s and not committed")


def _many_are_committed(world: World, member: Member) -> None:
    """`commit_after` records are not done and uncommitted while a commit may be sent."""
    limits, oracle = world.setup.limits, world.oracle
    lives = [oracle.lives[partition] for partition in member.parts.values()]
    if member.fatal or any(_waits_for_answer(member, life) for life in lives):
        return
    if any(life.partition.commit.refusals for life in lives):
        return  # repeated at the interval: of a refused commit nothing counts again
    done = sum(life.uncovered for life in lives if life.state == "open")
    if done >= limits.commit_after:
        oracle.stats["counted"] += 1
        since = world.now - oracle.planned_at.get(member.name, -inf)
        if since >= limits.commit_apart_s:
            raise Violation("S5", f"{done} are done and not committed for {since:.3f} s")


def _waits_for_room(life: Life) -> bool:
    """exactly_once: all that is done lies past what is not, and the broker stores no such map."""
    undone = {o for o in life.polled - life.passed - life.given_up if o not in life.known}
    exact = life.spec.delivery == EXACTLY_ONCE
    return exact and bool(undone) and all(offset > min(undone) for offset in life.claimable)


def _waits_for_answer(member: Member, life: Life) -> bool:
    requests = [item for r in member.requests for item in r.effect.items]
    if member.exchange is not None and life.spec.delivery == EXACTLY_ONCE:
        return True  # one transaction at a time
    reading = any(life.partition in partitions for partitions in member.reads)
    lost = member.engine.state.partitions.get(life.source.tp)
    in_doubt = lost is not None and lost.commit.state != 0
    return reading or in_doubt or any(item.partition is life.partition for item in requests)


def _may_start(world: World, member: Member, life: Life) -> bool:
    setup, spec = world.setup, life.spec
    if member.held or member.user_paused or member.stop_at is not None or member.fatal:
        return False
    handler = life.partition.handler.index
    if not may_start(member, life.partition.topic, handler):
        return False
    if setup.limits.map_chars < 4096 or setup.broker_chars < 4096:
        return False
    if spec.rate_limit_per_s != ALL_STARTS_PER_S or spec.delivery != AT_LEAST_ONCE:
        return False
    if spec.commit_each:  # the broker may have stored what the engine does not know yet
        idle = life.partition.commit.state == states.IDLE
        return idle and life.partition.handler.slots.free > 0
    used = sum(call.handler == handler for call in member.calls)
    used += sum(
        len(other.claimable)
        for other in world.oracle.lives.values()
        if other.member == member.name and other.state != "closed" and other.spec is spec
    )
    return used < calls_max(member, handler)


def _starts_in_time(world: World, member: Member, life: Life) -> None:
    linger = 0.0 if life.spec.batch is None else life.spec.batch.linger_s
    before = world.now - START_WITHIN_S - linger
    if max(member.freed_at, world.ticked_before) > before:
        return
    for offset, since in life.startable.items():
        # A delay that ended after the look at the clock before this one was only seen now.
        if since > world.ticked_before or offset in life.running or offset in life.sending:
            continue
        if offset in life.passed or offset in life.parked or offset in life.known:
            continue
        if offset in life.asked or life.away(offset):
            continue
        # What continues since an outage is over by its time may linger in its batch.
        if away.waits(world.oracle, life, offset, min(before, world.ticked_before)):
            continue
        if offset in life.claimable or offset in life.dead_letters or offset in life.given_up:
            continue
        lane = life.source.lane(offset)
        given_up = (o for o in life.given_up if o in life.source.keys and o not in life.passed)
        if lane in map(life.source.lane, given_up):
            continue  # its dead letter may be on the way
        held = max(life.held_until.get(offset, 0.0), life.holds.get(lane, 0.0))
        if held > world.ticked_before or life.next_of(lane) != offset:
            continue
        place = (member.name, life.source.tp, lane)
        # So does a lane that a batch held: its next record asks again when time passes.
        moved = world.oracle.lane_moved.get(place, 0.0)
        if place in world.oracle.lanes_running or moved > min(before, world.ticked_before):
            continue
        raise Violation("L1", f"{life.source.tp}@{offset} could start since {since:.3f}")
