"""Mutants of the pressure valve of `Park(export=...)`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from perkey.core import effects as fx
from perkey.core import states, valve
from perkey.core.endings import Endings
from perkey.core.partition import Partition
from perkey.core.valve import Export, Valve
from perkey.core.work import Failure, Work
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Partition, "taken_without", "S16", first_seed=profiles.PARKED)
def _exports_below_the_share(original: Any) -> Any:
    return lambda self, claimed: 2 * original(self, claimed)


@mutant(Partition, "taken_without", "S16", first_seed=profiles.PARKED + 43)
def _exports_more_than_it_must(original: Any) -> Any:
    def taken(self: Partition, _claimed: Collection[int]) -> float:
        done = {work.offset for work in self.commit.claims}
        return float(original(self, done))

    return taken


@mutant(valve, "_lane", "S16", "S3", first_seed=profiles.PARKED)
def _exports_the_head_alone(original: Any) -> Any:
    def lane(partition: Partition, head: Work) -> Any:
        found = original(partition, head)
        return found and (found[0], found[1][:1])

    return lane


@mutant(Export, "accept", "S1", "S3", "S12", "S16", "structure", first_seed=profiles.PARKED + 122)
def _what_comes_back_is_handled(original: Any) -> Any:
    return lambda _self, _work: False


@mutant(Valve, "_expect_next", "S12", "S16", "structure", first_seed=profiles.PARKED)
def _the_next_one_is_not_parked(original: Any) -> Any:
    return lambda _self, _partition, _export: None


@mutant(Valve, "run", "L1", first_seed=profiles.PARKED + 42)
def _never_opens(original: Any) -> Any:
    def run(self: Valve) -> None:
        self._state.overdue.clear()

    return run


@mutant(Endings, "send_letter", "S16", first_seed=profiles.PARKED)
def _each_letter_twice(original: Any) -> Any:
    def send(self: Endings, work: Work, failure: Failure, topic: str) -> None:
        original(self, work, failure, topic)
        if work.state == states.SENDING and failure.error is not None:
            self._state.emit(fx.SendDeadLetter(work, topic, failure.error))

    return send


@mutant(valve, "unpark_with_lane", "structure", first_seed=profiles.PARKED + 190)
def _stays_parked_after_a_refused_letter(original: Any) -> Any:
    def unpark(work: Work) -> None:
        work.partition.lanes.behind.discard(work)

    return unpark
