"""exactly_once: transactions that are aborted again and again, and nobody says because of whom.

A broker may refuse to add a partition, to take the offsets or to end the transaction, and name no
message. What is in it is then sent in halves, as after a time-out, until the half without the
culprit gets through, and in the end the culprit is in a transaction by itself (see `Suspects`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core import states
from weft.core.work import Work

WHOLE_TRIES = 2  # so often in a row it is tried as it is: most of what aborts one passes


class Halving:
    """How many outputs go into one transaction: all, but for a while after such aborts."""

    def __init__(self) -> None:
        #: so many outputs at most, all of one batch counted once; None for all
        self.most: int | None = None
        #: records whose outputs fell with such a transaction and are not through, and their outputs
        self._fell: dict[int, tuple[Work, Any]] = {}
        self._aborts = 0
        self._left = 0

    def begin(self) -> None:
        """Another transaction is being put together."""
        self._left = self.most or 0

    def first(self, claims: list[Work]) -> list[Work]:
        """Of these as many as may go; what has no outputs goes along."""
        if self.most is None or not claims:
            return claims
        if self._left <= 0:
            return []
        outputs = 0
        for end, work in enumerate(claims):
            mate = end > 0 and work.outputs is claims[end - 1].outputs
            if work.outputs is None or mate:
                continue
            if outputs == self._left:
                self._left = 0
                return claims[:end]
            outputs += 1
        self._left -= max(1, outputs)  # a partition's offset alone may be what is refused
        return claims

    def ended(self, sent: Sequence[Work], *, committed: bool, unnamed: bool) -> bool:
        """The transaction is over; True where it was aborted for the one output that was in it.

        `unnamed`: it was aborted for what is in it, and nobody knows which.
        """
        if committed and self._aborts:
            self._through(sent)
        elif unnamed and not committed:
            self._fell |= {id(work): (work, work.outputs) for work in sent}
            self._aborts += 1
            if self._aborts >= WHOLE_TRIES:
                return self._halve(len({id(work.outputs) for work in sent}))
        return False

    def _through(self, sent: Sequence[Work]) -> None:
        """More again where some that fell are through; others say nothing of them."""
        before = len(self._fell)
        for work in sent:
            self._fell.pop(id(work), None)
        through = len(self._fell) < before
        self._forget()
        if not self._fell:
            self.most, self._aborts = None, 0
        elif through and self.most is not None:
            self.most *= 2

    def _forget(self) -> None:
        """Those that went another way: their partition did, most likely."""
        self._fell = {
            one: (work, outputs)
            for one, (work, outputs) in self._fell.items()
            if work.state == states.PENDING and work.outputs is outputs
        }

    def set_aside(self, works: Sequence[Work]) -> None:
        """These go alone from now on."""
        for work in works:
            self._fell.pop(id(work), None)

    def _halve(self, outputs: int) -> bool:
        single = self.most == 1 and outputs == 1
        self.most = max(1, outputs // 2)
        return single
