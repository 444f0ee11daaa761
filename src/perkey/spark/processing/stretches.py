"""Finished rows of a task, kept in a folder: a repeated job resumes after them.

    FOLDER/process.json          the job's settings: slots, ordering, the columns of its rows
    FOLDER/00003/….parquet       rows that task 3 has finished

A task has the same rows each time, because `slots` and `ordering` are those of the folder's first
run. A row is done if a file has its topic, partition and offset; a hash of key and value beside it
distinguishes a record from another one at its place.
"""

from __future__ import annotations

import io
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from perkey.errors import ConfigError
from perkey.runtime.logs import traced
from perkey.spark.processing.intake import PLACE, by_place
from perkey.types import TopicPartition

_log = logging.getLogger("perkey.spark")

#: A file is written at this many rows or bytes, or after so long: a kill repeats at most that.
STRETCH_ROWS = 10_000
STRETCH_BYTES = 8 * 2**20
STRETCH_S = 5.0
#: The column that distinguishes records.
HASH = "__perkey_hash"
JOB = "process.json"
VERSION = 1


class Folder:
    """A folder on any file system that Arrow knows."""

    def __init__(self, uri: str) -> None:
        """Raises ConfigError if Arrow does not know this path or URI."""
        self.uri = uri
        is_uri = "://" in uri or uri.startswith("file:/")  # Spark writes file:/a
        try:
            made = fs.FileSystem.from_uri(uri if is_uri else Path(uri).absolute().as_uri())
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            raise ConfigError(
                f"process: progress={uri!r}: {error}: give a folder that all executors reach, as a"
                " path or a URI (file://, s3://, gs://, hdfs://)"
            ) from None
        self._files, self._root = made[0], made[1].rstrip("/")

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""
        try:
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        path = f"{self._root}/{name}"
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        # An object appears when it is closed; a file is written under another name first.
        whole = self._files.type_name in ("s3", "gcs", "abfs")
        written = path if whole else f"{path}.{uuid.uuid4().hex}.part"
        with self._files.open_output_stream(written) as file:
            file.write(data)
        if not whole:
            self._files.move(written, path)

    def names(self, folder: str, end: str) -> list[str]:
        """The files in a folder, in order."""
        found = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        names = [info.base_name for info in self._files.get_file_info(found)]
        return sorted(f"{folder}/{name}" for name in names if name.endswith(end))


def pinned(uri: str, slots: int | None, usual: Callable[[], int], job: Mapping[str, Any]) -> int:
    """The number of slots of the folder's job, on the driver; a new folder is created.

    Raises ConfigError if the folder belongs to another job, or one with another number of slots.
    """
    folder = Folder(uri)
    try:
        found = folder.read(JOB)
        if found is None:
            made = {"version": VERSION, "slots": slots or usual(), **job}
            folder.write(JOB, json.dumps(made, indent=1).encode())
            return int(made["slots"])
        known: dict[str, Any] = dict(json.loads(found))
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"process: progress={uri!r} cannot be used: {error}: give a folder that this process"
            " and all executors can read and write"
        ) from None
    wanted = {"version": VERSION, "slots": slots or known.get("slots"), **job}
    for name, value in wanted.items():
        if known.get(name) != value:
            raise ConfigError(
                f"process: progress={uri!r} belongs to a job with {name}={known.get(name)!r:.300},"
                f" and this one has {value!r:.300}: give the same, or another folder"
            )
    return int(known["slots"])


class Stretches:
    """The rows that one task of a job has finished before, and those that it finishes now."""

    def __init__(self, uri: str, task: int) -> None:
        self._folder, self._task = Folder(uri), f"{task:05}"
        self._names = self._folder.names(self._task, ".parquet")
        #: for each partition, by offset: done rows, their hashes, their file, and whether the input
        #: has them
        self._done: dict[TopicPartition, tuple[Any, Any, Any, Any]] = {}
        self._rows: list[pa.RecordBatch] = []
        self._size, self._since = 0, time.monotonic()

    def load(self) -> Iterator[pa.RecordBatch]:
        """The rows that `fresh` has left out, each once."""
        for number, name in enumerate(self._names):
            for batch in self._read(name):
                wanted = np.zeros(batch.num_rows, np.bool_)
                for place, rows in by_place(batch):
                    done, _, stretches, here = self._done[place]
                    at = np.searchsorted(done, batch.column("offset").to_numpy()[rows])
                    wanted[rows] = here[at] & (stretches[at] == number)
                kept = batch if wanted.all() else batch.filter(pa.array(wanted))
                yield kept.drop_columns([HASH])

    def fresh(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches without rows that are done; ConfigError if a record has changed."""
        # Which records are done; for one in two files the first counts.
        found: dict[TopicPartition, list[tuple[Any, Any, Any]]] = {}
        for number, name in enumerate(self._names):
            for batch in self._read(name, [*PLACE, HASH]):
                offsets, marks = batch.column("offset").to_numpy(), batch.column(HASH).to_numpy()
                for place, rows in by_place(batch):
                    stretch = np.full(len(rows), number)
                    found.setdefault(place, []).append((offsets[rows], marks[rows], stretch))
        for place, parts in found.items():
            offsets, marks, stretches = (np.concatenate(part) for part in zip(*parts, strict=True))
            _, first = np.unique(offsets, return_index=True)
            here = np.zeros(len(first), np.bool_)
            self._done[place] = offsets[first], marks[first], stretches[first], here
        for batch in batches:
            if not self._done:
                yield batch
                continue
            done = self._is_done(batch)
            if not done.any():
                yield batch
            elif not done.all():
                yield batch.filter(pa.array(~done))

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of finished records on their way to Spark, also written to files."""
        for batch in batches:
            self._rows.append(batch)
            self._size += batch.nbytes
            rows = sum(one.num_rows for one in self._rows)
            late = time.monotonic() - self._since >= STRETCH_S
            if rows >= STRETCH_ROWS or self._size >= STRETCH_BYTES or late:
                self.flush()
            yield batch.drop_columns([HASH])
        self.flush()

    def flush(self) -> None:
        """Write the rows that are not written yet."""
        self._since, self._size, rows = time.monotonic(), 0, self._rows
        self._rows = []
        if not rows:
            return
        data = io.BytesIO()
        pq.write_table(pa.Table.from_batches(rows), data, compression="zstd")
        # In the order of their creation: for a record in two files, the first one counts.
        name = f"{self._task}/{time.time_ns():020}-{uuid.uuid4().hex[:8]}.parquet"
        self._folder.write(name, data.getvalue())

    def _read(self, name: str, columns: list[str] | None = None) -> list[pa.RecordBatch]:
        data = self._folder.read(name)
        try:
            table = pq.read_table(io.BytesIO(data or b""), columns=columns)
        except pa.ArrowInvalid:  # a machine that lost power may leave an empty file
            fields = {"file": name, "next": "its rows are done again"}
            traced(_log, "warning", "stretch unreadable", fields)
            return []
        return list(table.combine_chunks().to_batches())

    def _is_done(self, batch: pa.RecordBatch) -> Any:
        """For each row whether it is done; ConfigError if a record has changed."""
        found = np.zeros(batch.num_rows, np.bool_)
        offsets, marks = batch.column("offset").to_numpy(), batch.column(HASH).to_numpy()
        for place, rows in by_place(batch):
            if place not in self._done:
                continue
            done, known, _, here = self._done[place]
            at = np.minimum(np.searchsorted(done, offsets[rows]), len(done) - 1)
            hits = done[at] == offsets[rows]
            other = hits & (known[at] != marks[rows])
            if other.any():
                topic, number = place
                raise ConfigError(
                    f"process: progress={self._folder.uri!r} has the result of another record for"
                    f" {topic}[{number}]@{offsets[rows][other][0]}: the input has changed since:"
                    " give the same rows the same offsets, or another folder"
                )
            found[rows] = hits
            here[at[hits]] = True
        return found
