"""The table's files as a log: numbered, and each carries in its footer what the table has by then.

A file is written under another name, then linked to the next number. That one step makes its rows
visible and their offsets known, and it fails where another member has the number already: then the
footer of that file is read, rows that it has are left out, and the next number is tried. So a row
is there once, whoever believes to own its partition, and whatever was killed between two steps.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from weft.errors import ConfigError
from weft.spark.table.progress import Done, Progress

STAGING = "_staging"
_PROGRESS = b"weft.progress"
_FILE = re.compile(r"part-(\d{12})\.parquet")
#: What a killed member left half written; nobody takes so long for one file.
_LEFT_S = 600.0

Place = tuple[str, int, int]


def _name(sequence: int) -> str:
    return f"part-{sequence:012d}.parquet"


class TableLog:
    """One table, for one group; of one thread."""

    def __init__(self, folder: Path, group: str) -> None:
        self._folder, self._group = folder, group
        self._known: tuple[int, Progress] = (0, Progress())

    def progress(self) -> Progress:
        """What the table has now. Raises OSError where the folder cannot be read."""
        return self._latest()[1]

    def publish(
        self,
        rows: pa.Table,
        places: Sequence[Place],
        ids: Mapping[str, str],
        done: Mapping[tuple[str, int], Done],
    ) -> int:
        """Add these rows, but for those the table has, and know that `done` is done.

        `places` are (topic, partition, offset) of the rows. The number of the file; of the last
        one where nothing was new. Raises OSError where the folder cannot be written.
        """
        while True:
            last, progress = self._latest()
            fresh = self._fresh(progress, rows, places, ids)
            if not fresh.num_rows:
                return last
            progress = progress.with_done(self._group, ids, done)
            if self._put(last + 1, fresh, progress):
                self._known = last + 1, progress
                return last + 1

    # -- inside ------------------------------------------------------------------------------------

    def _fresh(
        self, progress: Progress, rows: pa.Table, places: Sequence[Place], ids: Mapping[str, str]
    ) -> pa.Table:
        """Without what the table has."""
        held = {
            where: progress.done(self._group, where[0], ids.get(where[0], ""), where[1])
            for where in {place[:2] for place in places}
        }
        if not any(held.values()):
            return rows
        mask = []
        for topic, number, offset in places:
            done = held[topic, number]
            mask.append(done is None or not done.has(offset))
        return rows if all(mask) else rows.filter(pa.array(mask, pa.bool_()))

    def _latest(self) -> tuple[int, Progress]:
        last = last_file(self._folder)
        if last != self._known[0]:
            self._known = last, self._read(last) if last else Progress()
        return self._known

    def _read(self, sequence: int) -> Progress:
        path = self._folder / _name(sequence)
        metadata = pq.read_schema(path).metadata or {}
        try:
            return Progress.from_json(metadata[_PROGRESS])
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(
                f"sink: {path} does not say what the table has: was it written anew by another "
                "tool? Keep the newest file as Weft wrote it"
            ) from error

    def _put(self, sequence: int, rows: pa.Table, progress: Progress) -> bool:
        """Write the file with this number; False where there is one."""
        staged = self._folder / STAGING / f"{sequence}-{os.getpid()}-{secrets.token_hex(6)}.parquet"
        staged.parent.mkdir(exist_ok=True)
        metadata = {_PROGRESS: progress.to_json()}
        try:
            with staged.open("wb") as file:
                pq.write_table(rows.replace_schema_metadata(metadata), file)
                file.flush()
                os.fsync(file.fileno())
            return linked(staged, self._folder / _name(sequence))
        finally:
            staged.unlink(missing_ok=True)


def linked(staged: Path, target: Path) -> bool:
    """Give a whole file its name in one step; False where that name is taken."""
    try:
        os.link(staged, target)
    except FileExistsError:
        return False
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name outlives the machine, too
    finally:
        os.close(folder)
    return True


def last_file(folder: Path) -> int:
    """The highest number of a file; 0 where there is none."""
    last = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if found := _FILE.fullmatch(entry.name):
                last = max(last, int(found[1]))
    return last


def newest_of(folder: Path) -> Path | None:
    """The newest Parquet file of a folder, Weft's or not."""
    files = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime)
    return files[-1] if files else None


def sweep(folder: Path) -> None:
    """Remove what members left half written when they were killed, long ago."""
    for path in (folder / STAGING).glob("*.parquet"):
        with suppress(OSError):  # another driver sweeps too
            if time.time() - path.stat().st_mtime > _LEFT_S:
                path.unlink()
