"""Seeds with a subject: situations that a random mix rarely reaches.

Seeds from 10,000,000 on belong to profiles, a million each. A profile takes what the seed drew
and fixes what its subject needs; all else stays as drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from perkey.core.events import (
    ALL_STARTS_PER_S,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    UNORDERED,
    HandlerSpec,
)
from perkey.policies import Batch, Brake, Budget, Commit, DeadLetter, Hold, Park, Retry, Skip
from simulators.core.away import by_key
from simulators.core.setup import ACTIONS, Setup, decides, draw_any

WIDTH = 1_000_000
#: batches of exactly_once whose partitions come and go one by one
SHARED = 10_000_000
#: long logs with a frontier that stands: how far one may start before the map is full
MAPS = 11_000_000
#: exactly_once with outputs that are more than a transaction's time is enough for
SLOW = 12_000_000
#: exactly_once with an output partition that takes nothing, and refuses nothing
OFFLINE = 13_000_000
#: source logs with open transactions, topics that are made again, positions that fell out of range
LOGS = 14_000_000
#: outputs that are answered for much later, and values of many sizes
LATE = 15_000_000
#: as MAPS, with blocks so long that runs reach further than a bit set, until holes in them are done
HOLES = 16_000_000
#: as OFFLINE, but each transaction with such an output is aborted, and nobody says because of whom
ABORTED = 17_000_000
#: exactly_once with a broker that stores less of an offset map than was thought
REFUSED_MAPS = 18_000_000
#: worker processes that open slowly, records that are long in loading: calls that have not begun
WAITING = 20_000_000
#: commands that pause topics and handlers, and set concurrency and rate
STEERED = 22_000_000
#: a function as `on_exhausted`, which returns late and anything
DECIDED = 23_000_000
#: parked lanes of which only offsets are kept, released in any order
PARKED = 27_000_000
#: as both COMMANDED and DECIDED
BOTH = 28_000_000
#: as PARKED, with more of everything: failures, commands, rebalances, foreign riders, little room
CROWDED = 29_000_000

#: what handlers call is away for a while, all of it or for one key
AWAY = 24_000_000
#: so much fails that brakes hold handlers
BRAKED = 25_000_000

#: handlers that share a budget, with what they call and what it costs
BUDGETED = 30_000_000

#: calls granted ahead, more and fewer from one moment to the next, while commands set how many
AHEAD = 32_000_000

#: as COMMANDED, with two or three members, and commands that are obeyed again
REPEATED = 33_000_000

#: a commit when so many records are done, long before the interval ends, and not two in a row
COUNTED = 34_000_000

#: commands to lanes and records, parked ones that are released, riders of other clients
COMMANDED = 21_000_000


def draw(seed: int, steps: int) -> Setup:
    """All that one seed decides before its first step."""
    setup = draw_any(seed, steps)
    profile = PROFILES.get(seed // WIDTH * WIDTH)
    return setup if profile is None else profile(setup, random.Random(~seed))


def _shared(setup: Setup, rng: random.Random) -> Setup:
    batch = Batch(rng.choice((2, 5, 20)), rng.choice((0.0, 0.05)))
    spec = replace(setup.specs[0], delivery=EXACTLY_ONCE, batch=batch, commit_each=False)
    return replace(
        setup,
        specs=(spec,),
        protocol=rng.choice(("cooperative", "incremental")),
        partitions=rng.choice((2, 3)),
        slots=rng.choice((2, 3)),
        broker_chars=4096,
        odds=replace(setup.odds, outputs=1.0, slow_drain=0.5),
        ends=_weighted(group=30.0, churn=4.0),
    )


def _slow(setup: Setup, rng: random.Random) -> Setup:
    """A producer with a quota: what is in a transaction must be through in its time."""
    batch = rng.choice((None, None, Batch(rng.choice((2, 5)), 0.05)))
    spec = replace(
        setup.specs[0],
        delivery=EXACTLY_ONCE,
        concurrency=rng.choice((4, 10)),
        commit_each=False,
        batch=batch,
    )
    return replace(
        setup,
        specs=(spec,),
        limits=replace(setup.limits, buffer_bytes=rng.choice((12_000, 100_000))),
        broker_chars=4096,
        poll_max=30,
        produce_max=20,
        transaction_bytes=rng.choice((300, 900, 3_000)),
        odds=replace(setup.odds, outputs=1.0),
        ends=_weighted(transact=4.0),
    )


def _offline(setup: Setup, rng: random.Random) -> Setup:
    """What some keys put out is never acknowledged; the healthy ones are done all the same."""
    spec = replace(
        setup.specs[0],
        delivery=EXACTLY_ONCE,
        ordering=rng.choice(("key", "unordered")),
        concurrency=rng.choice((4, 10)),
        commit_each=False,
        batch=None,  # with nothing else to send, those in company with a culprit wait for proof
        retry=Retry(attempts=rng.choice((1, 2)), delay_s=0.5),
        on_exhausted=rng.choice((Park(), Skip(), DeadLetter("dead"))),
    )
    return replace(
        setup,
        specs=(spec,),
        limits=replace(setup.limits, buffer_records=50_000, buffer_bytes=10**8, map_chars=4096),
        broker_chars=4096,
        keys=20,
        poison=frozenset(rng.sample(range(20), rng.choice((1, 3)))),
        poison_outputs=True,
        poll_max=30,
        produce_max=20,
        odds=replace(setup.odds, outputs=1.0),
        ends=_weighted(transact=4.0),
    )


def _aborted(setup: Setup, rng: random.Random) -> Setup:
    """Some keys abort every transaction they are in; for a while all of them are aborted so."""
    offline = _offline(setup, rng)
    begin = rng.randrange(setup.steps)
    return replace(
        offline,
        poison_outputs=False,
        poison_aborts=True,
        outage=(begin, min(begin + rng.choice((0, 0, 60, 200)), setup.steps)),
        partitions=rng.choice((1, 1, 2, 3)),
        produce_max=rng.choice((2, 20)),
        ends=_weighted(transact=40.0, produce=rng.choice((0.5, 7.0))),
    )


def _maps(setup: Setup, rng: random.Random) -> Setup:
    """First the lanes stand and what has no key goes far past them; then every other lane goes."""
    spec = replace(
        setup.specs[0],
        delivery=AT_LEAST_ONCE,
        ordering=rng.choice(("key", "key", "key", "unordered")),
        concurrency=rng.choice((2, 5, 10)),
        retry=Retry(attempts=None, delay_s=rng.choice((1.0, 5.0)), multiplier=1.0),
        rate_limit_per_s=ALL_STARTS_PER_S,
        batch=rng.choice((None, None, None, setup.specs[0].batch)),
    )
    chars, keys = rng.choice((192, 256)), rng.choice((40, 100))
    return replace(
        setup,
        specs=(spec,),
        limits=replace(setup.limits, map_chars=chars, buffer_records=50_000, buffer_bytes=10**8),
        broker_chars=chars,
        partitions=1,
        slots=1,
        keys=keys,
        poison=frozenset(range(0, keys, 2)),
        poll_max=1_000,
        produce_max=100,
        key_block=rng.choice((8, 12, 16)),
        keyed_fail_to=setup.steps * 2 // 3,
        odds=replace(setup.odds, fail=0.0, hang=0.0, commit_refused=0.0, gap=rng.choice((0, 0.3))),
        ends=_weighted(churn=0.0, log=rng.choice((0.0, 0.3)), control=0.0),
    )


def _logs(setup: Setup, rng: random.Random) -> Setup:
    """Nothing of it is written to an output, where two topics of one name could not be told."""
    specs = tuple(
        replace(spec, delivery=AT_LEAST_ONCE) if spec.delivery == EXACTLY_ONCE else spec
        for spec in setup.specs
    )
    return replace(
        setup,
        specs=specs,
        partitions=rng.choice((1, 2, 3)),
        logs_matter=True,
        odds=replace(setup.odds, find_fails=rng.choice((0.0, 0.3, 0.6))),
        ends=_weighted(
            foreign=rng.choice((0.0, 6.0)),
            remake=rng.choice((0.0, 0.6)),
            retention=rng.choice((0.0, 3.0)),
            log=rng.choice((1.0, 6.0)),
            churn=rng.choice((0.5, 2.0)),
        ),
    )


def _late(setup: Setup, rng: random.Random) -> Setup:
    """Handlers that send; a broker that is busy; records of very different sizes."""
    spec = replace(
        setup.specs[0],
        delivery=AT_LEAST_ONCE,
        ordering=rng.choice(("key", "key", UNORDERED)),
        concurrency=rng.choice((2, 4, 10)),
        rate_limit_per_s=ALL_STARTS_PER_S,
    )
    return replace(
        setup,
        specs=(spec,),
        limits=replace(
            setup.limits, buffer_records=50_000, buffer_bytes=rng.choice((8_000, 40_000))
        ),
        broker_chars=4096,
        poll_max=rng.choice((3, 8)),
        produce_max=20,
        value_bytes=rng.choice((100, 1_000)),
        odds=replace(setup.odds, outputs=rng.choice((0.3, 1.0)), output_late=0.2),
    )


def _holes(setup: Setup, rng: random.Random) -> Setup:
    """A bit set of 64 characters tells 336 offsets; four runs tell 512 of these."""
    maps = _maps(setup, rng)
    retry = replace(maps.specs[0].retry, delay_s=1.0)
    spec = replace(maps.specs[0], ordering="key", concurrency=100, retry=retry, batch=None)
    return replace(
        maps,
        specs=(spec,),
        limits=replace(maps.limits, map_chars=64),
        broker_chars=64,
        keys=40,
        poison=frozenset(range(0, 40, 2)),
        produce_max=100,
        key_block=128,
        keyed_fail_to=setup.steps // 2,
        ends=_weighted(churn=0.0, log=0.0, control=0.0),
    )


def _refused_maps(setup: Setup, rng: random.Random) -> Setup:
    """Maps are halved until the broker takes them. No batches: their outputs wait together."""
    spec = replace(
        setup.specs[0],
        delivery=EXACTLY_ONCE,
        batch=None,
        commit_each=False,
        concurrency=rng.choice((4, 10)),
        rate_limit_per_s=ALL_STARTS_PER_S,
    )
    return replace(
        setup,
        specs=(spec,),
        limits=replace(setup.limits, map_chars=4096),
        broker_chars=rng.choice((3, 4, 8, 16)),
        keys=12,
        odds=replace(setup.odds, fail=0.2, commit_refused=0.0),
    )


def _waiting(setup: Setup, rng: random.Random) -> Setup:
    """Time-outs that are short beside the time in front of the handler."""
    spec = replace(
        setup.specs[0],
        concurrency=rng.choice((1, 2, 4)),
        timeout_s=rng.choice((0.5, 2.0)),
        rate_limit_per_s=ALL_STARTS_PER_S,
    )
    return replace(
        setup,
        specs=(spec,),
        limits=replace(setup.limits, map_chars=4096),
        broker_chars=4096,
        odds=replace(setup.odds, waits=rng.choice((0.5, 1.0)), hang=rng.choice((0.0, 0.1))),
        ends=_weighted(time=20.0),
    )


def _steered(setup: Setup, _rng: random.Random) -> Setup:
    """Among everything else that may happen."""
    return replace(setup, ends=_weighted(steer=4.0, control=0.0))


def _ahead(setup: Setup, rng: random.Random) -> Setup:
    """Of handlers whose executor asks for that: see `ThreadExecutor.keeps_pace`."""
    specs = tuple(
        replace(
            spec,
            delivery=AT_LEAST_ONCE if spec.delivery == AT_MOST_ONCE else spec.delivery,
            ahead=rng.choice((1, 3, 10)),
            batch=None,
            timeout_s=None,
        )
        for spec in setup.specs
    )
    weights = {"ahead": rng.choice((1.0, 4.0)), "steer": rng.choice((0.0, 2.0)), "control": 0.0}
    odds = replace(setup.odds, give_back=rng.choice((0.0, 0.3)))
    return replace(setup, specs=specs, odds=odds, ends=_weighted(**weights))


def _counted(setup: Setup, rng: random.Random) -> Setup:
    """Enough is done in little time, by handlers whose commits nothing waits for."""
    periodic = [replace(s, delivery=AT_LEAST_ONCE, commit_each=False) for s in setup.specs]
    specs = tuple(replace(s, rate_limit_per_s=ALL_STARTS_PER_S, concurrency=8) for s in periodic)
    commit = Commit(rng.choice((2.0, 30.0)), rng.choice((None, None, 12)))
    after = rng.choice((1, 3, 8))
    limits = replace(setup.limits, commit=commit, commit_after=after, map_chars=4096)
    odds = replace(setup.odds, commit_refused=rng.choice((0.0, 0.0, setup.odds.commit_refused)))
    ends = _weighted(control=0.5, time=rng.choice((10.0, 40.0)))
    setup = replace(setup, broker_chars=4096, poll_max=30, produce_max=20)
    return replace(setup, specs=specs, limits=limits, odds=odds, ends=ends)


def _commanded(setup: Setup, rng: random.Random) -> Setup:
    """Much fails and is parked; processes come and go, and someone steers."""
    park = Park(rng.choice((None, 0.0, 2.0)))
    specs = tuple(
        replace(
            spec,
            retry=replace(spec.retry, attempts=rng.choice((1, 2, 3)), remember=rng.random() < 0.9),
            on_exhausted=rng.choice((park, park, DeadLetter("dead"), Skip())),
            rate_limit_per_s=ALL_STARTS_PER_S,
        )
        if spec.delivery != AT_MOST_ONCE
        else spec
        for spec in setup.specs
    )
    return _failing(
        setup,
        specs,
        rng.choice((0.2, 0.6)),
        command=rng.choice((2.0, 20.0)),
        meddle=rng.choice((0.0, 3.0)),
        churn=rng.choice((1.0, 6.0)),
    )


def _repeated(setup: Setup, rng: random.Random) -> Setup:
    """Partitions move between members, and each owner obeys what was commanded before."""
    setup = _commanded(setup, rng)
    weights = {"command": 10.0, "repeat": 20.0, "churn": rng.choice((3.0, 6.0))}
    slots, keys = rng.choice((2, 3)), rng.choice((1, 2, 4))
    return replace(setup, slots=slots, keys=keys, ends=_weighted(group=24.0, **weights))


def _parked(setup: Setup, rng: random.Random) -> Setup:
    """What is parked is forgotten and fetched again, with long lanes and little room."""
    specs = tuple(
        replace(
            spec,
            delivery=AT_LEAST_ONCE if spec.delivery == AT_MOST_ONCE else spec.delivery,
            retry=replace(spec.retry, attempts=rng.choice((1, 2)), remember=rng.random() < 0.9),
            on_exhausted=_park(rng),
            rate_limit_per_s=ALL_STARTS_PER_S,
        )
        for spec in setup.specs
    )
    setup = _failing(
        setup, specs, rng.choice((0.2, 0.6)), command=rng.choice((2.0, 20.0)), meddle=0.0
    )
    limits = replace(setup.limits, forget_parked=True)
    return replace(setup, limits=limits, keys=rng.choice((2, 4, 12)), produce_max=12)


def _park(rng: random.Random) -> Park:
    """Half of them with a dead-letter topic, at shares that such short logs reach."""
    if rng.random() < 0.5:
        return Park(rng.choice((None, None, 0.0, 2.0)))
    at_map, after_s = rng.choice(((0.0005, None), (0.001, None), (0.002, 5.0), (1.0, 2.0)))
    return Park(dead_letter="dead", at_map=at_map, after_s=after_s)


def _crowded(setup: Setup, rng: random.Random) -> Setup:
    """Most records fail; parked, held and waiting ones of few lanes fill budgets of any size."""
    setup = _parked(setup, rng)
    limits = replace(
        setup.limits,
        forget_parked=rng.random() < 0.7,
        buffer_records=rng.choice((3, 8, 20, 50_000)),
        buffer_bytes=rng.choice((2_000, 6_000, 10**8)),
    )
    weights = {
        "command": rng.choice((5.0, 40.0)),
        "meddle": rng.choice((0.0, 2.0, 10.0)),
        "churn": rng.choice((3.0, 9.0)),
        "group": 30.0,
        "control": rng.choice((0.0, 3.0)),
        "log": rng.choice((0.0, 4.0)),
        "retention": rng.choice((0.0, 1.0)),
    }
    fail = rng.choice((0.4, 0.8))
    return replace(
        setup,
        limits=limits,
        slots=rng.choice((2, 3)),
        odds=replace(setup.odds, fail=fail, gap=rng.choice((0.0, 0.3))),
        ends=_weighted(**weights),
    )


def _decided(setup: Setup, rng: random.Random) -> Setup:
    """Much fails, and for each record it is asked what becomes of it."""
    specs = tuple(
        replace(
            spec,
            delivery=AT_LEAST_ONCE if spec.delivery == AT_MOST_ONCE else spec.delivery,
            retry=Retry(rng.choice((1, 2, 3)), 0.1, remember=rng.random() < 0.8),
            on_exhausted=decides,
        )
        for spec in setup.specs
    )
    return _failing(setup, specs, rng.choice((0.2, 0.6)), churn=rng.choice((1.0, 6.0)), control=0.0)


def _away(setup: Setup, rng: random.Random) -> Setup:
    """Little fails besides, but handlers postpone records."""
    specs = []
    for spec in setup.specs:
        by = by_key if spec.batch is None and rng.random() < 0.5 else None
        hold = Hold(OSError, rng.choice((0.2, 1.0)), by, rng.choice((2.0, 30.0)))  # type: ignore[arg-type]  # one is enough
        delivery = AT_LEAST_ONCE if spec.delivery == AT_MOST_ONCE else spec.delivery
        specs.append(
            replace(spec, delivery=delivery, retry=Retry(rng.choice((1, 2, 5))), hold=hold)
        )
    fail = rng.choice((0.0, 0.0, 0.1))
    setup = _failing(setup, tuple(specs), fail, away=rng.choice((2.0, 8.0)), churn=1.0)
    return replace(setup, odds=replace(setup.odds, not_now=rng.choice((0.0, 0.05, 0.2))))


def _braked(setup: Setup, rng: random.Random) -> Setup:
    """What ends is counted in one place: no outputs, no batches, at least once."""
    brake = Brake(rng.choice((0.2, 0.5)), 1e6, rng.choice((2, 5)), rng.choice((0.2, 1.0)))
    specs = tuple(
        replace(
            spec,
            delivery=AT_LEAST_ONCE,
            commit_each=False,
            batch=None,
            retry=Retry(rng.choice((1, 2))),
            on_exhausted=rng.choice((Park(), Skip(), DeadLetter("dead"))),
            brake=brake,
        )
        for spec in setup.specs
    )
    fail = rng.choice((0.1, 0.3, 0.6))
    braked = _failing(setup, specs, fail, churn=rng.choice((0.5, 2.0)))
    return replace(braked, odds=replace(braked.odds, outputs=0.0), poison=frozenset())


def _budgeted(setup: Setup, rng: random.Random) -> Setup:
    """Several handlers, mostly with slots enough, so that the budget alone decides."""
    budget = Budget(
        "b",
        rng.choice((None, 2.0, 10.0, 60.0)),
        rng.choice((1, 3, 8)),
        by_key if rng.random() < 0.7 else None,  # type: ignore[arg-type]  # it is never called
    )
    specs = tuple(
        replace(
            setup.specs[0],
            name=f"h{index}",
            delivery=rng.choice((AT_LEAST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)),
            commit_each=False,
            batch=None,
            concurrency=rng.choice((2, 100, 100)),
            rate_limit_per_s=rng.choice((ALL_STARTS_PER_S,) * 4 + (5.0,)),
            budget=budget,
        )
        for index in range(rng.choice((1, 2, 3)))
    )
    fail = rng.choice((0.0, 0.0, 0.3))
    charge = rng.choice((0.0, 0.0, 10.0))
    churn = rng.choice((0.0, 1.0))
    return _failing(setup, specs, fail, charge=charge, churn=churn, control=0.3, time=25.0)


def _both(setup: Setup, rng: random.Random) -> Setup:
    """Commands to records that wait for what the function returns, and riders of such."""
    decided = _decided(setup, rng)
    commands = {"command": rng.choice((2.0, 20.0)), "meddle": rng.choice((0.0, 3.0))}
    return replace(decided, ends=_weighted(churn=rng.choice((1.0, 6.0)), control=0.0, **commands))


def _failing(setup: Setup, specs: tuple[HandlerSpec, ...], fail: float, **weights: float) -> Setup:
    """Such a share of the calls fails, and commits have room for all that is remembered."""
    return replace(
        setup,
        specs=specs,
        limits=replace(setup.limits, map_chars=4096),
        broker_chars=4096,
        odds=replace(setup.odds, fail=fail, hang=0.0),
        ends=_weighted(**weights),
    )


def _weighted(**weights: float) -> tuple[tuple[float, str], ...]:
    """The usual shares of the actions, but for these."""
    all_weights = {**ACTIONS, **weights}
    total, upper, ends = sum(all_weights.values()), 0.0, []
    for name, weight in all_weights.items():
        upper += weight / total
        ends.append((upper, name))
    return tuple(ends)


PROFILES: dict[int, Callable[[Setup, random.Random], Setup]] = {
    SHARED: _shared,
    MAPS: _maps,
    SLOW: _slow,
    OFFLINE: _offline,
    LOGS: _logs,
    LATE: _late,
    HOLES: _holes,
    ABORTED: _aborted,
    REFUSED_MAPS: _refused_maps,
    WAITING: _waiting,
    STEERED: _steered,
    AHEAD: _ahead,
    COUNTED: _counted,
    COMMANDED: _commanded,
    DECIDED: _decided,
    AWAY: _away,
    BRAKED: _braked,
    BUDGETED: _budgeted,
    PARKED: _parked,
    CROWDED: _crowded,
    BOTH: _both,
    REPEATED: _repeated,
}
