"""Mutants of what is handled again by command."""

from __future__ import annotations

from typing import Any

from simulators.core import profiles
from simulators.core.mutant import mutant
from weft.core import again
from weft.core.lanes import Lanes


@mutant(Lanes, "put_behind", "S14", "S3", "structure", first_seed=profiles.REDONE)
def _beside_the_call_that_runs(original: Any) -> Any:
    return lambda self, _before, work: self.ready.appendleft(work)


@mutant(Lanes, "put_first", "S14", "structure", "L1", first_seed=profiles.REDONE)
def _beside_what_is_queued(original: Any) -> Any:
    return lambda self, work, _head: original(self, work, None)


@mutant(again, "_answer", "S14", first_seed=profiles.REDONE)
def _answered_twice(original: Any) -> Any:
    def answer(state: Any, *what: Any) -> None:
        original(state, *what)
        original(state, *what)

    return answer


@mutant(again, "failed", "S14", first_seed=profiles.REDONE)
def _a_failure_told_as_success(original: Any) -> Any:
    return lambda state, work, _error: again.handled(state, work)


@mutant(again, "last_of_call", "S14", first_seed=profiles.REDONE + 59)
def _between_two_of_a_batch(original: Any) -> Any:
    return lambda work: work
