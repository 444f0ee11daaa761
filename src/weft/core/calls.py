"""One call of a handler with several records: a batch.

A record that has a slot of its own needs none of this; the hot loops do without.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Call(Generic[W]):
    """The records of a batch call (`W` is Work), and who of them goes before whom."""

    __slots__ = ("first", "left", "order", "works")

    def __init__(self, works: Sequence[W], order: Mapping[W, W]) -> None:
        self.first = works[0]
        #: records that have not ended yet
        self.left = len(works)
        #: a record -> the one before it in its lane in this call, until that is finished with.
        #: Outlives the call: what failed together comes back in its order
        self.order: dict[W, W] = dict(order)
        #: at_most_once: the records while the call waits for their started-marks; else empty
        self.works: list[W] = []

    def wait_for_marks(self, works: Sequence[W]) -> None:
        """It begins once the started-marks of all of them are stored."""
        self.works = list(works)

    def keep(self, works: Sequence[W]) -> None:
        """The marks of the others were withdrawn."""
        self.works = list(works)
        if works:
            self.first, self.left = works[0], len(works)

    def begin(self) -> list[W]:
        """Nothing is waited for any more; returns the records."""
        works, self.works = self.works, []
        return works

    def end_one(self) -> bool:
        """One of its records has ended; True when it was the last."""
        self.left -= 1
        return self.left <= 0

    def unfollow(self, work: W) -> bool:
        """It goes its own way from here; True when it was behind another one."""
        return self.order.pop(work, None) is not None
