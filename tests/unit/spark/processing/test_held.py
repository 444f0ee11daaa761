"""Other columns of the DataFrame, beside the rows of their records."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from perkey.spark.processing.task import KEPT_PART_MIN, Held
from perkey.types import Record

NAME = "__perkey_0"


def piece(place, offsets):
    """Rows of one partition; the carried column says where each is from."""
    said = [f"{place}@{offset}" for offset in offsets]
    return pa.RecordBatch.from_pydict({"offset": list(offsets), NAME: said})


def finished(places):
    """One batch of rows in this order, with works as the task has them."""
    records = [Record(t, p, o, 0, None, None, (), 1, None, None) for (t, p), o in places]
    works = [SimpleNamespace(record=record) for record in records]
    return pa.RecordBatch.from_pydict({"offset": [o for _, o in places]}), works


@pytest.mark.parametrize("seed", range(20))
def test_each_row_has_its_own_columns_in_whatever_order_records_finish(seed):
    """Several partitions, pieces with gaps, any order: by a seed."""
    chance = random.Random(seed)
    held, waiting = Held({NAME: "city"}), []
    ends = {("a", 0): 0, ("a", 1): 0, ("b", 0): 0}
    for _ in range(60):
        place = chance.choice(list(ends))
        steps = np.cumsum([chance.randint(1, 3) for _ in range(chance.randint(1, 9))])
        offsets = [int(step) + ends[place] for step in steps]
        ends[place] = offsets[-1]
        held.keep(place, piece(place, offsets))
        waiting += [(place, offset) for offset in offsets]
        chance.shuffle(waiting)
        done, waiting = waiting[:7], waiting[7:]
        ((batch, _),) = held.added([finished(done)])
        assert batch.column("city").to_pylist() == [f"{p}@{o}" for p, o in done], seed
    while waiting:
        done, waiting = waiting[:50], waiting[50:]
        ((batch, _),) = held.added([finished(done)])
        assert batch.column("city").to_pylist() == [f"{p}@{o}" for p, o in done], seed
    assert not any(held._pieces.values()), "nothing is kept of what has left"


def test_one_slow_record_does_not_keep_its_whole_piece():
    """Of a piece that is mostly gone only the rest is kept."""
    held, place = Held({NAME: "city"}), ("t", 0)
    held.keep(place, piece(place, range(100)))
    list(held.added([finished([(place, o) for o in range(99)])]))
    (kept,) = held._pieces[place]
    assert kept.rows.num_rows == 1 < KEPT_PART_MIN * 100
    assert kept.rows.nbytes < 100
