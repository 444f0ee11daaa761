"""Rows of a stream that were not finished by `deadline_s`: they wait for the next micro-batch.

    FOLDER/QUERY/00003/00000000000000000041.parquet    what task 3 of batch 41 left over

A task decides once which rows it leaves over, and the decision is a file before the task ends: the
next batch starts with its rows. Spark may repeat a batch whose rows a sink already has (its commit
was interrupted), and a sink that knows the batch drops the repeated rows. So an attempt that finds
a decision follows it: it finishes all other rows, however long they take, and leaves over the same.
Of two concurrent attempts the first file counts, and the other attempt fails.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perkey.errors import ConfigError, FatalError
from perkey.spark.processing.intake import PLACE

ATTEMPTS = "__perkey_attempts"
#: as many batches as Spark keeps to go back to
BATCHES_KEPT = 100

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class TaskOfBatch:
    """One micro-batch of one query, and one part of its lanes."""

    query: str
    batch: int
    task: int


def shared_folder(uri: str) -> Path:
    """The folder; ConfigError for an object store, where two attempts could create one file."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise ConfigError(
            f"process: deadline_s: progress={uri!r}: rows wait in a shared folder, not in an object"
            " store: give a path that all executors reach"
        )
    return Path(unquote(parts.path) if parts.scheme else uri).absolute()


class Leftovers:
    """The rows that one task of a micro-batch takes over, and those that it leaves over."""

    def __init__(self, uri: str, where: TaskOfBatch) -> None:
        self._folder = shared_folder(uri) / where.query / f"{where.task:05}"
        self._name = f"{where.batch:020}.parquet"
        earlier = sorted(path for path in self._folder.glob("*.parquet") if path.name < self._name)
        self._old = earlier[:-BATCHES_KEPT]
        self._before = _read(earlier[-1]) if earlier else None
        #: the earlier decision of this batch, None if there is none
        self.decided = _keys(_read(self._folder / self._name))
        #: calls that failed in earlier batches
        self.attempts: dict[Key, int] = {}

    def with_earlier(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, preceded by earlier leftovers; without those that this batch leaves over."""
        before = self._before
        if before is not None and before.num_rows:
            known = _keys(before) or {}
            self.attempts = {key: attempts for key, attempts in known.items() if attempts}
            rows = before.drop_columns([ATTEMPTS])
            first = next(batches, None)
            if first is not None:
                try:
                    rows = rows.select(first.schema.names).cast(first.schema)
                except (KeyError, ValueError, pa.ArrowInvalid) as error:
                    raise ConfigError(
                        f"process: rows that wait from the batch before have other columns: {error}"
                        ": go back to the columns of then until none wait"
                    ) from None
                batches = chain([first], batches)
            batches = chain(rows.combine_chunks().to_batches(), batches)
        for batch in batches:
            kept = batch
            if self.decided:
                kept = batch.filter(pc.invert(_among(batch, self.decided)))
            if kept.num_rows:
                yield kept

    def not_fed(self, rows: pa.RecordBatch) -> dict[Key, int]:
        """The keys of rows that were not fed to a handler in this batch."""
        return {key: self.attempts.get(key, 0) for key in _keys_of(rows)}

    def decide(self, rows: pa.Table | None, unfinished: dict[Key, int]) -> None:
        """Leave these keys of the rows over; raises FatalError if others were decided before."""
        if rows is None:  # no rows, so no leftovers
            rows = pa.table({name: [] for name in PLACE})
        left = rows.filter(_among(rows, unfinished)) if unfinished else rows.slice(0, 0)
        attempts = [unfinished[key] for key in (_keys_of(left) if left.num_rows else ())]
        left = left.append_column(ATTEMPTS, pa.array(attempts, pa.int32()))
        data = io.BytesIO()
        pq.write_table(left, data, compression="zstd")
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f"{uuid.uuid4().hex}.part"
        with part.open("wb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, self._folder / self._name)
        except FileExistsError:
            raise FatalError(
                "process: another attempt of this task has decided what waits for the next batch:"
                " Spark tries this one again"
            ) from None
        finally:
            part.unlink()
        for path in self._old:
            path.unlink(missing_ok=True)


def _read(path: Path) -> pa.Table | None:
    try:
        return pq.read_table(io.BytesIO(path.read_bytes()))
    except FileNotFoundError:
        return None


def _keys(table: pa.Table | None) -> dict[Key, int] | None:
    if table is None:
        return None
    return dict(zip(_keys_of(table), table.column(ATTEMPTS).to_pylist(), strict=True))


def _keys_of(rows: pa.Table | pa.RecordBatch) -> list[Key]:
    columns = (rows.column(name).to_pylist() for name in PLACE)
    return list(zip(*columns, strict=True))


def _among(rows: pa.Table | pa.RecordBatch, keys: dict[Key, int]) -> pa.Array:
    """For each row whether it is one of these; few are, so their offsets are compared first."""
    offsets = pa.array([offset for _, _, offset in keys], pa.int64())
    near = pc.is_in(rows.column("offset"), value_set=offsets)
    found = np.array(near.to_numpy(zero_copy_only=False), np.bool_)
    places = np.flatnonzero(found)
    some = rows.select(PLACE).take(pa.array(places))
    found[places] = [key in keys for key in _keys_of(some)]
    return pa.array(found)
