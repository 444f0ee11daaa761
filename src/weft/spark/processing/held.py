"""The DataFrame's other columns, on their way from a task's input to its rows: `carry="*"`.

They stay Arrow: no Python object is made of them. What a task has let in is kept by partition in
offset order, so the rows of finished records are found by binary search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from weft.core.work import Work

#: A piece of which less than this part is unfinished is made smaller: one slow record must not
#: keep thousands of others.
KEPT_PART_MIN = 0.25

Place = tuple[str, int]
Finished = Iterable[tuple[pa.RecordBatch, Sequence[Work]]]


@dataclass(slots=True)
class _Piece:
    """Rows of one partition in offset order, and which of them are still to leave."""

    offsets: NDArray[np.int64]
    rows: pa.RecordBatch
    waiting: NDArray[np.bool_]

    def taken(self, places: NDArray[np.int64]) -> pa.RecordBatch:
        """These rows; they are waited for no more."""
        self.waiting[places] = False
        return self.rows.take(pa.array(places))

    def shrink(self) -> bool:
        """Forget what has left where that is most of it; False where nothing is left."""
        left = int(np.count_nonzero(self.waiting))
        if left < KEPT_PART_MIN * len(self.offsets):
            kept = np.flatnonzero(self.waiting)
            # A copy: a slice would hold all of what it was cut from.
            self.rows = self.rows.take(pa.array(kept))
            self.offsets, self.waiting = self.offsets[kept], self.waiting[kept]
        return left > 0


class Held:
    """Columns of the records that are in a task."""

    def __init__(self, names: Sequence[str], output: Sequence[str]) -> None:
        """`names`: the columns in the task's input; `output`: what they are called in its rows."""
        self._names, self._output = list(names), list(output)
        self._pieces: dict[Place, list[_Piece]] = {}
        self._first: dict[Place, list[int]] = {}

    def keep(self, place: Place, rows: pa.RecordBatch) -> None:
        """Rows of one partition, behind those that were kept before."""
        offsets = rows.column("offset").to_numpy()
        piece = _Piece(offsets, rows.select(self._names), np.ones(len(offsets), np.bool_))
        self._pieces.setdefault(place, []).append(piece)
        self._first.setdefault(place, []).append(int(offsets[0]))

    def added(self, finished: Finished) -> Iterator[tuple[pa.RecordBatch, Sequence[Work]]]:
        """The rows of finished records with these columns behind their own."""
        for batch, works in finished:
            more = self._columns_of(works)
            fields = [pa.field(n, c.type) for n, c in zip(self._output, more, strict=True)]
            schema = pa.schema([*batch.schema, *fields])
            yield pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema), works

    def _columns_of(self, works: Sequence[Work]) -> list[pa.Array]:
        by_piece: dict[tuple[Place, int], tuple[list[int], list[int]]] = {}
        for row, work in enumerate(works):
            record = work.record
            place = (record.topic, record.partition)
            number = bisect_right(self._first[place], record.offset) - 1
            rows, offsets = by_piece.setdefault((place, number), ([], []))
            rows.append(row)
            offsets.append(record.offset)
        parts, order = [], np.empty(len(works), np.int64)
        at = 0
        for (place, number), (rows, wanted) in by_piece.items():
            piece = self._pieces[place][number]
            parts.append(piece.taken(np.searchsorted(piece.offsets, wanted)))
            order[rows] = np.arange(at, at + len(rows))
            at += len(rows)
        for place in {place for place, _ in by_piece}:
            self._forget(place)
        table = pa.Table.from_batches(parts).combine_chunks().take(pa.array(order))
        return [column.combine_chunks() for column in table.columns]

    def _forget(self, place: Place) -> None:
        pieces = self._pieces[place]
        kept = [piece for piece in pieces if piece.shrink()]
        if len(kept) < len(pieces):
            self._pieces[place] = kept
        self._first[place] = [int(piece.offsets[0]) for piece in self._pieces[place]]
