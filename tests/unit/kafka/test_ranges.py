"""The offsets of a time range, as `perkey replay` reads them."""

from __future__ import annotations

from typing import Any

import pytest

from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.range_consumer import ranges_of

HERE = ("t", 0)


class Admin:
    """Answers for a log of 100 records; None: the partition is missing in the answer."""

    def __init__(self, first: int | None, last: int | None, end: int | None = 100) -> None:
        self.by_spec = {1_000: first, 2_000: last, "end": end}

    def offsets(self, _places: Any, spec: Any, **_: Any) -> dict[Any, int]:
        offset = self.by_spec[spec]
        return {} if offset is None else {HERE: offset}


@pytest.mark.parametrize(
    ("first", "last", "ranges"),
    [(10, 20, {HERE: (10, 20)}), (10, -1, {HERE: (10, 100)}), (-1, -1, {}), (10, 10, {})],
)
def test_no_record_as_late_means_the_end_of_the_log(first: int, last: int, ranges: Any) -> None:
    """And a range without records is left out."""
    assert ranges_of(Admin(first, last), "t", 1, 1_000, 2_000) == ranges


def test_records_of_an_open_transaction_are_out_of_range() -> None:
    """A read_committed reader would wait for them."""
    assert ranges_of(Admin(10, 99, end=50), "t", 1, 1_000, 2_000) == {HERE: (10, 50)}
    assert ranges_of(Admin(60, 99, end=50), "t", 1, 1_000, 2_000) == {}


@pytest.mark.parametrize("answers", [(None, 20), (10, None), (10, 20, None)])
def test_a_missing_answer_is_not_taken_for_the_end_of_the_log(answers: Any) -> None:
    """Else the partition would be left out, or handled beyond its range."""
    with pytest.raises(KafkaUnavailable, match=r"t\[0\]"):
        ranges_of(Admin(*answers), "t", 1, 1_000, 2_000)
