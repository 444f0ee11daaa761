"""What one commit says about a partition, and which claims have room in it.

Snapshot, then commit: frontier, top and holes of a partition are taken together, the map is
encoded from that one snapshot, and frontier and map are committed together. Taking them one
after another is how the Java library lost records (its issue 894).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.codec import encode_fitting
from weft.core import effects as fx
from weft.core import states
from weft.core.batching import Batching
from weft.core.partition import Partition
from weft.core.spec import AT_LEAST_ONCE, AT_MOST_ONCE
from weft.core.state import EngineState
from weft.core.work import Work


class Plans:
    """Builds commit plans, and lets go of what has no room or no future in them."""

    def __init__(self, state: EngineState, batching: Batching) -> None:
        self._state = state
        self._batching = batching

    def plan(
        self, partition: Partition, claims: Sequence[Work] | None = None
    ) -> fx.PlanItem | None:
        """Everything one commit says about a partition, from one snapshot.

        Where the map has no room for all `claims` (by default all there are) it is cut. At least
        once that costs repeats after a crash. A started-mark or an output must never be forgotten
        once it was committed, so there fewer claims go in; None when not even none of them fits.
        """
        claims = partition.claims if claims is None else claims
        item, whole = self._item(partition, claims)
        partition.map_chars = len(item.metadata)
        partition.crowded = not whole and bool(claims)
        if whole:
            return item
        if partition.handler.spec.delivery == AT_LEAST_ONCE:
            self._free_slots(partition, item)
            return item
        best = self._most_claims(partition, claims)
        if partition.handler.spec.delivery == AT_MOST_ONCE:
            self._postpone(partition, set() if best is None else set(map(id, best.claims)))
        return best

    def _item(self, partition: Partition, claims: Sequence[Work]) -> tuple[fx.PlanItem, bool]:
        """The plan with these claims; False where its map is cut."""
        shot = partition.snapshot(claims)
        complete = not shot.not_done and shot.frontier > shot.top and not partition.buffered
        if complete:
            return fx.PlanItem(partition, shot.frontier, "", 0, list(claims)), True
        text, covered = encode_fitting(
            shot.frontier, shot.top, shot.not_done, limit_chars=partition.map_limit
        )
        whole = covered >= shot.top
        if not whole:
            # What the map cannot tell, this commit does not promise: those claims wait.
            claims = [work for work in claims if work.record.offset <= covered]
        beyond = max(0, covered - shot.frontier + 1)
        holes = sum(1 for offset in shot.not_done if offset <= covered)
        return fx.PlanItem(partition, shot.frontier, text, beyond - holes, list(claims)), whole

    def _most_claims(self, partition: Partition, claims: Sequence[Work]) -> fx.PlanItem | None:
        """The plan with as many claims as fit, the lowest offsets first: lanes keep their order."""
        ordered = sorted(claims, key=lambda work: work.record.offset)
        best, fits, too_many = None, 0, len(ordered)
        while fits < too_many:  # more claims do not always take more room; any that fit are right
            middle = (fits + too_many) // 2
            item, whole = self._item(partition, ordered[:middle])
            if whole:
                best, fits = item, middle + 1
            else:
                too_many = middle
        if best is None or (not best.claims and not partition.dirty):
            partition.commit_at = self._state.now + self._state.limits.commit_retry_s
            return None
        return best

    def _postpone(self, partition: Partition, inside: set[int]) -> None:
        """at_most_once: marks without room are not made; those records wait as others far out."""
        left = [work for work in partition.claims if id(work) not in inside]
        partition.claims = [work for work in partition.claims if id(work) in inside]
        if not partition.claims:
            self._state.claiming.pop(partition, None)
        for work in left:
            work.move(states.QUEUED)
        for head in self._let_go(partition, left):
            partition.handler.put_far(head)

    def _let_go(self, partition: Partition, works: list[Work]) -> list[Work]:
        """Give their slots back; which of them are the heads of their lanes."""
        handler = partition.handler
        heads = [work for work in works if partition.predecessors.pop(work, None) is None]
        if handler.spec.batch is None:
            handler.free += len(works)
        else:
            self._batching.marked(handler, works)
        return heads

    def _free_slots(self, partition: Partition, item: fx.PlanItem) -> None:
        """Commit(each): claims without room keep their lane and give back their slot.

        Else they could hold every slot, and the record whose end makes room would never start.
        """
        inside = set(map(id, item.claims))
        for work in partition.claims:
            if id(work) not in inside and work not in partition.slotless:
                partition.slotless.add(work)
                partition.handler.free += 1

    def withdraw_marks(self, partitions: Iterable[Partition]) -> None:
        """at_most_once: what is marked, or about to be, and has not begun will not begin here.

        A mark that is on the way may be stored nevertheless; the last commit of the epoch, behind
        it on the same connection, takes it back.
        """
        once = [p for p in partitions if p.handler.spec.delivery == AT_MOST_ONCE]
        # All of them first: a batch whose other marks are withdrawn is complete, and starts.
        withdrawn = [(partition, self._withdraw(partition)) for partition in once]
        for partition, waiting in withdrawn:
            if waiting:
                partition.ready.extendleft(reversed(self._let_go(partition, waiting)))
                partition.handler.enlist(partition)

    def _withdraw(self, partition: Partition) -> list[Work]:
        """The records whose marks are taken back, queued again."""
        waiting = [work for work in partition.claims if work.state == states.MARKING]
        for work in self._batching.marked_and_waiting(partition):
            partition.unmark(work)
            partition.in_flight -= 1
            waiting.append(work)
        for work in waiting:
            work.move(states.QUEUED)
        if waiting:
            partition.dirty = True
            partition.claims.clear()
            self._state.claiming.pop(partition, None)
        return waiting
