"""Broken engines for outages: what waits while what a handler calls is away (S15)."""

from __future__ import annotations

from typing import Any

from perkey.core import gates
from perkey.core.endings import Endings
from perkey.core.gates import Outages
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Outages, "most", "S15", first_seed=profiles.AWAY)
def _outage_holds_nothing(original: Any) -> Any:
    return lambda _self, handler: handler.slots.free


@mutant(gates, "_put", "S15", first_seed=profiles.AWAY)
def _outage_closes_no_gate(original: Any) -> Any:
    return lambda _handler, _outage, *, on: None


@mutant(gates, "_put", "L1", first_seed=profiles.AWAY)
def _gate_stays_closed_after_an_outage(original: Any) -> Any:
    def put(handler: Any, outage: Any, *, on: bool) -> None:
        if on:
            original(handler, outage, on=on)

    return put


@mutant(Outages, "put_aside", "S15", first_seed=profiles.AWAY)
def _value_is_not_put_aside(original: Any) -> Any:
    return lambda _self, _work: False


@mutant(Outages, "is_charged", "S12", "S15", "S3", "S1", "L1", first_seed=profiles.AWAY)
def _outage_costs_attempts(original: Any) -> Any:
    return lambda _self, _work: True


@mutant(Outages, "is_spared", "S15", first_seed=profiles.BRAKED)
def _brake_never_holds(original: Any) -> Any:
    return lambda _self, _work, _error: False


@mutant(Outages, "_brake", "S1", "S12", "S15", first_seed=profiles.BRAKED)
def _brake_spares_nothing(original: Any) -> Any:
    def brake(self: Outages, handler: Any, flood: Any, error: Any) -> None:
        original(self, handler, flood, error)
        self.is_spared = lambda _work, _error: False  # type: ignore[method-assign,assignment]  # on purpose

    return brake


@mutant(Outages, "_readmit", "S1", "L1", "L2", "L4", first_seed=profiles.AWAY)
def _end_of_an_outage_forgets_what_waits(original: Any) -> Any:
    return lambda _self, _outage: None


@mutant(Outages, "_take_over", "L1", "L2", "S15", "S12", first_seed=profiles.AWAY)
def _outage_lasts_for_ever(original: Any) -> Any:
    return lambda _self, _handler, _outage: None


@mutant(Endings, "_waits", "S3", "S12", first_seed=profiles.AWAY)
def _postponing_costs_an_attempt(original: Any) -> Any:
    def waits(self: Endings, work: Any, failed: Any, *, behind: bool = False) -> None:
        if failed.not_now:
            self._attempt_failed(work, failed.error)
        original(self, work, failed, behind=behind)

    return waits


@mutant(Endings, "_waits", "S3", first_seed=profiles.AWAY)
def _postponing_waits_for_nothing(original: Any) -> Any:
    def waits(self: Endings, work: Any, failed: Any, *, behind: bool = False) -> None:
        original(self, work, failed._replace(delay_s=0.0), behind=behind)

    return waits
