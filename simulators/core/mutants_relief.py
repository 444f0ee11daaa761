"""Mutants of `Park(dead_letter=)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.delivery import AtLeastOnce
from perkey.core.endings import Endings
from perkey.core.offsets import Offsets
from perkey.core.partition import Partition
from perkey.core.retries import Relief
from perkey.core.scheduling import Handler
from perkey.core.work import Failure, Work
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Relief, "_give_up", "S16", first_seed=profiles.PARKED)
def _gives_up_below_the_share(original: Any) -> Any:
    return lambda self, partition, share: original(self, partition, 2 * share)


@mutant(Relief, "_give_up", "S16", first_seed=profiles.PARKED)
def _gives_up_the_youngest(original: Any) -> Any:
    def give_up(self: Relief, partition: Partition, share: float) -> None:
        works = Offsets.works

        def backwards(offsets: Offsets) -> Iterator[Work]:
            return iter(list(works(offsets))[::-1])

        with mock.patch.object(Offsets, "works", backwards):
            original(self, partition, share)

    return give_up


@mutant(Relief, "look", "S16", first_seed=profiles.PARKED)
def _gives_up_several_at_a_time(original: Any) -> Any:
    def look(self: Relief, handler: Handler) -> None:
        self._going.clear()
        original(self, handler)

    return look


@mutant(Relief, "look", "L1", first_seed=profiles.PARKED)
def _never_gives_up(original: Any) -> Any:
    return lambda _self, _handler: None


@mutant(Endings, "relieve", "S12", "S16", "L1", "structure", first_seed=profiles.PARKED)
def _is_handled_again(original: Any) -> Any:
    def relieve(self: Endings, work: Work, failure: Failure, why: str) -> None:
        self.release(work, why)

    return relieve


@mutant(Endings, "_no_dead_letter", "S16", first_seed=profiles.PARKED + 615)
def _a_refused_letter_goes_again_soon(original: Any) -> Any:
    def refused(self: Endings, work: Work, failure: Failure, error: Any) -> None:
        original(self, work, failure, error)
        failure.own_due = 0.0

    return refused


@mutant(Endings, "send_letter", "S16", first_seed=profiles.PARKED)
def _each_letter_twice(original: Any) -> Any:
    def send(self: Endings, work: Work, failure: Failure, topic: str) -> None:
        original(self, work, failure, topic)
        if work.state == states.SENDING and failure.error is not None:
            self._state.emit(fx.SendDeadLetter(work, topic, failure.error))

    return send


@mutant(AtLeastOnce, "send_dead_letter", "S16", "S3", first_seed=profiles.PARKED)
def _the_lane_goes_on_before_the_letter_is_stored(original: Any) -> Any:
    def send(self: AtLeastOnce, work: Work, letter: fx.SendDeadLetter) -> None:
        original(self, work, letter)
        work.partition.release(work)

    return send
