"""What one step may do to a member: the events of the engine, and the faults around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core import effects as fx
from weft.core import states
from weft.core.commits import Answer
from weft.core.endings import Ended, Failed, GivenBack, Returned
from weft.core.partition import Partition
from weft.core.work import Work
from weft.kafka.ports import Verdict
from weft.testing.sim.dice import Dice
from weft.testing.sim.member import GROUP, Call, Exchange, Member
from weft.testing.sim.violation import Violation
from weft.types import ErrorInfo, Record, Sent

if TYPE_CHECKING:
    from weft.testing.sim.world import World

ERROR = ErrorInfo("SimulatedError", "drawn")
OVERHEAD_BYTES = 100


class Shared:
    """Outputs that a batch returned together."""

    __slots__ = ("records", "works")

    def __init__(self, works: list[Work]) -> None:
        self.works = list(works)
        self.records = len(works)


VERDICTS: dict[str, Verdict] = {
    "": "stored",
    "UNKNOWN_MEMBER_ID": "gone",
    "ILLEGAL_GENERATION": "retry",
    "STALE_MEMBER_EPOCH": "retry",
    "OFFSET_METADATA_TOO_LARGE": "too_large",
}


# -- polling -------------------------------------------------------------------------------------


def poll(world: World, member: Member, dice: Dice) -> None:
    """Fetch from every assigned partition that is not paused."""
    if member.revoking:
        return  # the polling thread is in the rebalance callback
    batches: list[tuple[Partition, list[Record], list[int]]] = []
    ends = []
    for tp, partition in member.parts.items():
        if partition in member.paused:
            continue
        position = member.positions[tp]
        if dice.chance(0.03):  # fetched again, as after a pause
            position = max(world.broker.logs[tp].start, position - 2)
        log = world.broker.logs[tp]
        found, after = log.read(position, 1 + dice.below(world.setup.poll_max))
        if found:
            records = [Record(tp[0], tp[1], r.offset, 0, r.key, r.value) for r in found]
            sizes = [OVERHEAD_BYTES + len(r.value or b"") for r in found]
            batches.append((partition, records, sizes))
            world.oracle.polled(partition, [r.offset for r in found], world.now)
        member.positions[tp] = max(after, member.positions[tp])
        if after == log.end:
            ends.append((partition, after))
    if batches:
        member.engine.polled(world.now, batches)
        member.perform()
        _check_memory(world, member)
    if ends:
        member.engine.reached(world.now, ends)
        member.perform()


def _check_memory(world: World, member: Member) -> None:
    """S9: healthy records up to one and a half budgets, failing ones one, and one poll more."""
    setup = world.setup
    limit = 2.5 * setup.limits.buffer_records + setup.poll_max * len(member.parts)
    if setup.limits.buffer_records < 1_000 and world.oracle.held_records(member.name) > limit:
        raise Violation("S9", f"{member.name} holds more than {limit} records")


# -- handlers ------------------------------------------------------------------------------------


def end_calls(world: World, member: Member, dice: Dice, *, every: bool = False) -> None:
    """Some of the handler calls that run end, each in its own way."""
    done: list[Work] = []
    ended: list[Ended] = []
    share = 1.0 if every else dice.pick((0.2, 0.6, 1.0))
    batches = []
    for call in list(member.calls):
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
        member.engine.calls_ended(world.now, done, ended)
        member.perform()
    for call in batches:
        _end_batch(world, member, call, dice, every=every)


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
        return
    ended.append(ending)
    if life is None:
        return
    if isinstance(ending, GivenBack):
        world.oracle.given_back(life, work)
    elif isinstance(ending, Failed):
        world.oracle.failed(
            life, work, world.now, final=ending.final, delay_s=ending.delay_s, alone=True
        )
    else:
        world.oracle.returned(life, work, world.now)


def outcome(
    world: World, member: Member, work: Work, dice: Dice, *, cancelled: bool = False
) -> Ended | None:
    """How one call ends; None is "returned, nothing to send"."""
    odds = world.odds
    fate, kind = dice.roll(), dice.roll()
    if cancelled or world.poisoned(work):
        return Failed(work, ERROR)
    if fate < odds.fail:
        if kind < odds.final:
            return Failed(work, ERROR, final=True)
        asked = 10.0 * dice.roll() if dice.chance(odds.retry_after) else None
        once = work.partition.handler.spec.retry.attempts == 1
        return Failed(work, ERROR, delay_s=None if once else asked)
    if fate > 1.0 - odds.give_back:
        return GivenBack(work)
    if kind < odds.outputs:
        return Returned(work, ["output"])
    return None


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
        _give_back(world, member, call)
        return
    failed = call.cancelled or dice.chance(world.odds.fail) or any(map(world.poisoned, call.works))
    delay_s = 3.0 * dice.roll() if dice.chance(world.odds.retry_after) else None
    outputs = Shared(call.works) if dice.chance(world.odds.outputs) else None
    done: list[Work] = []
    ended: list[Ended] = []
    lives = {id(work): world.oracle.left(work) for work in call.works}
    count = len(call.works)
    for work in call.works:
        life = lives[id(work)]
        if failed:
            asked = None if world.once(call.handler) else delay_s
            ended.append(Failed(work, ERROR, delay_s=asked))
            if life is not None:
                alone = count == 1 or world.once(call.handler)
                world.oracle.failed(life, work, world.now, final=False, delay_s=asked, alone=alone)
        elif outputs is not None:
            ended.append(Returned(work, outputs))
            if life is not None:
                world.oracle.returned(life, work, world.now)
        else:
            done.append(work)
            if life is not None:
                world.oracle.handled(life, work.record.offset, world.now)
    member.engine.batch_ended(world.now, call.handler, done, ended, whole=failed)


def _give_back(world: World, member: Member, call: Call) -> None:
    for work in call.works:
        life = world.oracle.left(work)
        if life is not None:
            world.oracle.given_back(life, work)
    ended = [GivenBack(work) for work in call.works]
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
        if dice.chance(world.odds.outputs):
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
    _nack(world, call, ended)
    member.engine.batch_ended(world.now, call.handler, done, ended)


def _nack(world: World, call: Call, ended: list[Ended]) -> None:
    for work in call.works:
        life = world.oracle.left(work)
        ended.append(Failed(work, ERROR))
        if life is not None:
            offset = work.record.offset
            first = life.next_of(life.source.lane(offset)) == offset
            world.oracle.failed(life, work, world.now, final=False, delay_s=None, alone=first)


# -- outputs and commits -----------------------------------------------------------------------------


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


# -- transactions ------------------------------------------------------------------------------------


def transact(world: World, member: Member, dice: Dice) -> None:
    """The transaction on its way takes its next step."""
    exchange = member.exchange
    if exchange is None:
        return
    steps: tuple[Callable[[World, Member, Dice], None], ...] = (_write, _offsets, _end)
    steps[exchange.phase](world, member, dice)


def _write(world: World, member: Member, dice: Dice) -> None:
    exchange, broker = member.exchange, world.broker
    assert exchange is not None
    broker.begin(member.producer)
    refused: list[tuple[Work, ErrorInfo]] = []
    shared: dict[int, bool] = {}
    _check_whole(exchange)
    for item in exchange.effect.items:
        for work in item.claims:
            if work.extra is None:
                continue
            no = dice.chance(world.odds.output_refused)
            if shared.setdefault(id(work.extra), no) if isinstance(work.extra, Shared) else no:
                refused.append((work, ERROR))
                continue
            where = f"{work.record.topic}:{work.record.partition}:{work.record.offset}"
            broker.produce(("out", 0), work.record.key, where.encode(), producer=member.producer)
    if not refused:
        exchange.phase = 1
        return
    broker.abort(member.producer)
    for work, _ in refused:
        alone = not isinstance(work.extra, Shared) or work.extra.records == 1
        world.oracle.refused(work, world.now, alone=alone)
    world.oracle.stats["outputs refused in a transaction"] += 1
    _ended(world, member, committed=False, refused=refused)


def _check_whole(exchange: Exchange) -> None:
    """Records that share outputs are in one transaction, all that are still there."""
    claims = {id(work) for item in exchange.effect.items for work in item.claims}
    for item in exchange.effect.items:
        for work in item.claims:
            if isinstance(work.extra, Shared):
                mates = [mate for mate in work.extra.works if mate.extra is work.extra]
                if any(mate.state == states.PENDING and id(mate) not in claims for mate in mates):
                    raise Violation("S8", f"{work!r} is committed without others of its outputs")


def _offsets(world: World, member: Member, dice: Dice) -> None:
    exchange = member.exchange
    assert exchange is not None
    offsets = {
        (item.partition.topic, item.partition.number): world.value(item)
        for item in exchange.effect.items
    }
    errors = world.broker.send_offsets(
        member.producer, GROUP, member.id, exchange.generation, offsets
    )
    if any(errors.values()) or dice.chance(world.odds.commit_refused):
        world.broker.abort(member.producer)
        world.oracle.stats["transactions aborted"] += 1
        _ended(world, member, committed=False)
    else:
        exchange.phase = 2


def _end(world: World, member: Member, dice: Dice) -> None:
    """The commit of the transaction; indefinite: a new producer, then look what was stored."""
    exchange, broker = member.exchange, world.broker
    assert exchange is not None
    indefinite, arrives = dice.chance(world.odds.indefinite), dice.chance(0.5)
    committed = not indefinite or arrives
    if committed:
        broker.commit(member.producer)
    if indefinite:
        world.oracle.stats["transactions in doubt"] += 1
        member.producer = broker.init_producer(member.producer.transactional_id)
    if committed:
        for item in exchange.effect.items:
            tp = (item.partition.topic, item.partition.number)
            world.oracle.stored(item, world.owner(tp))
    _ended(world, member, committed=committed)


def _ended(
    world: World,
    member: Member,
    *,
    committed: bool,
    refused: list[tuple[Work, ErrorInfo]] | None = None,
) -> None:
    exchange = member.exchange
    assert exchange is not None
    member.exchange = None
    now_in = {item.partition for item in exchange.effect.items}
    for partition in member.parts.values():  # the others had to wait for this one
        world.oracle.heard(partition, world.now, stored=committed or partition not in now_in)
    member.engine.transacted(
        world.now, exchange.effect.sequence, committed=committed, refused=refused or ()
    )
    member.perform()


# -- the group ---------------------------------------------------------------------------------------


def group(world: World, member: Member, dice: Dice) -> None:
    """One heartbeat: what the coordinator wants, or the next step of what it wanted before."""
    if member.drained and not member.revoking:
        leave(world, member, dice)
        return
    if member.revoking:
        _revoke_on(world, member, dice)
        return
    if member.pending and not dice.chance(world.odds.find_fails):
        member.pending = [tp for tp in member.pending if not member.begin(tp)]
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
        _ended(world, member, committed=False)


def _close_with_commit(
    world: World, member: Member, tps: tuple[tuple[str, int], ...], dice: Dice
) -> None:
    while member.requests:  # the broker applies the requests of one connection in order
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
    world.bury(member, left=True)
