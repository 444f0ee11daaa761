"""Deliberately broken engines: the checks must detect every one of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from perkey.account import account
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.batching import Batching
from perkey.core.commits import Commits, Plans
from perkey.core.delivery import AtLeastOnce, ExactlyOnce
from perkey.core.endings import Endings
from perkey.core.engine import Engine
from perkey.core.engine_state import Epochs
from perkey.core.events import AT_MOST_ONCE
from perkey.core.lanes import Lanes
from perkey.core.offsets import Offsets, Snapshot
from perkey.core.partition import Partition
from perkey.core.portions import Culprits, Portions
from perkey.core.scheduling import Flow, Handler
from simulators.core import (
    member,
    mutants_away,
    mutants_budgets,
    mutants_logs,
    mutants_memory,
    mutants_parked,
    mutants_relief,
    mutants_steered,
    profiles,
)
from simulators.core.mutant import MUTANTS, Mutant, mutant

# Those that register their own.
__all__ = [
    "MUTANTS",
    "Mutant",
    "mutants_away",
    "mutants_budgets",
    "mutants_logs",
    "mutants_memory",
    "mutants_parked",
    "mutants_relief",
    "mutants_steered",
]


# -- S1, S2: what is committed ---------------------------------------------------------------------


@mutant(AtLeastOnce, "send", "S2", first_seed=25)
def _done_before_acknowledged(original: Any) -> Any:
    def send(self: AtLeastOnce, record: Any, outputs: Any) -> None:
        self._state.emit(fx.Send(record, outputs))
        self.handled(record)

    return send


@mutant(Partition, "snapshot", "S2", "S1")
def _highest_seen_committed(original: Any) -> Any:
    def snapshot(self: Partition, claims: Any = None) -> Snapshot:
        position = self.offsets.position
        return Snapshot(position, position - 1, [])

    return snapshot


@mutant(Partition, "snapshot", "S2")
def _holes_dropped(original: Any) -> Any:
    def snapshot(self: Partition, claims: Any = None) -> Snapshot:
        shot: Snapshot = original(self, claims)
        return Snapshot(shot.frontier, shot.top, shot.not_done[:1])

    return snapshot


@mutant(Endings, "_no_dead_letter", "S2", "S1", first_seed=52)
def _dead_letter_refusal_ignored(original: Any) -> Any:
    return lambda self, work, _failure, _error: self.handled(work)


@mutant(Endings, "_split", "S1", "S3", first_seed=601)
def _batch_failure_costs_attempts(original: Any) -> Any:
    def split(self: Endings, record: Any, failed: Any, count: int, *, behind: bool) -> None:
        original(self, record, failed, count, behind=behind)
        record.failure.shared = 0

    return split


@mutant(Offsets, "advance", "S1")
def _gaps_waited_for(original: Any) -> Any:
    return lambda _self, _position: None


@mutant(Plans, "plan", "S2", "S5")
def _base_goes_back(original: Any) -> Any:
    def plan(self: Plans, partition: Partition, claims: Any = None) -> Any:
        item = original(self, partition, claims)
        back = item is not None and partition.commit.sequence % 5 == 4 and item.frontier > 0
        return item._replace(frontier=item.frontier - 1, metadata="") if back else item

    return plan


@mutant(Commits, "_due", "S2", "S5")
def _commits_while_in_doubt(original: Any) -> Any:
    def due(self: Commits, partition: Partition) -> bool:
        return (
            partition.commit.dirty or bool(partition.commit.claims)
        ) and partition.state != states.CLOSED

    return due


# -- S3: order -------------------------------------------------------------------------------------


@mutant(Lanes, "_join_by_key", "S3")
def _order_off(original: Any) -> Any:
    return lambda self, works: self.ready.extend(works)


@mutant(Endings, "_retry", "S3")
def _lane_goes_on_past_a_failure(original: Any) -> Any:
    def retry(self: Endings, record: Any, failure: Any, asked_s: Any) -> None:
        original(self, record, failure, asked_s)
        record.partition.release(record)
        record.next = None

    return retry


@mutant(Epochs, "_drop", "S3", first_seed=56)
def _old_attempt_holds_no_lane(original: Any) -> Any:
    def drop(self: Epochs, partition: Partition) -> None:
        original(self, partition)
        self._state.orphans.clear()

    return drop


@mutant(Endings, "retry_due", "S3")
def _delay_ignored(original: Any) -> Any:
    def retry_due(self: Endings) -> None:
        now, self._state.now = self._state.now, self._state.now + 1000.0
        original(self)
        self._state.now = now

    return retry_due


# -- S4, S5, S6: repeats ---------------------------------------------------------------------------


@mutant(member, "resolve", "S4")
def _map_not_restored(original: Any) -> Any:
    return lambda found, on_lost: original(replace(found, metadata=""), on_lost)


@mutant(Plans, "plan", "S5")
def _map_dropped(original: Any) -> Any:
    def plan(self: Plans, partition: Partition, claims: Any = None) -> Any:
        item = original(self, partition, claims)
        return None if item is None else item._replace(metadata="")

    return plan


@mutant(Commits, "run", "S5", first_seed=profiles.COUNTED)
def _the_interval_alone_counts(original: Any) -> Any:
    def run(self: Commits) -> None:
        if self._state.now >= self.next_at or self._state.claiming:
            original(self)

    return run


@mutant(Commits, "run", "S5", first_seed=profiles.COUNTED)
def _end_of_the_50_ms_not_timed(original: Any) -> Any:
    def run(self: Commits) -> None:
        at, due = self.next_at, self._state.now >= self.next_at
        original(self)
        if not due and self.next_at < at:
            self.next_at = at

    return run


@mutant(Commits, "ended", "S5", first_seed=profiles.COUNTED)
def _done_during_a_commit_waits_for_the_interval(_original: Any) -> Any:
    return lambda _self: None


@mutant(Engine, "_fill", "S5")
def _marked_after_the_start(original: Any) -> Any:
    def fill(self: Engine, handler: Handler) -> None:
        if handler.spec.delivery != AT_MOST_ONCE or handler.spec.batch is not None:
            original(self, handler)
            return
        works = handler.take(self.state.now, handler.slots.free)
        handler.slots.take(len(works))
        for record in works:
            record.state = states.MARKING
            self.state.claim(record)
        if works:
            self.state.emit(fx.Start(handler.index, works))

    return fill


@mutant(Commits, "_refused", "S5", "S1", first_seed=28)
def _refused_commit_forgotten(original: Any) -> Any:
    def refused(self: Commits, partition: Partition, answer: Any) -> None:
        original(self, partition, answer)
        partition.commit.repeat = partition.offsets.changed = False
        partition.commit.at = self._state.now + 10_000.0

    return refused


@mutant(Epochs, "last_commit", "S6")
def _no_last_commit(original: Any) -> Any:
    def last_commit(self: Epochs, partitions: Any) -> Any:
        return original(self, partitions)._replace(items=[])

    return last_commit


# -- S7: nothing after the epoch -------------------------------------------------------------------


@mutant(Epochs, "revoking", "S7")
def _starts_while_revoking(original: Any) -> Any:
    return lambda _self, _partitions: None


@mutant(Endings, "_late", "S7", "S2", first_seed=80)
def _epoch_check_removed(original: Any) -> Any:
    def late(self: Endings, record: Any) -> None:
        present = self._state.partitions.get((record.record.topic, record.record.partition))
        original(self, record)
        twin = None if present is None else present.offsets.incomplete.get(record.record.offset)
        if twin is not None and present is not None and twin.state == states.QUEUED:
            present.record_done(twin)
            if twin in present.lanes.ready:
                present.lanes.ready.remove(twin)

    return late


@mutant(Epochs, "closed", "S7")
def _commits_of_closed_epochs(original: Any) -> Any:
    def closed(self: Epochs, partitions: Any, *, lost: bool = False) -> None:
        partitions = list(partitions)
        original(self, partitions, lost=lost)
        for partition in partitions:
            partition.state = states.REVOKING
            partition.commit.repeat = True
            self._state.partitions.setdefault((partition.topic, partition.number), partition)

    return closed


# -- S8: transactions ------------------------------------------------------------------------------


@mutant(ExactlyOnce, "send", "S8")
def _outputs_outside_the_transaction(original: Any) -> Any:
    def send(self: ExactlyOnce, record: Any, outputs: Any) -> None:
        self._state.emit(fx.Send(record, outputs))
        self._handled(record)

    return send


@mutant(Batching, "_group", "S8", first_seed=profiles.SHARED + 43)
def _shared_outputs_over_partitions(original: Any) -> Any:
    def group(self: Batching, record: Any) -> Any:
        spec = record.partition.handler.spec.batch
        return original(self, record) if spec.by is not None else None

    return group


@mutant(Commits, "transacted", "S8", "S1", "S2", "S5")
def _aborted_counts_as_committed(original: Any) -> Any:
    def transacted(self: Commits, sequence: int, *, committed: bool, **others: Any) -> Any:
        return original(self, sequence, committed=True, **others)

    return transacted


@mutant(Commits, "transacted", "S1", "L2", first_seed=profiles.REFUSED_MAPS)
def _refused_map_repeated_as_it_is(original: Any) -> Any:
    def transacted(self: Commits, sequence: int, **others: Any) -> Any:
        return original(self, sequence, **{**others, "maps_too_large": False})

    return transacted


@mutant(Commits, "_send", "S8")
def _offsets_outside_the_transaction(original: Any) -> Any:
    return lambda self, _kind, items: original(self, fx.CommitOffsets, items)


@mutant(Batching, "_parts", "structure", first_seed=41)
def _batch_of_any_key(original: Any) -> Any:
    return lambda _self, _record, _following: False


# -- S9: bounds ------------------------------------------------------------------------------------


@mutant(Endings, "_failed", "S9")
def _slot_given_back_twice(original: Any) -> Any:
    def failed(self: Endings, record: Any, failure: Any) -> None:
        record.partition.handler.slots.give()
        original(self, record, failure)

    return failed


@mutant(Endings, "_failed", "structure", "L1", "L2", "S1")
def _slot_leak(original: Any) -> Any:
    def failed(self: Endings, record: Any, failure: Any) -> None:
        record.partition.handler.slots.take()
        original(self, record, failure)

    return failed


@mutant(account, "_part", "structure")
def _a_record_in_no_place(original: Any) -> Any:
    def part(*arguments: Any) -> Any:
        told = original(*arguments)
        places = {**told.places, "behind": max(0, told.places["behind"] - 1)}
        return told._replace(places=places)

    return part


@mutant(Portions, "_changed", "S9", first_seed=profiles.SLOW + 17)
def _outputs_in_no_budget(original: Any) -> Any:
    def changed(self: Portions, more_bytes: int) -> None:
        self.held_bytes += more_bytes

    return changed


@mutant(Portions, "forget", "structure")
def _outputs_outlive_their_epoch(original: Any) -> Any:
    return lambda _self, _partition: None


@mutant(Portions, "ended", "S1", "L2", "L4", first_seed=profiles.SLOW)
def _slow_transaction_repeated_as_it_is(original: Any) -> Any:
    return lambda _self, _sent, _stuck, *, committed, slow, reason: []


@mutant(Culprits, "_hold", "L2", first_seed=profiles.OFFLINE)
def _stuck_outputs_repeated_as_they_are(original: Any) -> Any:
    return lambda _self, _works: None


@mutant(Culprits, "_aborted", "L2", first_seed=profiles.ABORTED)
def _aborted_transaction_repeated_as_it_is(original: Any) -> Any:
    return lambda _self, _due, _sent: None


@mutant(Culprits, "_failed_alone", "L2", first_seed=profiles.ABORTED)
def _culprit_waits_for_ever(original: Any) -> Any:
    return lambda _self, _group, _failed: []


@mutant(Culprits, "_failed_alone", "S8", first_seed=profiles.ABORTED + 288)
def _outage_fails_an_attempt(original: Any) -> Any:
    def failed_alone(self: Culprits, group: Any, failed: Any) -> Any:
        self._proved = True
        return original(self, group, failed)

    return failed_alone


@mutant(Flow, "to_pause", "S9")
def _intake_never_paused(original: Any) -> Any:
    return lambda _self, _touched, _every: []


# -- L: it goes on ---------------------------------------------------------------------------------


@mutant(Flow, "to_resume", "S1", "L2")
def _intake_never_resumed(original: Any) -> Any:
    return lambda _self: []


@mutant(Endings, "retry_due", "S1", "L1", "L2")
def _retry_latch(original: Any) -> Any:
    return lambda _self: None


@mutant(Handler, "enlist", "S1", "L1", "L2", "structure")
def _turn_forgotten(original: Any) -> Any:
    def enlist(self: Handler, partition: Partition) -> None:
        if self.done % 7 != 3:
            original(self, partition)

    return enlist


@mutant(Engine, "_check_drained", "L4")
def _never_drained(original: Any) -> Any:
    return lambda _self: None


@mutant(Endings, "_retry", "S10")
def _random_delay(original: Any) -> Any:
    def retry(self: Endings, record: Any, failure: Any, asked_s: Any) -> None:
        original(self, record, failure, 5.0 * random.random())

    return retry
