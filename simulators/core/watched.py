"""Records, epochs and commits that check every change of their state against its table.

The hot paths of the core set a state without asking. Here the attribute asks, so that the tables
stay the law without costing anything in production; and which changes happened is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from perkey.core import engine_state, offsets
from perkey.core.commits import CommitState
from perkey.core.partition import Partition
from perkey.core.states import (
    COMMIT_NAMES,
    COMMIT_TABLE,
    EPOCH_NAMES,
    EPOCH_TABLE,
    RECORD_NAMES,
    RECORD_TABLE,
    InternalError,
)
from perkey.core.work import Work


class Edge(NamedTuple):
    """One change of state, of one kind of thing."""

    what: str
    before: int
    after: int

    def __str__(self) -> str:
        names, table = TABLES[self.what]
        why = table.get((self.before, self.after), "not in the table")
        return f"{self.what}: {names[self.before]} to {names[self.after]}: {why}"


Table = Mapping[tuple[int, int], str]
TABLES: dict[str, tuple[tuple[str, ...], Table]] = {
    "record": (RECORD_NAMES, RECORD_TABLE),
    "epoch": (EPOCH_NAMES, EPOCH_TABLE),
    "commit": (COMMIT_NAMES, COMMIT_TABLE),
}
#: Where each is made, by which name, and what it is.
_MADE: tuple[tuple[Any, str, type[Any], str], ...] = (
    (offsets, "Work", Work, "record"),
    (engine_state, "Partition", Partition, "epoch"),
    (engine_state, "CommitState", CommitState, "commit"),
)


def every_edge() -> set[Edge]:
    """All that the tables allow."""
    return {Edge(what, *edge) for what, (_, table) in TABLES.items() for edge in table}


def _watching(owner: type[Any], what: str, seen: set[Edge]) -> type[Any]:
    """A class like this one whose state cannot change but by its table."""
    slot: Any = owner.__dict__["state"]
    names, table = TABLES[what]

    def get(self: Any) -> Any:
        return slot.__get__(self)

    def change(self: Any, state: int) -> None:
        before = getattr(self, "state", state)  # none while it is being made
        if (before, state) in table:
            seen.add(Edge(what, before, state))
        elif before != state:
            raise InternalError(f"{self!r} went from {names[before]} to {names[state]}")
        slot.__set__(self, state)

    members = {"__slots__": (), "state": property(get, change)}
    return type(f"Watched{owner.__name__}", (owner,), members)


@contextmanager
def watched() -> Iterator[set[Edge]]:
    """What is made inside checks itself; gives the changes seen so far."""
    seen: set[Edge] = set()
    for module, name, owner, what in _MADE:
        vars(module)[name] = _watching(owner, what, seen)
    try:
        yield seen
    finally:
        for module, name, owner, _ in _MADE:
            vars(module)[name] = owner
