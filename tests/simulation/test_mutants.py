"""Every promise has an engine that breaks it, and the simulator sees which one it broke."""

from __future__ import annotations

import pytest

from perkey.core.states import InternalError
from simulators.core.mutants import MUTANTS, Mutant
from simulators.core.runner import digest
from simulators.core.steps import live
from simulators.core.violation import Violation
from simulators.core.world import World

pytestmark = pytest.mark.push

SEEDS_MAX = 1_000
#: S14 was that of a retired command; the other names stay
PROMISES = {*(f"S{number}" for number in range(1, 19) if number != 14), "L1", "L2", "L4"}


def promise_broken(seed: int) -> str | None:
    """The name of the promise that this seed sees broken."""
    try:
        live(World(seed))
    except Violation as violation:
        return violation.name
    except InternalError:
        return "structure"
    except Exception:  # the mutant made the engine fall over: no promise was seen broken
        return None
    return None


def first_caught(mutant: Mutant) -> int | None:
    """The first seed that reports one of the promises which this mutant breaks."""
    with mutant.alive():
        for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
            if promise_broken(seed) in mutant.promises:
                return seed
    return None


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.promises != ("S10",)], ids=lambda mutant: mutant.name
)
@pytest.mark.timeout(600)
def test_mutant_is_caught(mutant, record_property):
    """The simulator names a promise that the mutant breaks, within 1,000 seeds."""
    seed = first_caught(mutant)
    record_property("seed", seed)
    assert seed is not None, f"{mutant.name} survived {SEEDS_MAX} seeds"


def test_random_mutant_changes_the_trace():
    """An engine that draws random numbers does not give the same effects twice (S10)."""
    (mutant,) = [m for m in MUTANTS if m.promises == ("S10",)]
    with mutant.alive():
        assert any(_differs(seed) for seed in range(50))


def _differs(seed: int) -> bool:
    try:
        return digest(seed) != digest(seed)
    except (AssertionError, KeyError):  # it breaks other promises on the way
        return False


def test_each_promise_has_a_mutant():
    """No promise is checked by something that was never seen red."""
    assert {promise for mutant in MUTANTS for promise in mutant.promises} >= PROMISES
