"""Transactions, step by step: outputs, offsets, the end, and what may go wrong at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.core import states
from weft.core.work import Work
from weft.testing.sim.actions import ERROR, Shared
from weft.testing.sim.dice import Dice
from weft.testing.sim.member import GROUP, Exchange, Member
from weft.testing.sim.violation import Violation
from weft.types import ErrorInfo

if TYPE_CHECKING:
    from weft.testing.sim.world import World


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
    finish(world, member, committed=False, refused=refused)


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
        finish(world, member, committed=False)
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
    finish(world, member, committed=committed)


def finish(
    world: World,
    member: Member,
    *,
    committed: bool,
    refused: list[tuple[Work, ErrorInfo]] | None = None,
) -> None:
    """The transaction has ended; the engine hears of it."""
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
