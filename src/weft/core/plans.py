"""The content of one commit for a partition, and which claims have room in it.

Snapshot, then commit: frontier, top and holes of a partition are taken together, the map is encoded
from that one snapshot, and frontier and map are committed together. Taking them one after another
is how the Java library lost records (its issue 894).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.codec import Carrier, encode_fitting
from weft.core import effects as fx

if TYPE_CHECKING:
    from weft.core.engine_state import EngineState
    from weft.core.partition import Partition
    from weft.core.work import Work


class Plans:
    """Builds commit plans."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def plan(
        self, partition: Partition, claims: Sequence[Work] | None = None
    ) -> fx.PlanItem | None:
        """The whole content of one commit for a partition, from one snapshot.

        If the map has no room for all `claims` (by default all there are) the delivery decides what
        is committed instead; None if nothing is.
        """
        claims = partition.commit.claims if claims is None else claims
        item, uncut = self._item(partition, claims)
        if not uncut:
            delivery = self._state.deliveries[partition.handler.index]
            cut = delivery.fits(partition, item, lambda: self._most_claims(partition, claims))
            if cut is None:
                return None
            item = cut
        return self._with_rider(item) if partition.memory or partition.redone else item

    def _with_rider(self, item: fx.PlanItem) -> fx.PlanItem:
        """Add behind the map what is remembered of single records, as far as there is room.

        Before it a mark, if all claims are of records that are handled again: offsets and map are
        the same as in the commit before, but the outcome of the transaction must be visible.
        Without room for the mark they wait, except those of a batch, whose outputs others share.
        """
        partition, state = item.partition, self._state
        memory, commit = partition.memory, partition.commit
        claimed, chars = {work.offset for work in item.claims}, len(item.metadata)
        away = partition.offsets.incomplete if partition.offsets.shelved else ()
        limit_chars = 0 if memory.barred else commit.map_limit
        carrier = Carrier(item.frontier, item.metadata, limit_chars)
        redone = [
            partition.redone[one].command.id for one in item.claims if one in partition.redone
        ]
        only = len(redone) == len(item.claims) > 0
        if only and not carrier.mark(" ".join(redone)):
            item = item._replace(claims=[work for work in item.claims if work.call is not None])
        entries = memory.entries(
            partition.position, claimed, state.now, state.wall_s, away, carrier.room_bytes
        )
        text, count = carrier.carry(entries)
        left_out = len(entries) - count + memory.unseen
        if left_out and not memory.shed:
            state.count("riders_cut")
            state.note(
                "warning", "no room in the commit for the attempts of all failing records",
                topic=partition.topic, partition=partition.number, remembered=count,
                left_out=left_out,
                next="the latest ones start over after a restart: handle or release earlier ones",
            )  # fmt: skip
        memory.shed = left_out
        return item._replace(metadata=text, rider_chars=max(0, len(text) - chars))

    def _item(self, partition: Partition, claims: Sequence[Work]) -> tuple[fx.PlanItem, bool]:
        """The plan with these claims; False if its map is cut."""
        shot = partition.snapshot(claims)
        if not shot.not_done and not partition.buffered:
            return fx.PlanItem(partition, shot.frontier, "", 0, list(claims)), True
        text, covered = encode_fitting(
            shot.frontier, shot.top, shot.not_done, limit_chars=partition.commit.map_limit
        )
        uncut = covered >= shot.top
        if not uncut:
            # What the map cannot hold is not in this commit: those claims wait.
            claims = [work for work in claims if work.record.offset <= covered]
        beyond = covered - shot.frontier + 1 - bisect_right(shot.not_done, covered)
        return fx.PlanItem(partition, shot.frontier, text, beyond, list(claims)), uncut

    def _most_claims(self, partition: Partition, claims: Sequence[Work]) -> fx.PlanItem | None:
        """The plan with as many claims as fit, the lowest offsets first: lanes keep their order."""
        ordered = sorted(claims, key=lambda work: work.record.offset)
        best, fits, too_many = None, 0, len(ordered)
        while fits < too_many:  # more claims do not always take more room; any that fit are right
            middle = (fits + too_many) // 2
            item, uncut = self._item(partition, ordered[:middle])
            if uncut:
                best, fits = item, middle + 1
            else:
                too_many = middle
        if best is None or (not best.claims and not partition.commit.dirty):
            partition.commit.at = self._state.now + self._state.limits.commit_retry_s
            return None
        return best
