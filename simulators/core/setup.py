"""What one seed is: handlers, limits, fault odds. Swarm testing: the odds differ per seed.

Most bugs need several faults of one kind close together and none of another, which an average
mix hardly ever has (Groce et al., "Swarm Testing", ISSTA 2012).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from perkey.core.events import (
    ALL_STARTS_PER_S,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    HandlerSpec,
    Limits,
)
from perkey.policies import Batch, Commit, DeadLetter, GivenUp, OnExhausted, Park, Retry, Skip, Stop
from perkey.testing.memory import Protocol
from perkey.types import DeliveryName, Ordering

UNBOUNDED_BYTES = 10**9
#: What a step may do, with its usual weight.
ACTIONS = {
    "produce": 7.0,
    "poll": 16.0,
    "end_calls": 26.0,
    "settle": 8.0,
    "commits": 9.0,
    "read_back": 3.0,
    "transact": 7.0,
    "time": 12.0,
    "group": 12.0,
    "churn": 1.6,
    "control": 1.6,
    "log": 1.5,
}


@dataclass(slots=True)
class Odds:
    """Probabilities of faults; all are zero in the healing phase."""

    fail: float = 0.0
    final: float = 0.0
    retry_after: float = 0.0
    outputs: float = 0.0
    give_back: float = 0.0
    hang: float = 0.0
    output_refused: float = 0.0
    commit_lost: float = 0.0
    answer_lost: float = 0.0
    commit_refused: float = 0.0
    read_fails: float = 0.0
    find_fails: float = 0.0
    indefinite: float = 0.0
    slow_drain: float = 0.0
    gap: float = 0.0
    #: outputs that the broker answers for much later
    output_late: float = 0.0
    #: calls that begin long after they were asked for
    waits: float = 0.0
    #: calls whose handler postpones the record (NotNow)
    not_now: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """One life of a group."""

    seed: int
    steps: int
    specs: tuple[HandlerSpec, ...]
    limits: Limits
    protocol: Protocol
    partitions: int
    slots: int
    keys: int
    null_share: float
    poison: frozenset[int]
    #: not the handler fails for those keys: their outputs are never acknowledged
    poison_outputs: bool
    #: nor that: a transaction with an output of theirs is aborted, and nobody says because of whom
    poison_aborts: bool
    #: between these steps every transaction is aborted like that
    outage: tuple[int, int]
    cancellable: bool
    broker_chars: int
    poll_max: int
    #: outputs that a transaction can carry in its time
    transaction_bytes: int
    produce_max: int
    #: not 0: so many records with a key, then as many without; those with one fail to that step
    key_block: int
    keyed_fail_to: int
    #: bytes of a value: from one to so many
    value_bytes: int
    #: what logs can do to a reader: positions out of range, look-ups that fail one by one
    logs_matter: bool
    delay_bound_s: float
    ends: tuple[tuple[float, str], ...]
    odds: Odds = field(default_factory=Odds)

    def topic(self, handler: int) -> str:
        """The topic that this handler consumes."""
        return f"t{handler}"


def decides(record: object, error: BaseException) -> GivenUp:
    """Stands for a function as `on_exhausted`: the core never calls it, `deciding` answers."""
    raise AssertionError((record, error))


def draw_any(seed: int, steps: int) -> Setup:
    """What a seed draws before profiles have their say."""
    rng = random.Random(seed)
    specs = tuple(_spec(rng, index) for index in range(rng.choice((1, 1, 2))))
    partitions = rng.choice((1, 1, 2, 3))
    exact = any(spec.delivery != AT_LEAST_ONCE for spec in specs)
    limits = _limits(rng)
    return Setup(
        seed=seed,
        steps=steps,
        specs=specs,
        limits=limits,
        protocol=rng.choice(("eager", "cooperative", "incremental")),
        partitions=partitions,
        slots=rng.choice((1, 2, 2, 3)),
        keys=rng.choice((1, 2, 4, 12)),
        null_share=rng.choice((0.0, 0.0, 0.2)),
        poison=_poison(rng, specs),
        poison_outputs=False,
        poison_aborts=False,
        outage=(0, 0),
        cancellable=rng.random() < 0.6,
        broker_chars=4096 if exact or rng.random() < 0.7 else rng.choice((3, 4, 8, 16)),
        poll_max=rng.choice((1, 3, 8, 30)),
        produce_max=5,
        transaction_bytes=UNBOUNDED_BYTES,
        key_block=0,
        keyed_fail_to=0,
        value_bytes=1,
        logs_matter=False,
        delay_bound_s=30.0,
        ends=_ends(rng),
        odds=_odds(rng),
    )


def _spec(rng: random.Random, index: int) -> HandlerSpec:
    deliveries: tuple[DeliveryName, ...] = (
        AT_LEAST_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE,
    )  # fmt: skip
    delivery = rng.choice(deliveries)
    once = delivery == AT_MOST_ONCE
    batch = None
    if rng.random() < 0.3:
        explicit = delivery == AT_LEAST_ONCE and rng.random() < 0.5
        batch = Batch(
            rng.choice((1, 2, 5, 20)),
            rng.choice((0.0, 0.05, 0.5)),
            "explicit" if explicit else "all",
            rng.choice((None, "partition", "key")),
        )
    orderings: tuple[Ordering, ...] = ("key", "key", "partition", "unordered")
    ordering = rng.choice(orderings)
    concurrency, ahead = rng.choice((1, 2, 4, 10)), rng.choice((0, 0, 0, 3))
    return HandlerSpec(
        name=f"h{index}",
        ordering=ordering,
        concurrency=concurrency,
        ahead=0 if once else ahead,
        retry=_retry(rng, once=once),
        on_exhausted=_policy(rng, once=once),
        timeout_s=rng.choice((None, None, 0.5, 3.0)),
        delivery=delivery,
        commit_each=delivery == AT_LEAST_ONCE and rng.random() < 0.25,
        rate_limit_per_s=rng.choice((ALL_STARTS_PER_S,) * 4 + (5.0, 40.0)),
        batch=batch,
    )


def _retry(rng: random.Random, *, once: bool) -> Retry:
    attempts = 1 if once else rng.choice((1, 2, 3, 5, None))
    delay_s = rng.choice((0.0, 0.05, 0.1, 1.0))
    return Retry(attempts=attempts, delay_s=delay_s, delay_max_s=rng.choice((0.5, 4.0)))


def _policy(rng: random.Random, *, once: bool) -> OnExhausted:
    dead_letter = DeadLetter("{topic}.dlq")
    if once:
        return rng.choice((Skip(), Skip(), dead_letter, Stop()))
    return rng.choice((Park(), Park(), dead_letter, dead_letter, Skip(), Stop()))


def _limits(rng: random.Random) -> Limits:
    return Limits(
        buffer_records=rng.choice((4, 20, 50_000, 50_000)),
        buffer_bytes=rng.choice((3_000, 10**8, 10**8)),
        commit=Commit(
            interval_s=rng.choice((0.05, 0.5, 2.0)),
            max_records=rng.choice((None, None, 1, 7)),
        ),
        commit_answer_s=rng.choice((0.3, 2.0)),
        commit_retry_s=rng.choice((0.01, 0.2)),
        map_chars=rng.choice((4096, 4096, 4096, 4, 8, 12, 16, 24)),
    )


def _poison(rng: random.Random, specs: tuple[HandlerSpec, ...]) -> frozenset[int]:
    if rng.random() < 0.8:
        return frozenset()
    return frozenset(range(rng.choice((1, 2, 6))))


def _odds(rng: random.Random) -> Odds:
    if rng.random() < 0.1:
        return Odds(outputs=rng.choice((0.0, 0.5)))  # nothing fails: the checks must still be quiet

    def some(*often: float) -> float:
        return rng.choice((0.0, *often))

    return Odds(
        fail=some(0.05, 0.2, 0.6),
        final=some(0.05, 0.3),
        retry_after=some(0.1, 0.5),
        outputs=some(0.3, 1.0),
        give_back=some(0.05),
        hang=some(0.05, 0.2),
        output_refused=some(0.1, 0.4),
        commit_lost=some(0.1, 0.4),
        answer_lost=some(0.1, 0.4),
        commit_refused=some(0.1, 0.5),
        read_fails=some(0.3),
        find_fails=some(0.3),
        indefinite=some(0.2, 0.5),
        slow_drain=some(0.3, 0.8),
        gap=some(0.1, 0.4),
    )


def _ends(rng: random.Random) -> tuple[tuple[float, str], ...]:
    """The actions with the upper ends of their shares of [0, 1)."""
    weights = {name: weight * rng.choice((0.3, 1.0, 1.0, 2.5)) for name, weight in ACTIONS.items()}
    weights["churn"] *= rng.choice((0.0, 1.0, 3.0))
    weights["control"] *= rng.choice((0.0, 1.0, 2.0))
    total, upper, ends = sum(weights.values()), 0.0, []
    for name, weight in weights.items():
        upper += weight / total
        ends.append((upper, name))
    return tuple(ends)
