"""Commit(each=True): a record keeps its slot and its lane until its own commit is stored.

So a kill repeats at most what was in flight. Many records share one request.
"""

from __future__ import annotations

from weft.core import effects as fx
from weft.core import states
from weft.core.delivery import AtLeastOnce, MostClaims, complete
from weft.core.partition import Partition
from weft.core.work import Work


class Each(AtLeastOnce):
    """At least once, but for what follows when a record is handled."""

    def returned(self, work: Work, *, report: bool = True) -> None:
        """It waits for the next commit, which comes at once, and holds a slot meanwhile."""
        work.move(states.COMMITTING)
        self._state.claim(work)
        work.partition.handler.slots.take()

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """Done, and their slots are free."""
        for work in claims:
            partition.record_done(work)
            if not partition.commit.take_slotless(work):
                partition.handler.slots.give()
            complete(self._state, work)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """The cut map; claims without room keep their lane and give back their slot.

        Else they could hold every slot, and the record whose end makes room would never start.
        """
        inside = set(map(id, item.claims))
        for work in partition.commit.claims:
            if id(work) not in inside and partition.commit.give_up_slot(work):
                partition.handler.slots.give()
        return item
