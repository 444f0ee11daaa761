"""Many random values from one draw.

A step of the simulator draws once from the seed's generator, whatever the state, and takes all
it needs from here: a change that makes one step need more values leaves the later steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
_MASK = 2**64 - 1


class Dice:
    """A 64-bit linear congruential generator (Knuth's MMIX constants), its upper 53 bits."""

    __slots__ = ("_state",)

    def __init__(self, draw: int) -> None:
        self._state = draw

    def roll(self) -> float:
        """A value in [0, 1)."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return (self._state >> 11) / 9007199254740992.0

    def chance(self, odds: float) -> bool:
        """True with this probability."""
        return self.roll() < odds

    def pick(self, items: Sequence[T]) -> T:
        """One of these."""
        return items[int(self.roll() * len(items))]

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        return int(self.roll() * count)
