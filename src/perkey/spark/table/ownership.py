"""Which members may add rows, and which rows the table has already. Pure: no I/O.

A member that gets a partition claims it first and receives the partition's next epoch. Rows carry
the epoch of their claim: after a newer claim they are refused, so a member that lost a partition
adds nothing. The table's content is known by offset, so a repeat is recognised, from any member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perkey.spark.table.progress import Done, Entry, Progress, Source

#: for a member whose group generation is unknown
UNKNOWN_GENERATION = -1


class Claim(NamedTuple):
    """The newest claim on a partition."""

    epoch: int
    #: the group's generation when it was made
    generation: int


@dataclass(frozen=True, slots=True)
class Hand:
    """A member's rows: the place of each, and what is done with them."""

    rows: Sequence[tuple[Source, int]]
    entries: Mapping[Source, Entry]


@dataclass(frozen=True, slots=True)
class Draft:
    """What to add in one transaction of the table, and its content after that."""

    #: for each hand, which of its rows are new
    fresh: Sequence[Sequence[bool]]
    progress: Progress
    #: the purpose of the transaction: what these hands have done
    changed: Mapping[Source, Entry]


class Ownership:
    """One group's access to one table. Not thread-safe."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._claims: dict[Source, Claim] = {}

    def learn(self, progress: Progress) -> None:
        """Set what the table has now."""
        self._progress = progress

    def claim(self, source: Source, generation: int) -> Entry | None:
        """The epoch of a new claim, and what the table has; None: a newer member has claimed it.

        A claim that was in flight during a rebalance is of an older generation.
        """
        known = self._claims.get(source)
        if known is not None and UNKNOWN_GENERATION < generation < known.generation:
            return None
        held = self._progress.get(source) or Entry(0, Done(0, -1))
        epoch = max(held.epoch, known.epoch if known else 0) + 1
        self._claims[source] = Claim(epoch, generation)
        return Entry(epoch, held.done)

    def stale(self, hand: Hand) -> list[Source]:
        """The partitions that another member has claimed since."""
        stale = []
        for source, entry in hand.entries.items():
            newest = (self._claims.get(source), self._progress.get(source))
            if any(one is not None and entry.epoch < one.epoch for one in newest):
                stale.append(source)
        return stale

    def draft(self, hands: Sequence[Hand]) -> Draft:
        """The new rows of these hands. None of them may be stale."""
        progress, fresh, changed = self._progress, [], {}
        for hand in hands:
            held = {source: progress.get(source) for source in {row[0] for row in hand.rows}}
            fresh.append(
                [
                    (entry := held[source]) is None or not entry.done.has(offset)
                    for source, offset in hand.rows
                ]
            )
            progress = progress.with_done(hand.entries)
            changed.update({source: progress.get(source) for source in hand.entries})
        return Draft(fresh, progress, {s: e for s, e in changed.items() if e is not None})
