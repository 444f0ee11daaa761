"""Mutants of what is handled again by command."""

from __future__ import annotations

from typing import Any

from perkey.codec.maps import Carrier
from perkey.core import commands, endings
from perkey.core.commands import redo_handled
from perkey.core.delivery import ExactlyOnce
from perkey.core.lanes import Lanes
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Lanes, "put_behind", "S14", "S3", "structure", first_seed=profiles.REDONE)
def _beside_the_call_that_runs(original: Any) -> Any:
    return lambda self, _before, work: self.ready.appendleft(work)


@mutant(Lanes, "put_first", "S14", "structure", "L1", first_seed=profiles.REDONE)
def _beside_what_is_queued(original: Any) -> Any:
    return lambda self, work, _head: original(self, work, None)


@mutant(commands, "_answer_redo", "S14", first_seed=profiles.REDONE)
def _answered_twice(original: Any) -> Any:
    def answer(state: Any, *what: Any) -> None:
        original(state, *what)
        original(state, *what)

    return answer


@mutant(endings, "redo_failed", "S14", first_seed=profiles.REDONE)
def _a_failure_told_as_success(original: Any) -> Any:
    return lambda state, work, _error: redo_handled(state, work)


@mutant(commands, "last_of_call", "S14", first_seed=profiles.REDONE + 59)
def _between_two_of_a_batch(original: Any) -> Any:
    return lambda work: work


@mutant(Carrier, "mark", "S8", first_seed=profiles.REDONE + 628)
def _its_commit_looks_like_the_one_before(original: Any) -> Any:
    return lambda _self, _about: True


@mutant(ExactlyOnce, "send", "S14", first_seed=profiles.REDONE + 1)
def _answered_before_its_transaction(original: Any) -> Any:
    def send(self: ExactlyOnce, work: Any, outputs: Any) -> None:
        if work in work.partition.redone:
            redo_handled(self._state, work)
        else:
            original(self, work, outputs)

    return send


@mutant(ExactlyOnce, "stored", "S14", "S4", "structure", first_seed=profiles.REDONE + 1)
def _never_answered(original: Any) -> Any:
    def stored(self: ExactlyOnce, partition: Any, claims: list[Any]) -> None:
        original(self, partition, [work for work in claims if work not in partition.redone])

    return stored
