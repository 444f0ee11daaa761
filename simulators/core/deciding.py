"""A function as `on_exhausted`: what it returns, and what must follow from that."""

from __future__ import annotations

from perkey.core import effects as fx
from perkey.core.events import Decided
from perkey.policies import DECIDED_RETRIES_MAX, DeadLetter, GivenUp, Park, Retry, Skip
from simulators.core import remembering
from simulators.core.dice import Dice
from simulators.core.ledger import Life
from simulators.core.member import Member
from simulators.core.world import World

#: None: it raised
OUTCOMES: tuple[GivenUp | Retry | None, ...] = (
    Park(), Park(2.0), DeadLetter("dead"), Skip(), None,
    Retry(1, 0.1), Retry(2, 0.0), Retry(4, 1.0),
    Park(dead_letter="dead", at_map=0.001), Park(dead_letter="dead", at_map=1.0, after_s=2.0),
)  # fmt: skip


def answer(world: World, member: Member, dice: Dice, *, every: bool) -> None:
    """Some of the functions that were called return, in any order; some answers come twice."""
    for effect in list(member.questions):
        if not every and dice.chance(0.5):
            continue
        member.questions.remove(effect)
        outcome = dice.pick(OUTCOMES)
        life = world.oracle.lives.get(effect.work.partition)
        if life is not None and life.state != "closed":
            _decided(world, life, effect, outcome)
        one = Decided(effect.work, effect.number, outcome)
        member.engine.decided(world.now, [one, one] if dice.chance(0.2) else [one])
        member.perform()


def _decided(
    world: World, life: Life, effect: fx.AskExhausted, outcome: GivenUp | Retry | None
) -> None:
    offset, now, oracle = effect.work.record.offset, world.now, world.oracle
    if life.asked.get(offset) != effect.number:
        return  # a command released, skipped or held it meanwhile: the answer counts no more
    del life.asked[offset]
    oracle.stats[f"decided {type(outcome).__name__}"] += 1
    life.retries[offset] += isinstance(outcome, Retry)
    if isinstance(outcome, Retry) and life.retries[offset] <= DECIDED_RETRIES_MAX:
        life.policies[offset] = outcome
        life.came_spent.discard(offset)
        life.waits_since.pop(offset, None)
        life.attempts[offset] = life.own_attempts[offset] = 0
        assert not callable(outcome.delay_s)
        life.not_before[offset] = now + outcome.delay_s * (1 - outcome.jitter)
        life.startable[offset] = now + outcome.delay_s * (1 + outcome.jitter) + 1.0
        return
    policy = Park() if outcome is None or isinstance(outcome, Retry) else outcome
    if isinstance(policy, Park):
        remembering.park(life, offset, now, policy=policy)
    else:
        oracle.given_up(life, offset, now, policy)
