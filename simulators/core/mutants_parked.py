"""Mutants of parked lanes, of which only offsets are kept."""

from __future__ import annotations

from typing import Any

from perkey.core import states
from perkey.core.endings import Endings
from perkey.core.memory import Returns, Shelves
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.types import Record
from simulators.core import profiles
from simulators.core.mutant import mutant


@mutant(Shelves, "put_away", "structure", first_seed=profiles.PARKED)
def _parked_with_its_bytes(original: Any) -> Any:
    return lambda _self, _work: None


@mutant(Shelves, "put_away", "structure", first_seed=profiles.PARKED)
def _held_with_its_bytes(original: Any) -> Any:
    def put_away(self: Shelves, work: Work) -> None:
        if work.state == states.PARKED:
            original(self, work)

    return put_away


@mutant(Shelves, "is_put_off", "structure", first_seed=profiles.CROWDED)
def _what_comes_of_a_held_lane_is_kept(original: Any) -> Any:
    return lambda _self, _key: False


@mutant(Endings, "turn_comes", "S1", "structure", first_seed=profiles.PARKED)
def _starts_without_its_bytes_when_its_hold_is_over(original: Any) -> Any:
    def turn_comes(self: Endings, work: Work) -> None:
        work.partition.shelves.drop(work)
        original(self, work)

    return turn_comes


@mutant(Shelves, "_charge", "structure", first_seed=profiles.PARKED)
def _offsets_take_no_room(original: Any) -> Any:
    def charge(self: Shelves, count: int) -> None:
        self._partition.offsets.shelved += count

    return charge


@mutant(Shelves, "keep_off", "structure", "S3", first_seed=profiles.PARKED)
def _what_comes_goes_past_the_shelf(original: Any) -> Any:
    return lambda _self, _work: False


@mutant(Shelves, "take_back", "S1", "structure", first_seed=profiles.PARKED)
def _starts_without_its_value(original: Any) -> Any:
    return lambda self, work, record: original(self, work, record._replace(value=None))


@mutant(Partition, "watch", "S3", "S12", "structure", first_seed=profiles.PARKED)
def _what_is_known_is_not_looked_at_when_the_turn_comes(original: Any) -> Any:
    return lambda _self: None


@mutant(Returns, "came", "L1", "L2", "S1", first_seed=profiles.PARKED)
def _what_comes_back_is_dropped(original: Any) -> Any:
    return lambda _self, _partition, _number, _records, _sizes: None


@mutant(Returns, "came", "S1", "S2", "S3", "S5", first_seed=profiles.PARKED)
def _the_last_one_counts_as_gone(original: Any) -> Any:
    def came(
        self: Returns, partition: Any, number: int, records: list[Record], sizes: list[int]
    ) -> None:
        original(self, partition, number, records[:-1], sizes[:-1])

    return came
