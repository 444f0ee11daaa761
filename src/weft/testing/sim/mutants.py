"""Engines broken on purpose, one way each: the checks must see every one of them.

A mutant is a patch of the core that lasts as long as the `with` block. `names` are the promises
it breaks; the simulator must report one of them, not just fail somehow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weft.core import effects as fx
from weft.core import intake, states
from weft.core.commits import Commits
from weft.core.endings import Endings
from weft.core.engine import Engine
from weft.core.epochs import Epochs
from weft.core.flow import Flow
from weft.core.handler import Handler
from weft.core.partition import Partition, Snapshot
from weft.core.plans import Plans
from weft.core.spec import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from weft.testing.sim import member


@dataclass(frozen=True, slots=True)
class Mutant:
    """One way to break the core."""

    name: str
    promises: tuple[str, ...]
    owner: Any
    attribute: str
    broken: Callable[..., Any]

    @contextmanager
    def alive(self) -> Iterator[None]:
        """The core is broken inside."""
        original = vars(self.owner)[self.attribute]
        broken = self.broken(original)
        setattr(self.owner, self.attribute, broken)
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, original)


MUTANTS: list[Mutant] = []


def mutant(owner: Any, attribute: str, *promises: str) -> Callable[[Callable[..., Any]], None]:
    """Register a patch: the function gets the original and returns what takes its place."""

    def register(broken: Callable[..., Any]) -> None:
        MUTANTS.append(Mutant(broken.__name__.lstrip("_"), promises, owner, attribute, broken))

    return register


# -- S1, S2: what is committed ---------------------------------------------------------------------


@mutant(Endings, "_send", "S2")
def _done_before_acknowledged(original: Any) -> Any:
    def send(self: Endings, record: Any, outputs: Any) -> None:
        if record.partition.handler.spec.delivery != AT_LEAST_ONCE:
            original(self, record, outputs)
            return
        self._state.emit(fx.Send(record, outputs))
        self._finish(record)

    return send


@mutant(Partition, "snapshot", "S2", "S1")
def _highest_seen_committed(original: Any) -> Any:
    def snapshot(self: Partition, claims: Any = None) -> Snapshot:
        return Snapshot(self.position, self.position - 1, [])

    return snapshot


@mutant(Partition, "snapshot", "S2")
def _holes_dropped(original: Any) -> Any:
    def snapshot(self: Partition, claims: Any = None) -> Snapshot:
        shot: Snapshot = original(self, claims)
        return Snapshot(shot.frontier, shot.top, shot.not_done[:1])

    return snapshot


@mutant(Endings, "_dead_letter_settled", "S2", "S1")
def _dead_letter_refusal_ignored(original: Any) -> Any:
    return lambda self, record, failure, sent, _error: original(self, record, failure, sent, None)


@mutant(Partition, "advance", "S1")
def _gaps_waited_for(original: Any) -> Any:
    return lambda _self, _position: None


@mutant(Plans, "plan", "S2", "S5")
def _base_goes_back(original: Any) -> Any:
    def plan(self: Plans, partition: Partition, claims: Any = None) -> Any:
        item = original(self, partition, claims)
        back = item is not None and partition.commit_sequence % 5 == 4 and item.frontier > 0
        return item._replace(frontier=item.frontier - 1, metadata="") if back else item

    return plan


@mutant(Commits, "_due", "S2", "S5")
def _commits_while_in_doubt(original: Any) -> Any:
    def due(self: Commits, partition: Partition) -> bool:
        return (partition.dirty or bool(partition.claims)) and partition.state != states.CLOSED

    return due


# -- S3: order -------------------------------------------------------------------------------------


@mutant(intake, "_admit_keys", "S3")
def _order_off(original: Any) -> Any:
    return vars(intake)["_admit_unordered"]


@mutant(Endings, "_retry", "S3")
def _lane_goes_on_past_a_failure(original: Any) -> Any:
    def retry(self: Endings, record: Any, failure: Any, asked_s: Any) -> None:
        original(self, record, failure, asked_s)
        record.partition.release(record)
        record.next = None

    return retry


@mutant(Epochs, "_drop", "S3")
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


@mutant(Engine, "_fill", "S5")
def _marked_after_the_start(original: Any) -> Any:
    def fill(self: Engine, handler: Handler) -> None:
        if handler.spec.delivery != AT_MOST_ONCE or handler.spec.batch is not None:
            original(self, handler)
            return
        works = handler.take(self.state.now)
        for record in works:
            self.state.claim(record)
        if works:
            self.state.emit(fx.Start(handler.index, works))

    return fill


@mutant(Commits, "_refused", "S5", "S1")
def _refused_commit_forgotten(original: Any) -> Any:
    def refused(self: Commits, partition: Partition, answer: Any) -> None:
        original(self, partition, answer)
        partition.dirty = False
        partition.commit_at = self._state.now + 10_000.0

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


@mutant(Endings, "_late", "S7", "S2")
def _epoch_check_removed(original: Any) -> Any:
    def late(self: Endings, record: Any) -> None:
        present = self._state.partitions.get((record.record.topic, record.record.partition))
        original(self, record)
        twin = None if present is None else present.incomplete.get(record.record.offset)
        if twin is not None and present is not None and twin.state == states.QUEUED:
            present.finish(twin)
            if twin in present.ready:
                present.ready.remove(twin)

    return late


@mutant(Epochs, "closed", "S7")
def _commits_of_closed_epochs(original: Any) -> Any:
    def closed(self: Epochs, partitions: Any, *, lost: bool = False) -> None:
        partitions = list(partitions)
        original(self, partitions, lost=lost)
        for partition in partitions:
            partition.state, partition.dirty = states.REVOKING, True
            self._state.partitions.setdefault((partition.topic, partition.number), partition)

    return closed


# -- S8: transactions ------------------------------------------------------------------------------


@mutant(Endings, "_send", "S8")
def _outputs_outside_the_transaction(original: Any) -> Any:
    def send(self: Endings, record: Any, outputs: Any) -> None:
        if record.partition.handler.spec.delivery == EXACTLY_ONCE:
            self._state.emit(fx.Send(record, outputs))
            outputs = None
        original(self, record, outputs)

    return send


@mutant(Commits, "transacted", "S8", "S1", "S2", "S5")
def _aborted_counts_as_committed(original: Any) -> Any:
    def transacted(self: Commits, sequence: int, *, committed: bool, refused: Any) -> Any:
        return original(self, sequence, committed=True, refused=refused)

    return transacted


@mutant(Commits, "_send", "S8")
def _offsets_outside_the_transaction(original: Any) -> Any:
    return lambda self, _kind, items: original(self, fx.CommitOffsets, items)


# -- S9: bounds ------------------------------------------------------------------------------------


@mutant(Endings, "_failed", "S9")
def _slot_given_back_twice(original: Any) -> Any:
    def failed(self: Endings, record: Any, failure: Any) -> None:
        record.partition.handler.free += 1
        original(self, record, failure)

    return failed


@mutant(Endings, "_failed", "structure", "L1", "L2", "S1")
def _slot_leak(original: Any) -> Any:
    def failed(self: Endings, record: Any, failure: Any) -> None:
        record.partition.handler.free -= 1
        original(self, record, failure)

    return failed


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
