"""Transactions, step by step: outputs, offsets, the end, and the faults of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.work import Work
from perkey.kafka.ports import ToCommit, which_way
from perkey.testing.memory import METADATA_TOO_LARGE
from perkey.types import ErrorInfo, TopicPartition
from simulators.core.actions import ERROR, Shared
from simulators.core.answers import check_answered
from simulators.core.dice import Dice
from simulators.core.member import OUTPUT_BYTES, Exchange, Member
from simulators.core.stage import GROUP
from simulators.core.violation import Violation, require
from simulators.core.world import World

CONTENT = ErrorInfo("SimulatedAbort", "for something that is in it")


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
    size = OUTPUT_BYTES * sum(
        w.outputs is not None for i in exchange.effect.items for w in i.claims
    )
    if size > world.setup.transaction_bytes and size > OUTPUT_BYTES * _unit(world):
        broker.abort(member.producer)  # the producer's quota: more is not through in time
        world.oracle.stats["transactions too slow"] += 1
        finish(world, member, committed=False, slow=True)
        return
    stuck = [w for i in exchange.effect.items for w in i.claims if world.unacknowledged(w)]
    if stuck:
        broker.abort(member.producer)
        world.oracle.stats["transactions stuck"] += 1
        finish(world, member, committed=False, slow=True, stuck=stuck)
        return
    refused: list[tuple[Work, ErrorInfo]] = []
    shared: dict[int, bool] = {}
    written: set[int] = set()
    _check_whole(exchange)
    for item in exchange.effect.items:
        for work in item.claims:
            if work.outputs is None:
                continue
            no = dice.chance(world.odds.output_refused)
            if shared.setdefault(id(work.outputs), no) if isinstance(work.outputs, Shared) else no:
                refused.append((work, ERROR))
                continue
            for one in _written_with(work, written):
                place = f"{one.record.topic}:{one.record.partition}:{one.record.offset}"
                broker.produce(("out", 0), one.record.key, place.encode(), producer=member.producer)
    if not refused:
        exchange.phase = 1
        return
    broker.abort(member.producer)
    for work, _ in refused:
        alone = not isinstance(work.outputs, Shared) or work.outputs.records == 1
        world.oracle.refused(work, world.now, alone=alone)
    world.oracle.stats["outputs refused in a transaction"] += 1
    finish(world, member, committed=False, refused=refused)


def _unit(world: World) -> int:
    """Records whose outputs no transaction can part."""
    return max((spec.batch.max_records for spec in world.setup.specs if spec.batch), default=1)


def _written_with(work: Work, written: set[int]) -> list[Work]:
    """Whose outputs are produced here: with a batch's first record those of all it was called with.

    Also of those whose partition has gone since: nobody can take a shared output apart.
    """
    if not isinstance(work.outputs, Shared):
        return [work]
    if id(work.outputs) in written:
        return []
    written.add(id(work.outputs))
    return work.outputs.works


def _check_whole(exchange: Exchange) -> None:
    """Records that share outputs are in one transaction, all that are still there."""
    claims = {id(work) for item in exchange.effect.items for work in item.claims}
    for item in exchange.effect.items:
        for work in item.claims:
            if isinstance(work.outputs, Shared):
                mates = [mate for mate in work.outputs.works if mate.outputs is work.outputs]
                if any(mate.state == states.PENDING and id(mate) not in claims for mate in mates):
                    raise Violation("S8", f"{work!r} is committed without others of its outputs")


def _offsets(world: World, member: Member, dice: Dice) -> None:
    exchange = member.exchange
    assert exchange is not None
    works = [work for item in exchange.effect.items for work in item.claims]
    if world.outage() or any(map(world.aborts, works)):
        world.broker.abort(member.producer)
        world.oracle.stats["transactions aborted for their content"] += 1
        finish(world, member, committed=False, reason=CONTENT)
        return
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
        too_large = METADATA_TOO_LARGE in errors.values()
        world.oracle.stats["maps refused in a transaction"] += too_large
        finish(world, member, committed=False, maps_too_large=too_large)
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
    _check_way(world, exchange, committed=committed)
    if indefinite:
        world.oracle.stats["transactions in doubt"] += 1
        member.producer = broker.init_producer(member.producer.transactional_id)
    if committed:
        for item in exchange.effect.items:
            tp = (item.partition.topic, item.partition.number)
            world.oracle.stored(item, world.owner(tp))
    finish(world, member, committed=committed)


def _check_way(world: World, exchange: Exchange, *, committed: bool) -> None:
    """S8: who lost the answer sees by the group's offsets alone how the transaction ended."""
    items = [item for item in exchange.effect.items if world.owner(_place(item)) is not None]
    if not any(work.outputs is not None for item in items for work in item.claims):
        return
    held = world.broker.group(GROUP).committed
    sent = [ToCommit(*_place(item), item.frontier, item.metadata) for item in items]
    there = [held.get((one.topic, one.partition)) for one in sent]
    values = [(None, "") if one is None else (one.offset, one.metadata) for one in there]
    way = which_way(sent, values)
    require((way == "committed") == committed, "S8", f"a transaction looks {way}: {sent} {values}")


def _place(item: fx.PlanItem) -> TopicPartition:
    return item.partition.topic, item.partition.number


def finish(
    world: World,
    member: Member,
    *,
    committed: bool,
    slow: bool = False,
    refused: list[tuple[Work, ErrorInfo]] | None = None,
    stuck: Sequence[Work] = (),
    reason: ErrorInfo | None = None,
    maps_too_large: bool = False,
) -> None:
    """The transaction has ended; the engine hears of it."""
    exchange = member.exchange
    assert exchange is not None
    member.exchange = None
    now_in = {item.partition for item in exchange.effect.items}
    for partition in member.parts.values():  # the others had to wait for this one
        world.oracle.heard(partition, world.now, stored=committed or partition not in now_in)
    sent = [w for i in exchange.effect.items for w in i.claims if w.outputs is not None]
    held = [(work, work.outputs) for work in (stuck if reason is None else sent)]
    member.engine.transacted(
        world.now,
        exchange.effect.sequence,
        committed=committed,
        slow=slow,
        sent=[(work, ()) for work in sent],
        refused=refused or (),
        stuck=[(work, ERROR) for work in stuck],
        reason=reason,
        maps_too_large=maps_too_large,
    )
    for work, outputs in held:
        if work.outputs is not outputs:  # given up, as one that others went past
            _given_up(world, work, outputs, reason)
    member.perform()
    if committed:
        check_answered(world, member, now_in.intersection(member.parts.values()))


def _given_up(world: World, work: Work, outputs: object, reason: ErrorInfo | None) -> None:
    world.oracle.stats["stuck outputs given up" if reason is None else "culprits found"] += 1
    if reason is not None:
        require(world.poison(work), "S8", f"{work!r} fails for what another one did")
        error = work.failure and work.failure.error
        require(error == reason, "S8", f"{work!r} fails for {error}, not for {reason}")
    alone = not isinstance(outputs, Shared) or outputs.records == 1
    world.oracle.refused(work, world.now, alone=alone)
