"""Broken engines for budgets: what handlers share, and who is next (S17)."""

from __future__ import annotations

from typing import Any

from perkey.core.budgets import Bucket, SharedBudget
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Bucket, "pays", "S17", first_seed=profiles.BUDGETED)
def _bucket_pays_always(original: Any) -> Any:
    return lambda _self, _cost: True


@mutant(Bucket, "pays", "L1", "L2", first_seed=profiles.BUDGETED)
def _bucket_pays_only_when_more_than_full(original: Any) -> Any:
    return lambda self, cost: self.tokens > self.most and original(self, cost)


@mutant(SharedBudget, "ended", "S17", "structure", first_seed=profiles.BUDGETED)
def _calls_end_twice(original: Any) -> Any:
    def ended(self: SharedBudget) -> None:
        original(self)
        self.in_flight = max(0, self.in_flight - 1)

    return ended


@mutant(SharedBudget, "ended", "L1", "L2", "structure", first_seed=profiles.BUDGETED)
def _calls_never_end(original: Any) -> Any:
    return lambda _self: None


@mutant(SharedBudget, "wait", "S17", first_seed=profiles.BUDGETED)
def _budget_does_not_wait(original: Any) -> Any:
    return lambda _self, _seconds, _error: None


@mutant(SharedBudget, "divide", "S17", first_seed=profiles.BUDGETED)
def _member_has_all(original: Any) -> Any:
    return lambda self, _held, total: original(self, total or 0, total)


@mutant(SharedBudget, "charged", "S17", first_seed=profiles.BUDGETED)
def _nothing_is_settled(original: Any) -> Any:
    return lambda _self, _one: None


@mutant(SharedBudget, "_tenant", "S17", first_seed=profiles.BUDGETED + 37)
def _all_values_wait_in_one_queue(original: Any) -> Any:
    return lambda self, _value: original(self, None)


@mutant(SharedBudget, "gather", "L1", "L2", "structure", first_seed=profiles.BUDGETED)
def _what_is_ready_is_not_gathered(original: Any) -> Any:
    def gather(self: SharedBudget, handler: Any) -> None:
        if self.in_flight == 0:
            original(self, handler)

    return gather
