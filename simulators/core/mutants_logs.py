"""Engines and members that misread logs, late responses, sizes and maps."""

from __future__ import annotations

from typing import Any

from perkey.core import states
from perkey.core.endings import Endings
from perkey.core.engine import Engine
from perkey.core.engine_state import Epochs
from perkey.core.offsets import Reach
from perkey.core.partition import Partition
from perkey.core.scheduling import Flow
from simulators.core import member, profiles
from simulators.core.mutant import mutant


@mutant(Engine, "reached", "S2", first_seed=profiles.LOGS)
def _position_at_the_high_watermark(original: Any) -> Any:
    def reached(self: Engine, now: float, ends: Any) -> None:
        original(self, now, [(partition, partition.log_end) for partition, _ in ends])

    return reached


@mutant(Engine, "reached", "S2", "structure", first_seed=profiles.LOGS)
def _out_of_range_forgets_what_was_fetched(original: Any) -> Any:
    def reached(self: Engine, now: float, ends: Any) -> None:
        for partition, position in ends:
            if position > partition.offsets.position:
                waiting = [work for work in partition.lanes.ready if work.next is None]
                for work in waiting:
                    partition.lanes.ready.remove(work)
                    partition.record_done(work)
        original(self, now, ends)

    return reached


@mutant(member.Member, "log_end", "S1", first_seed=profiles.LOGS)
def _past_the_last_stable_offset_counts_as_lost(original: Any) -> Any:
    return lambda _self, log: log.stable_end()


@mutant(member.Member, "begin_again", "L1", "L2", "S1", "S5", first_seed=profiles.LOGS + 94)
def _recreated_topic_continues(original: Any) -> Any:
    return lambda _self: False


@mutant(Epochs, "opened", "S2", "S3", "S7", "structure", first_seed=profiles.LOGS)
def _former_epoch_stays_open(original: Any) -> Any:
    def opened(self: Epochs, assignments: Any) -> Any:
        former = {}
        for new in assignments:
            where = (new.topic, new.partition)
            if where in self._state.partitions:
                former[new.topic, -1 - new.partition] = self._state.partitions.pop(where)
        self._state.partitions.update(former)
        return original(self, assignments)

    return opened


@mutant(Epochs, "opened", "L1", "L2", "S5", first_seed=profiles.LOGS)
def _assigned_means_these_alone(original: Any) -> Any:
    def opened(self: Epochs, assignments: Any) -> Any:
        wanted = {(new.topic, new.partition) for new in assignments}
        others = [p for where, p in self._state.partitions.items() if where not in wanted]
        if assignments:
            self.closed(others, lost=False)
        return original(self, assignments)

    return opened


@mutant(Reach, "take_room", "S4", first_seed=profiles.HOLES)
def _holes_below_the_top_start_without_a_count(original: Any) -> Any:
    def take_room(self: Reach, offset: int) -> bool:
        return offset < self._offsets.top or bool(original(self, offset))

    return take_room


@mutant(Endings, "outputs_answered", "S2", "S3", "S4", first_seed=profiles.LATE + 349)
def _late_acknowledgement_counts(original: Any) -> Any:
    def outputs_answered(self: Endings, record: Any, sent: Any, error: Any) -> None:
        original(self, record, sent, error)
        present = self._state.partitions.get((record.record.topic, record.record.partition))
        if present is None or record.state != states.SUPERSEDED:
            return
        twin = present.offsets.incomplete.get(record.record.offset)
        if twin is not None and twin in present.lanes.ready:
            present.lanes.ready.remove(twin)
            present.record_done(twin)

    return outputs_answered


@mutant(Flow, "_healthy", "S9", first_seed=profiles.LATE)
def _bytes_in_no_budget(original: Any) -> Any:
    def healthy(self: Flow, partition: Partition) -> float:
        records = partition.buffered - partition.lanes.blocked_records
        return records / self.limits.buffer_records

    return healthy
