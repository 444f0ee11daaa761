"""What every delivery decides, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from weft.core.effects import PlanItem, SendDeadLetter
from weft.core.handler import Handler
from weft.core.partition import Partition
from weft.core.work import Work

#: The largest plan whose map has room, and its claims; None where not even none of them fits.
MostClaims = Callable[[], PlanItem | None]


class Delivery(Protocol):
    """One delivery of one engine: when a record starts, what follows its end, what is committed."""

    def start(self, handler: Handler, works: list[Work]) -> None:
        """These were taken, each with a slot of its own: call the handler, or see to it first."""

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """The same for a batch, which has one slot."""

    def given_back(self, work: Work) -> None:
        """It was handed over and never began; it will be queued again."""

    def send(self, work: Work, outputs: Any) -> None:
        """The handler returned outputs."""

    def send_dead_letter(self, work: Work, letter: SendDeadLetter) -> None:
        """Its attempts are used up, and its dead letter stands for it."""

    def returned(self, work: Work, *, report: bool = True) -> None:
        """Handled, and what it had to send is stored, or goes with the commit."""

    def refused(self, work: Work) -> bool:
        """Its call failed, or its outputs cannot be stored; whether it may be handled again."""

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The commit that these records waited for is stored: each takes its next step."""

    def fits(self, partition: Partition, item: PlanItem, most: MostClaims) -> PlanItem | None:
        """The map has no room for all claims: `item` is cut; what is committed instead."""

    def closing(self, partitions: Iterable[Partition]) -> None:
        """Nothing of these that has not begun will begin in this epoch."""
