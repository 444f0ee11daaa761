"""Exactly once: outputs and offsets go into one transaction, and are seen together or not at all.

A record that is handled is PENDING: a claim with its outputs. Its lane goes on at once; a
transaction takes the claims since the last one, in the order in which they were handled: a lane's
outputs keep theirs. Records that share outputs (a batch) go together or wait together.

What the broker refuses fails its record's attempt (`Endings.outputs_refused`); the others are
produced again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core import effects as fx
from weft.core import states
from weft.core.delivery import MostClaims, call, complete, run_together
from weft.core.engine import EngineState
from weft.core.handler import Handler
from weft.core.partition import Partition, begin
from weft.core.work import Work

Plan = Callable[[Partition, Sequence[Work]], fx.PlanItem | None]


class ExactlyOnce:
    """Keeps what is handled for the next transaction."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def start(self, handler: Handler, works: list[Work]) -> None:
        """Call the handler."""
        begin(works, self._state.now)
        call(self._state, handler, works)

    def start_together(self, handler: Handler, works: list[Work]) -> None:
        """Call the batch handler."""
        run_together(self._state, handler, works)

    def given_back(self, work: Work) -> None:
        """Nothing was said of it yet."""

    # -- after the call --------------------------------------------------------------------------

    def send(self, work: Work, outputs: Any) -> None:
        """They wait for the transaction, charged to the budget of outputs."""
        work.outputs = outputs
        size_bytes = self._state.size_of(outputs)
        if size_bytes:
            work.partition.hold_outputs(work, size_bytes)
        self._handled(work)

    def send_dead_letter(self, work: Work, letter: fx.SendDeadLetter) -> None:
        """So does a dead letter."""
        work.outputs = letter
        self._handled(work)

    def _handled(self, work: Work) -> None:
        self._state.count_finished(1)
        self.returned(work)

    def returned(self, work: Work, *, report: bool = True) -> None:
        """Handled: it waits for a transaction, and its lane goes on."""
        work.state = states.PENDING  # watched by the simulator: this is a hot path
        self._state.claim(work)
        if work.failure is None or not work.failure.left_lane:
            work.partition.release(work)

    def refused(self, work: Work) -> bool:
        """By the retry policy."""
        return True

    # -- the transaction -------------------------------------------------------------------------

    def transaction(self, due: Sequence[Partition], plan: Plan) -> list[fx.PlanItem]:
        """What the next one takes of these partitions."""
        portions = zip(due, self._state.portions.claims(due), strict=True)
        return self._whole([plan(partition, claims) for partition, claims in portions], plan)

    def _whole(self, plans: Sequence[fx.PlanItem | None], plan: Plan) -> list[fx.PlanItem]:
        """Records that share outputs go into one transaction, or all of them wait."""
        items = [item for item in plans if item is not None]
        torn = self._torn(items)
        if not any(id(work.outputs) in torn for item in items for work in item.claims if torn):
            narrow = self._state.portions.narrow and any(item.claims for item in items)
            return [i for i in items if i.claims or (i.partition.commit.dirty and not narrow)]
        less = [plan(item.partition, without(item.claims, torn)) for item in items]
        return self._whole(less, plan)

    def _torn(self, items: Sequence[fx.PlanItem]) -> set[int]:
        """Outputs of records that are not all in these plans; only batches share outputs."""
        if all(handler.spec.batch is None for handler in self._state.handlers):
            return set()
        inside = {id(work) for item in items for work in item.claims}
        return {
            id(work.outputs)
            for partition in self._state.claiming
            for work in partition.commit.claims
            if work.outputs is not None and id(work) not in inside
        }

    def stored(self, partition: Partition, claims: list[Work]) -> None:
        """The transaction is committed: done."""
        plain = 0
        for work in claims:
            partition.pending_done(work)
            if work.failure is None and not self._state.reporting:
                plain += 1
            else:
                complete(self._state, work)
        partition.handler.count_done(plain)

    def fits(self, partition: Partition, item: fx.PlanItem, most: MostClaims) -> fx.PlanItem | None:
        """Fewer claims: an output that was committed must never be forgotten."""
        return most()

    def closing(self, partitions: Iterable[Partition]) -> None:
        """What was handed over may begin until the epoch closes; the runtime asks."""
