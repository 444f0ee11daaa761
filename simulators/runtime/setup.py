"""The set-up of one seed: a handler, a cluster, fault odds, and how threads take turns."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perkey.policies import Batch, Commit, DeadLetter, Park, Retry, Skip
from perkey.testing.memory import Protocol

TOPIC, OUTPUT, DEAD = "in", "out", "in.dlq"


DURATIONS = ((0.0,), (0.0, 0.002), (0.001, 0.02, 0.1), (0.0, 0.2, 1.0))
DELIVERIES = ("at_least_once",) * 3 + ("exactly_once",) * 2 + ("at_most_once",)
CALM_DELIVERIES = ("at_least_once",) * 4 + ("exactly_once", "at_most_once")
PREFETCH = (None, None, None, "def", "async", "generator", "async generator")
CALM_DURATIONS = ((0.0, 0.2), (0.02,), (0.001, 0.02, 0.1), (0.0, 0.0, 0.5))


@dataclass(slots=True)
class Odds:
    """Probabilities of faults; all are zero once everything heals."""

    commit_lost: float = 0.0
    answer_lost: float = 0.0
    commit_refused: float = 0.0
    #: refused, and sent again by the client itself, after later ones
    commit_again: float = 0.0
    find_fails: float = 0.0
    find_slow: float = 0.0
    output_refused: float = 0.0
    transaction_lost: float = 0.0
    transaction_unheard: float = 0.0
    transaction_slow: float = 0.0
    #: of a partition that is assigned, right before or after its start is looked up
    leader_moved: float = 0.0
    #: of a member whose session has ended: its static id is fenced, and its client is useless
    fenced: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """One life of a group."""

    seed: int
    #: nothing fails and nobody comes or goes: what can run, runs at once
    calm: bool
    kind: str
    delivery: str
    ordering: str
    concurrency: int
    batch: Batch | None
    prefetch: str | None
    retry: Retry
    on_exhausted: Any
    timeout_s: float | None
    outputs_max: int
    fail_odds: float
    kill_odds: float
    poison: frozenset[int]
    durations: tuple[float, ...]
    commit: Commit
    protocol: Protocol
    assign_may_block: bool
    partitions: int
    keys: int
    poll_max: int
    queue_max: int
    delay_s: float
    #: of outputs
    store_s: float
    buffer_records: int
    revoke_timeout_s: float
    members: int
    actions: int
    pace_s: float
    produce_max: int
    switch_odds: float
    by_priority: bool
    shuffle: bool
    tick_s: float
    stall_odds: float
    stall_s: float
    odds: Odds = field(default_factory=Odds)
    #: a worker process imports and loads for so long before it takes a call
    opens_s: float = 0.0
    #: how long the group waits for a member that was killed
    lingers_s: float = 0.0
    #: calls on threads are granted ahead at any pace, now and then
    ahead: bool = False

    @property
    def slowest_s(self) -> float:
        """How long one record may take where nothing runs beside it: every attempt, every delay."""
        retry = self.retry
        assert retry.attempts is not None
        assert isinstance(retry.delay_s, float)
        delays = [retry.delay_s * retry.multiplier**n for n in range(retry.attempts - 1)]
        call_s = max(self.durations) + self.opens_s  # one that is killed costs its process
        return retry.attempts * call_s + (1 + retry.jitter) * sum(delays)

    @property
    def transactional(self) -> bool:
        """Outputs and offsets go together."""
        return self.delivery == "exactly_once"


def draw(seed: int) -> Setup:
    """All that one seed decides before its first step."""
    rng = random.Random(seed)
    calm = rng.random() < 0.3
    kind = rng.choice(("threads", "async") if calm else ("threads", "async", "processes"))
    delivery = rng.choice(CALM_DELIVERIES if calm else DELIVERIES)
    batch = _batch(rng, delivery) if not calm and rng.random() < 0.3 else None
    once = delivery == "at_most_once"
    policy = rng.choice((Skip(), DeadLetter(DEAD)) if once else (Park(), DeadLetter(DEAD), Skip()))
    poisoned = batch is None and rng.random() < 0.3
    # What is parked keeps its place in the buffers: a small one may be full of it for ever.
    small = not calm and not isinstance(policy, Park) and rng.random() < 0.3
    odds = Odds() if calm else _odds(rng, seed)
    if small:
        odds.output_refused = 0.0
    return _endable(
        Setup(
            seed=seed,
            calm=calm,
            kind=kind,
            delivery=delivery,
            ordering=rng.choice(("key", "key", "partition", "unordered")),
            concurrency=rng.choice((1, 1, 2) if kind == "processes" else (1, 2, 4, 4)),
            batch=batch,
            prefetch=rng.choice((None, None, None, "def") if calm else PREFETCH),
            retry=Retry(
                remember=False,  # what an epoch inherits is the core simulator's subject
                attempts=1 if once else rng.choice((3, 5)),
                delay_s=rng.choice((0.01, 0.03, 0.4)),
            ),
            on_exhausted=policy,
            timeout_s=rng.choice((None, None, 0.3)),
            outputs_max=rng.choice((0, 0, 3) if calm else (0, 1, 3)),
            fail_odds=rng.choice((0.0, 0.1, 0.3)),
            kill_odds=rng.choice((0.0, 0.1)),
            poison=frozenset(rng.sample(range(20), 2)) if poisoned else frozenset(),
            durations=rng.choice(CALM_DURATIONS if calm else DURATIONS),
            commit=_commit(rng, delivery, calm=calm),
            protocol=rng.choice(("eager", "cooperative", "incremental")),
            assign_may_block=rng.random() < 0.6,
            partitions=rng.choice((1, 2, 3)),
            keys=rng.choice((1, 3, 8)),
            poll_max=rng.choice((1, 4, 50)),
            queue_max=rng.choice((1, 2, 1000)),
            delay_s=rng.choice((0.0005, 0.005)) if calm else rng.choice((0.0005, 0.005, 0.05)),
            store_s=rng.choice((0.001, 0.02, 0.2)),
            buffer_records=6 if small else 50_000,
            revoke_timeout_s=rng.choice((0.05, 0.5, 5.0)),
            members=1 if calm else rng.choice((1, 2, 3)),
            actions=rng.choice((2, 5, 12)),
            pace_s=rng.choice((0.05, 0.2, 0.6)),
            produce_max=rng.choice((3, 12, 30)),
            switch_odds=rng.choice((0.02, 0.1, 0.5)),
            by_priority=rng.random() < 0.3,
            shuffle=rng.random() < 0.5,
            tick_s=rng.choice((1e-6, 2e-5)),
            stall_odds=0.0 if calm else rng.choice((0.0, 0.001)),
            stall_s=rng.choice((0.05, 0.6)),
            odds=odds,
            opens_s=random.Random(f"opens {seed}").choice((0.0, 0.0, 4.0)),
            lingers_s=random.Random(f"lingers {seed}").choice((0.0, 0.5, 4.0)),
            ahead=not calm and random.Random(f"ahead {seed}").random() < 0.3,
        )
    )


def _endable(setup: Setup) -> Setup:
    """A batch on a thread that lasts ten time-outs ends its member, as it should: none does."""
    longest_s = max(setup.durations) * (setup.batch.max_records if setup.batch else 1)
    hangs = setup.kind == "threads" and setup.timeout_s and longest_s >= 10 * setup.timeout_s
    return replace(setup, timeout_s=1.0) if hangs else setup


def _batch(rng: random.Random, delivery: str) -> Batch:
    explicit = delivery == "at_least_once" and rng.random() < 0.7
    return Batch(
        max_records=rng.choice((1, 3, 8)),
        linger_s=rng.choice((0.0, 0.02)),
        ack="explicit" if explicit else "all",
    )


def _commit(rng: random.Random, delivery: str, *, calm: bool) -> Commit:
    interval_s = rng.choice((0.05, 0.5, 2.0))
    each = not calm and delivery == "at_least_once" and rng.random() < 0.2
    return Commit(interval_s=interval_s, each=each)


#: odds that came later draw from a generator of their own: what kept seeds drew stays as it was
_NEWER = {"commit_again": "commit again", "leader_moved": "leader moved", "fenced": "fenced"}


def _odds(rng: random.Random, seed: int) -> Odds:
    """Most of them zero: a bug needs several faults of one kind and none of another."""
    drawn = {
        one.name: (
            random.Random(f"{_NEWER[one.name]} {seed}") if one.name in _NEWER else rng
        ).choice((0.0, 0.0, 0.1, 0.4))
        for one in fields(Odds)
    }
    return Odds(**drawn)
