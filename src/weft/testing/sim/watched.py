"""Records that check every change of their state against the table, and remember which happened.

The hot paths of the core set a state without asking. Here the attribute asks, so that the table
stays the law without costing anything in production.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from weft.core import intake
from weft.core.states import RECORD_NAMES, RECORD_TABLE, InternalError
from weft.core.work import Work

_slot: Any = Work.__dict__["state"]


class WatchedWork(Work):
    """A record whose state cannot change but by the table."""

    __slots__ = ()
    seen: ClassVar[set[tuple[int, int]]] = set()

    def _get(self) -> int:
        state: int = _slot.__get__(self)
        return state

    def _set(self, state: int) -> None:
        try:
            before = _slot.__get__(self)
        except AttributeError:  # it is being made
            before = state
        if before != state or (before, state) in RECORD_TABLE:
            if (before, state) not in RECORD_TABLE:
                names = f"{RECORD_NAMES[before]} to {RECORD_NAMES[state]}"
                raise InternalError(f"{self.record!r} went from {names}")
            self.seen.add((before, state))
        _slot.__set__(self, state)

    state = property(_get, _set)


@contextmanager
def watched() -> Iterator[set[tuple[int, int]]]:
    """Records made inside check themselves; gives the changes seen so far."""
    before = vars(intake)["Work"]
    vars(intake)["Work"] = WatchedWork
    WatchedWork.seen = set()
    try:
        yield WatchedWork.seen
    finally:
        vars(intake)["Work"] = before
