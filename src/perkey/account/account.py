"""The place of every record: a snapshot of what the engine holds.

`begin` and `copies` run inside the door, so they only copy: counts that the engine keeps anyway and
one list of references per partition. Reports are computed from the copies outside the door, where
that blocks nothing (`account/snapshot.py`, `account/blockers.py`).

Each record that was received and is not done is in exactly one place. The simulator checks the sums
against a walk over every record (`simulators/core/invariants.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from perkey.account.begun import waits
from perkey.core import states
from perkey.core.budgets import SharedBudget
from perkey.core.engine import Engine
from perkey.core.events import AT_MOST_ONCE, Pause
from perkey.core.gates import BRAKED, STOPPING, WHOLE
from perkey.core.partition import Partition
from perkey.core.scheduling import Handler
from perkey.core.work import LaneKey, Work
from perkey.reasons import PLACE_OF, PLACES
from perkey.types import ErrorInfo

#: the place of a record in each state; queued ones are ready, in an open batch, or behind another
PLACE_OF_STATE = {states.RECORD_NAMES.index(name): place for name, place in PLACE_OF.items()}


class Part(NamedTuple):
    """One partition as it was at the time of the account."""

    topic: str
    number: int
    epoch: int
    handler: Handler
    state: int
    position: int
    top: int
    log_end: int
    committed: int
    committed_at: float
    commit_state: int
    map_chars: int
    map_limit: int
    #: the size of the map in characters when its room was last measured
    map_taken: int
    #: nothing at or past this offset starts for now; negative: not measured yet
    map_edge: int
    #: failing, parked and held records that did not fit into the last commit
    left_out: int
    #: why nothing of it starts
    reasons: frozenset[str]
    intake_paused: bool
    #: place -> number of records
    places: dict[str, int]
    #: how many are not done; how many of these are not fetched yet
    not_done: int
    not_fetched: int
    #: restored holes not fetched yet, and offsets kept for the lanes of parked records; only the
    #: first of each if the account only counts
    unfetched: Sequence[int]
    #: what is not done, in offset order; None if it is not fetched. References to live objects;
    #: only the first if the account only counts
    works: list[Work | None]
    #: at_most_once: records that run but are already committed as done
    marked: Sequence[Work]
    #: lanes in which a call of an earlier epoch still runs
    held: Mapping[LaneKey, Work | None]
    #: parked lane -> number of its records kept as offsets; empty if the account only counts
    shelved: Mapping[LaneKey, int]


#: The fields that are copied unchanged, in the order of `Part`: a C call, as the door is held.
_plain = attrgetter(
    "topic", "number", "epoch", "handler", "state", "offsets.position", "offsets.top", "log_end",
    "commit.committed", "commit.committed_at", "commit.state", "commit.map_chars",
    "commit.map_limit", "reach.taken", "reach.edge", "memory.shed", "gate.reasons",
    "intake_paused",
)  # fmt: skip
_counts = attrgetter("in_flight", "sending")
#: partitions and records per slice: other threads get the door between two slices
SLICE_PARTITIONS = 250
#: most values of one handler that are listed
AWAY_MAX = 10
SLICE_RECORDS = 20_000


class Unread(NamedTuple):
    """An assigned partition that is not read. Only the runtime knows of it, not the engine."""

    topic: str
    number: int
    handler: str
    #: "start_unknown" (it has no epoch yet) or "not_fetched"
    place: str
    #: on the engine's clock
    since: float
    reason: str


class Away(NamedTuple):
    """An outage of what a handler calls, at the time of the account."""

    handler: str
    #: "outage" or "brake"
    cause: str
    #: True: all records of the handler wait; False: those with this value of `by`
    whole: bool
    value: Hashable
    since: float
    error: ErrorInfo
    #: records that wait, and attempts that failed with an error of `on`
    aside: int
    failed: int
    probe_s: float
    #: brake: (records that used up their attempts, records that ended)
    counts: tuple[int, int]


class Spent(NamedTuple):
    """A budget that lets nothing start, at the time of the account."""

    name: str
    handlers: tuple[str, ...]
    #: "rate", "in_flight", "asked" (the service asked its callers to wait) or "share" (the member's
    #: share is zero or not known yet)
    why: str
    per_s: float | None
    in_flight_max: int | None
    #: this member's part of the two limits
    share: float
    in_flight: int
    #: when something may start, on the engine's clock; None: when a call ends
    until: float | None
    error: ErrorInfo | None


class Account(NamedTuple):
    """Everything the engine holds, at one time on its clock."""

    at: float
    copies: list[tuple[Any, ...]]
    handlers: list[Handler]
    #: handler -> the time before which it may start nothing (rate limit)
    tokens_due: dict[str, float | None]
    holds: list[str]
    paused: set[str | None]
    #: pauses by command
    pauses: tuple[Pause, ...]
    stop_mode: str | None
    counts: dict[str, int]
    #: records in open batches
    gathering: set[Work]
    #: at most AWAY_MAX outages of each handler
    outages: list[Away]
    #: budgets that let nothing start
    budgets: list[Spent]

    def parts(self) -> list[Part]:
        """The partitions. Called outside the door."""
        return [_part(copy) for copy in self.copies]


def take(engine: Engine, now: float, *, records: bool = True) -> Account:
    """The whole account in one call."""
    account, partitions = begin(engine, now)
    account.copies.extend(copies(engine, partitions, records=records))
    return account


def begin(engine: Engine, now: float) -> tuple[Account, list[Partition]]:
    """An account without partitions, and the partitions to copy. Called inside the door."""
    state = engine.state
    account = Account(
        now,
        [],
        state.handlers,
        {handler.name: handler.tokens_due() for handler in state.handlers},
        sorted(state.gate.reasons - {STOPPING}),
        state.desired.topics,
        state.desired.steering.pauses,
        state.stop_mode,
        dict(state.counts),
        gathering(engine),
        [
            Away(
                handler.name,
                "brake" if outage.value is BRAKED else "outage",
                outage.value in (WHOLE, BRAKED),
                outage.value,
                outage.since,
                outage.error,
                len(outage.waiting),
                outage.failed,
                outage.probe_s,
                outage.counts,
            )
            for handler in state.handlers
            for outage in list(
                islice((outage for outage in handler.outages.values() if not outage.over), AWAY_MAX)
            )
        ],
        [_spent(outage) for outage in state.budgets if outage.why],
    )
    return account, list(state.partitions.values())


def _spent(budget: SharedBudget) -> Spent:
    return Spent(
        budget.spec.name, tuple(handler.name for handler in budget.handlers), budget.why,
        budget.spec.per_s, budget.spec.in_flight, budget.share, budget.in_flight, budget.due,
        budget.asked_by if budget.why == "asked" else None,
    )  # fmt: skip


def slices(partitions: Sequence[Partition], *, records: bool = True) -> Iterator[list[Partition]]:
    """Split the partitions so that copying one slice, with its records, takes only a moment."""
    part: list[Partition] = []
    count = 0
    for partition in partitions:
        part.append(partition)
        count += len(partition.offsets.incomplete) if records else 0
        if len(part) >= SLICE_PARTITIONS or count >= SLICE_RECORDS:
            yield part
            part, count = [], 0
    if part:
        yield part


def copies(
    engine: Engine, partitions: Sequence[Partition], *, records: bool = True
) -> list[tuple[Any, ...]]:
    """The copies of those partitions that are still assigned. Called inside the door.

    Without `records` it only counts and reads the first record of each partition.
    """

    def kept(values: Iterable[Any]) -> list[Any]:
        return list(values if records else islice(values, 1))

    gathered = Counter([work.partition for work in gathering(engine)])
    not_begun = Counter([work.partition for work in waiting_to_begin(engine)])
    return [
        (
            _plain(p),
            _counts(p),
            len(p.lanes.ready),
            tuple(p.lanes.waiting),
            len(p.commit.claims),
            len(p.offsets.incomplete),
            len(p.offsets.expected) + p.offsets.shelved,
            kept(p.offsets.unfetched()) if p.offsets.expected or p.offsets.shelved else (),
            kept(p.offsets.incomplete.values()),
            list(p.commit.marked.values()) if p.commit.marked else (),
            (
                dict(p.lanes.occupied) if p.lanes.occupied else {},
                {k: len(s.offsets) for k, s in p.lanes.shelves.items()} if records else {},
                gathered[p] if gathered else 0,
                not_begun[p] if not_begun else 0,
            ),
        )
        for p in partitions
        if p.state != states.CLOSED
    ]


def gathering(engine: Engine) -> set[Work]:
    """Records in batches whose call has not been requested yet."""
    return {
        work
        for groups in engine.state.open_batches
        for batch in groups.values()
        for work in batch.works
        if work.state == states.QUEUED
    }


def waiting_to_begin(engine: Engine) -> list[Work]:
    """Records whose calls the executors report as not started."""
    return [work for handler in engine.handlers for work in handler.unbegun if waits(work)]


def _part(copy: tuple[Any, ...]) -> Part:
    """A partition's copy with its records counted by place, from sums that the engine keeps."""
    plain, (running, sending), ready, waits, claims, *offsets, ends = copy
    held, shelved, gathered, not_begun = ends
    not_done, not_fetched, *_, marked = offsets
    delivery = plain[3].spec.delivery
    marks = claims if delivery == AT_MOST_ONCE else 0
    pending = claims if plain[3].exact else 0
    elsewhere = claims + running - len(marked) + sending + sum(waits) + ready + gathered
    places = dict.fromkeys((place.name for place in PLACES), 0) | {
        "ready": ready,
        "gathering": gathered,
        "behind": not_done - not_fetched - elsewhere,
        "marking": marks,
        "not_begun": not_begun,
        "running": running - not_begun,
        "sending": sending,
        "committing": claims - marks - pending,
        "pending": pending,
    }
    for why in states.STALLED:
        places[PLACE_OF_STATE[why]] += waits[why]
    return Part._make((*plain, places, *offsets, held, shelved))


def is_held(work: Work) -> bool:
    """Held by a command; such a record waits like one before its next attempt."""
    return work.state == states.HELD


def place_of(work: Work, gathered: set[Work]) -> str:
    """The one place of a record, found by a search; for one record or tests. Inside the door."""
    partition = work.partition
    if waits(work):
        return "not_begun"
    place = PLACE_OF_STATE.get(work.state)
    if place is not None:
        return place
    if work in gathered:
        return "gathering"
    if work in partition.lanes.ready:
        return "ready"
    return "behind"
