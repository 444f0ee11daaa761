"""Broken engines for what commands ask: pauses and settings (S11)."""

from __future__ import annotations

from typing import Any

from perkey.core.engine import Engine
from perkey.core.events import Steering, Tuning
from perkey.core.gates import Gate
from perkey.core.partition import Partition
from perkey.core.scheduling import Desired, Handler, Slots
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Desired, "apply", "S11", first_seed=profiles.STEERED)
def _pause_by_command_forgotten(original: Any) -> Any:
    def apply(self: Desired, partition: Partition) -> None:
        steering, self.steering = self.steering, Steering()
        original(self, partition)
        self.steering = steering

    return apply


@mutant(Gate, "open", "L1", "L2", "L4")
def _gate_never_opens(original: Any) -> Any:
    return lambda _self, _why: None


@mutant(Gate, "close", "S7", "S11", first_seed=profiles.STEERED)
def _gate_never_closes(original: Any) -> Any:
    return lambda _self, _why: None


@mutant(Slots, "resize", "S9", first_seed=profiles.STEERED)
def _set_concurrency_ignored(original: Any) -> Any:
    return lambda _self, _concurrency, _ahead: None


@mutant(Handler, "grant_ahead", "S9", first_seed=profiles.AHEAD)
def _granted_ahead_of_a_command(_original: Any) -> Any:
    def grant_ahead(self: Handler, count: int) -> None:
        self.ahead = count
        self.slots.resize(self.slots.concurrency, count)

    return grant_ahead


@mutant(Handler, "tune", "L1", first_seed=profiles.STEERED)
def _set_time_out_ignored(original: Any) -> Any:
    def tune(self: Handler, tuning: Tuning) -> None:
        original(self, tuning)
        self.timeout_s = self.spec.timeout_s

    return tune


@mutant(Engine, "steer", "S1", "L1", "L2", "L4", first_seed=profiles.STEERED)
def _ended_command_lasts(original: Any) -> Any:
    def steer(self: Engine, now: float, steering: Steering) -> None:
        if steering != Steering():
            original(self, now, steering)

    return steer
