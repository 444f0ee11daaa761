"""What handlers really did, in a file outside the library: the oracle of the process tests.

Every line is one `write` on a descriptor opened with O_APPEND, so lines of several processes do not
mix and those of a killed process are all there. Times are CLOCK_MONOTONIC, one clock for all
processes of a machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["S", "E", "F"]  # started, ended well, failed or cancelled

CHILD = "PERKEY_CHAOS_CHILD"  # the number of a child, from 1


class Entry(NamedTuple):
    """One line: a handler call began or ended."""

    kind: Kind
    at: float
    #: which process, as `identity` says it
    pid: int
    #: the assignment of this partition to this process; -1 when it holds none
    epoch: int
    partition: int
    offset: int
    key: str

    @property
    def record(self) -> tuple[int, int]:
        """Which record it is about."""
        return self.partition, self.offset

    @property
    def lane(self) -> tuple[int, str]:
        """What is handled one at a time; a null key orders with nothing."""
        return self.partition, self.key or f"@{self.offset}"

    def line(self) -> str:
        """As it stands in the file."""
        fields = (self.kind, repr(self.at), self.pid, self.epoch, self.partition, self.offset)
        return " ".join(map(str, fields)) + f" {self.key}\n"


def parse(line: str) -> Entry:
    """The entry of one line."""
    kind, at, pid, epoch, partition, offset, key = line.rstrip("\n").split(" ")
    assert kind in ("S", "E", "F"), line
    return Entry(kind, float(at), int(pid), int(epoch), int(partition), int(offset), key)


def identity(pid: int, child: int) -> int:
    """One number for a process of a scenario: pids come again when a storm starts thousands."""
    return child * 10_000_000 + pid


class Writer:
    """The end that the app under test has."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._pid = identity(os.getpid(), int(os.environ.get(CHILD, "0")))

    def write(self, kind: Kind, epoch: int, partition: int, offset: int, key: str) -> None:
        """One line, in the file when this returns."""
        entry = Entry(kind, time.monotonic(), self._pid, epoch, partition, offset, key)
        os.write(self._file, entry.line().encode())


@dataclass
class Tail:
    """Reads a growing log without reading anything twice."""

    path: Path
    _at: int = 0
    _rest: str = ""

    def new(self) -> Iterator[Entry]:
        """Entries since the last call."""
        if not self.path.exists():
            return
        with self.path.open() as file:
            file.seek(self._at)
            text = self._rest + file.read()
            self._at = file.tell()
        *lines, self._rest = text.split("\n")
        yield from map(parse, lines)
