"""The possible steps of a member's polling and its handlers."""

from __future__ import annotations

from perkey.account import begun
from perkey.core.events import AT_MOST_ONCE, Ended, Failed, Returned, Unhandled
from perkey.core.partition import Partition
from perkey.core.portions import HELD_SHARE
from perkey.core.work import Work
from perkey.types import ErrorInfo, Record
from simulators.core import away, budgeted
from simulators.core.budgeted import tags_of
from simulators.core.dice import Dice
from simulators.core.member import OUTPUT_BYTES, Call, Member
from simulators.core.violation import Violation, require
from simulators.core.world import World

ERROR = ErrorInfo("SimulatedError", "drawn")
NOT_NOW = ErrorInfo("NotNow", "drawn")
OVERHEAD_BYTES = 100


class Shared:
    """Outputs that a batch returned together."""

    __slots__ = ("records", "works")

    def __init__(self, works: list[Work]) -> None:
        self.works = list(works)
        self.records = len(works)


def poll(world: World, member: Member, dice: Dice) -> None:
    """Fetch from every assigned partition that is not paused."""
    if member.revoking:
        return  # the polling thread is in the rebalance callback
    if member.parts:
        member.engine.room(member.parts.values())  # asked for before each poll
    batches: list[tuple[Partition, list[Record], list[int]]] = []
    ends = []
    for tp, partition in member.parts.items():
        if partition in member.paused or world.oracle.former(partition):
            continue
        log, position = world.broker.logs[tp], member.positions[tp]
        if world.setup.logs_matter and position < log.start:
            member.overtaken(tp)
            continue
        if dice.chance(0.03):  # fetched again, as after a pause
            position = max(log.start, position - 2)
        found, after = log.read(position, 1 + dice.below(world.setup.poll_max), committed=True)
        if found:
            records = [Record(tp[0], tp[1], r.offset, 0, r.key, r.value) for r in found]
            sizes = [OVERHEAD_BYTES + len(r.value or b"") for r in found]
            batches.append((partition, records, sizes))
            world.oracle.polled(partition, [r.offset for r in found], sizes, world.now)
        member.positions[tp] = max(after, member.positions[tp])
        member.engine.log_ends([(partition, log.end)])
        if after == log.stable_end():
            ends.append((partition, after))
    if batches:
        tags = {part: tags_of(part, records) for part, records, _ in batches if _is_tagged(part)}
        member.engine.polled(world.now, batches, tags)
        member.perform()
        _check_memory(world, member)
    if ends:
        member.engine.reached(world.now, ends)
        member.perform()


def _is_tagged(partition: Partition) -> bool:
    spec = partition.handler.spec
    return spec.budget is not None or (spec.hold is not None and spec.hold.by is not None)


def _check_memory(world: World, member: Member) -> None:
    """S9: healthy records up to one and a half budgets, failing ones one, and one poll more."""
    setup = world.setup
    over = setup.poll_max * len(member.parts)  # a budget is exceeded by no more than a poll
    for spec in setup.specs:
        if spec.delivery == AT_MOST_ONCE:  # marked ones are done for the ledger, and still run
            in_call = 1 if spec.batch is None else spec.batch.max_records
            over += (spec.concurrency + spec.ahead) * in_call
    limit = 2.5 * setup.limits.buffer_records + over
    limit_bytes = setup.limits.buffer_bytes + over * (OVERHEAD_BYTES + setup.value_bytes)
    room = setup.limits.buffer_bytes * HELD_SHARE + OUTPUT_BYTES * sum(
        (spec.concurrency + spec.ahead) * (1 if spec.batch is None else spec.batch.max_records)
        for spec in setup.specs
    )
    if member.held_outputs_bytes() > room:
        raise Violation("S9", f"{member.name} holds more than {room:.0f} bytes of outputs")
    if setup.limits.buffer_records < 1_000 or setup.limits.buffer_bytes < 10**6:
        records, size_bytes = world.oracle.held(member.name)
        require(records <= limit, "S9", f"{member.name} holds more than {limit} records")
        what = f"{member.name} holds {size_bytes} bytes, more than {limit_bytes}"
        require(size_bytes <= limit_bytes, "S9", what)


# -- handlers --------------------------------------------------------------------------------------


def end_calls(world: World, member: Member, dice: Dice, *, every: bool = False) -> None:
    """Some of the handler calls that run end, each in its own way."""
    done: list[Work] = []
    ended: list[Ended] = []
    share = 1.0 if every else dice.pick((0.2, 0.6, 1.0))
    batches = []
    for call in list(member.calls):
        if call.begun_at is None and not _begins(world, member, call, dice, every=every):
            continue
        if not every and (not dice.chance(share) or _hangs(world, call, dice)):
            continue
        if every:
            call.cancelled = False
        if call.batch:
            batches.append(call)
            continue
        member.calls.remove(call)
        _end_single(world, member, call, dice, done, ended)
    if done or ended:
        _tell(world, member, done, ended)
        member.engine.calls_ended(world.now, done, ended)
        member.perform()
    for call in batches:
        _end_batch(world, member, call, dice, every=every)


def _begins(world: World, member: Member, call: Call, dice: Dice, *, every: bool) -> bool:
    """A call that has waited in front of its handler begins, sooner or later."""
    if not every and not dice.chance(0.05):
        return False
    call.begun_at = world.now
    if dice.chance(0.3):  # for the account; not every executor reports it
        begun.begun([call.first], world.now)
    return every


def _hangs(world: World, call: Call, dice: Dice) -> bool:
    if not call.stuck and dice.chance(world.odds.hang):
        call.stuck = True
        world.oracle.stats["hung"] += 1
    if call.stuck and call.cancelled and world.setup.cancellable:
        call.stuck = False
    return call.stuck and not dice.chance(0.02)


def _end_single(
    world: World, member: Member, call: Call, dice: Dice, done: list[Work], ended: list[Ended]
) -> None:
    work = call.works[0]
    ending = outcome(world, member, work, dice, cancelled=call.cancelled)
    life = world.oracle.left(work)
    if life is None:
        world.oracle.stats["late"] += 1
    if ending is None:
        done.append(work)
        if life is not None:
            world.oracle.handled(life, work.record.offset, world.now)
    else:
        ended.append(ending)
    if life is None or ending is None:
        return
    if isinstance(ending, Unhandled):
        world.oracle.given_back(life, work)
    elif isinstance(ending, Returned):
        world.oracle.returned(life, work, world.now)


def _tell(world: World, member: Member, done: list[Work], ended: list[Ended]) -> None:
    """Of calls that end in one event those that returned are known first."""
    for work in done:
        if world.oracle.lives[work.partition].state != "closed":
            away.done(member, work)
    for work, ending in [(work, None) for work in done] + [(one.work, one) for one in ended]:
        budgeted.ended(member, work, ending)
        life = world.oracle.lives[work.partition]
        if life.state == "closed":
            continue
        if isinstance(ending, Failed) and ending.not_now:
            world.oracle.postponed(life, work, world.now, ending.delay_s)
        elif isinstance(ending, Failed):
            world.oracle.failed(
                life, work, world.now, final=ending.final, delay_s=ending.delay_s, alone=True,
                absent=ending.away,
            )  # fmt: skip
        away.ended(member, work, ending)


def outcome(
    world: World, member: Member, work: Work, dice: Dice, *, cancelled: bool = False
) -> Ended | None:
    """How one call ends; None is "returned, nothing to send"."""
    odds = world.odds
    fate, kind = dice.roll(), dice.roll()
    if cancelled or world.poisoned(work):
        return Failed(work, ERROR)
    if away.is_away(world, work):
        return Failed(work, ERROR, away=True)
    if odds.not_now and dice.chance(odds.not_now):
        return _postponed(work, dice)
    if fate < odds.fail:
        if kind < odds.final:
            return Failed(work, ERROR, final=True)
        asked = 10.0 * dice.roll() if dice.chance(odds.retry_after) else None
        once = work.partition.handler.spec.retry.attempts == 1
        asks = None if work.partition.handler.spec.budget is None else asked
        return Failed(work, ERROR, delay_s=None if once else asked, budget_s=asks)
    if fate > 1.0 - odds.give_back:
        return Unhandled(work)
    if kind < odds.outputs:
        return Returned(work, ["output"])
    return None


def _postponed(work: Work, dice: Dice) -> Failed:
    """The handler raises NotNow; `Hold.on` may name that, too."""
    return Failed(work, NOT_NOW, False, 5.0 * dice.roll(), dice.chance(0.5), None, not_now=True)


def _end_batch(world: World, member: Member, call: Call, dice: Dice, *, every: bool) -> None:
    spec = world.setup.specs[call.handler].batch
    assert spec is not None
    if spec.ack == "explicit":
        _explicit(world, member, call, dice, every=every)
    else:
        _whole(world, member, call, dice)
    member.perform()


def _whole(world: World, member: Member, call: Call, dice: Dice) -> None:
    member.calls.remove(call)
    if dice.chance(world.odds.give_back):
        _end_unhandled(world, member, call)
        return
    failed = call.cancelled or dice.chance(world.odds.fail) or any(map(world.poisoned, call.works))
    absent = not failed and any(away.is_away(world, work) for work in call.works)
    failed = failed or absent
    if not failed and world.odds.not_now and dice.chance(world.odds.not_now):
        _end_postponed(world, member, call, dice)
        return
    delay_s = 3.0 * dice.roll() if dice.chance(world.odds.retry_after) else None
    outputs = Shared(call.works) if dice.chance(world.odds.outputs) else None
    done: list[Work] = []
    ended: list[Ended] = []
    lives = {id(work): world.oracle.left(work) for work in call.works}
    count = len(call.works)
    for work in call.works:
        life = lives[id(work)]
        if life is not None:
            away.ended(member, work, Failed(work, ERROR) if failed else None)
        if failed:
            asked = None if world.once(call.handler) else delay_s
            ended.append(Failed(work, ERROR, delay_s=asked, away=absent))
            if life is not None:
                alone = count == 1 or world.once(call.handler)
                world.oracle.failed(
                    life, work, world.now, final=False, delay_s=asked, alone=alone, absent=absent
                )
        elif outputs is not None:
            ended.append(Returned(work, outputs))
            if life is not None:
                world.oracle.returned(life, work, world.now)
        else:
            done.append(work)
            if life is not None:
                world.oracle.handled(life, work.record.offset, world.now)
    member.engine.batch_ended(world.now, call.handler, done, ended, whole=failed)


def _end_postponed(world: World, member: Member, call: Call, dice: Dice) -> None:
    """All of the batch: it is not tried again in halves."""
    ending = _postponed(call.first, dice)
    ended: list[Ended] = [ending._replace(work=work) for work in call.works]
    for work in call.works:
        life = world.oracle.left(work)
        if life is not None:
            away.ended(member, work, ending)
            world.oracle.postponed(life, work, world.now, ending.delay_s)
    member.engine.batch_ended(world.now, call.handler, (), ended, whole=True)


def _end_unhandled(world: World, member: Member, call: Call) -> None:
    for work in call.works:
        life = world.oracle.left(work)
        if life is not None:
            away.ended(member, work, Unhandled(work))
            world.oracle.given_back(life, work)
    ended = [Unhandled(work) for work in call.works]
    member.engine.batch_ended(world.now, call.handler, (), ended)


def _explicit(world: World, member: Member, call: Call, dice: Dice, *, every: bool) -> None:
    """Acknowledge from the front; in the end the rest is nacked."""
    count = len(call.works) if every else dice.below(len(call.works) + 1)
    ends = every or dice.chance(0.6)
    done: list[Work] = []
    ended: list[Ended] = []
    acked = call.works[:count]
    for work in acked:
        life = world.oracle.left(work)
        returns = dice.chance(world.odds.outputs)
        if life is not None:
            away.ended(member, work, None)
        if returns:
            ended.append(Returned(work, ["output"]))
            if life is not None:
                world.oracle.returned(life, work, world.now)
        else:
            done.append(work)
            if life is not None:
                world.oracle.handled(life, work.record.offset, world.now)
    call.works = call.works[count:]
    if not ends:
        world.oracle.shared(call.works, call)
        if done or ended:
            member.engine.batch_progressed(world.now, done, ended)
        return
    member.calls.remove(call)
    _nack(world, member, call, dice, ended)
    member.engine.batch_ended(world.now, call.handler, done, ended)


def _nack(world: World, member: Member, call: Call, dice: Dice, ended: list[Ended]) -> None:
    for work in call.works:
        life = world.oracle.left(work)
        absent = away.is_away(world, work)
        later = not absent and world.odds.not_now and dice.chance(world.odds.not_now)
        failed = _postponed(work, dice) if later else Failed(work, ERROR, away=absent)
        ended.append(failed)
        if life is not None:
            away.ended(member, work, failed)
            offset = work.record.offset
            if later:
                world.oracle.postponed(life, work, world.now, failed.delay_s)
                continue
            lane = life.source.lane(offset)
            first = life.next_of(lane) == offset
            world.oracle.failed(
                life, work, world.now, final=False, delay_s=None, alone=first, absent=absent
            )
