"""Invariants of an engine between two events: a recount of everything it keeps in sums.

The engine keeps counts, a rotation and chains so that a turn costs the same however much waits.
Here all of it is counted again from the records, at the cost of a walk over every record. The
simulator does so every few steps; nothing in production calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from perkey.account.account import gathering, place_of, take
from perkey.core import states
from perkey.core.budgets import SharedBudget
from perkey.core.engine import Engine
from perkey.core.engine_state import EngineState
from perkey.core.events import AT_MOST_ONCE
from perkey.core.lanes import follows
from perkey.core.memory import SHELVED_BYTES
from perkey.core.partition import Partition
from perkey.core.scheduling import Handler
from perkey.core.states import InternalError
from perkey.core.work import STORY_EVENTS_MAX, LaneKey, Work
from perkey.reasons import PLACES
from simulators.core.steered import SET_MORE


def check(engine: Engine, calls: Sequence[int] | None = None) -> None:
    """Raise InternalError where the engine contradicts itself.

    `calls`: how many calls of each handler run, as whoever runs them knows; without it the
    slots are not counted.
    """
    state = engine.state
    for where, partition in state.partitions.items():
        _need(where == partition.where, partition, "stands under another name")
        check_partition(partition)
        if state.limits.forget_parked:
            _check_forgotten(state, partition)
    _check_retries(state)
    for handler in state.handlers:
        _check_rotation(state, handler)
        if calls is not None:
            _check_slots(state, handler, calls[handler.index])
    for budget in state.budgets:
        _check_budget(state, budget, calls)
    _check_claims(state)
    held = sum(partition.outputs_bytes for partition in state.partitions.values())
    _need(held == state.portions.held_bytes, state.portions, f"counts other outputs than {held}")
    _check_account(engine)


def _need(holds: object, about: object, what: str) -> None:
    if not holds:
        raise _broken(about, what)


def _broken(about: object, what: str) -> InternalError:
    return InternalError(f"{about!r}: {what}")


# -- one partition -------------------------------------------------------------------------------


def check_partition(partition: Partition) -> None:
    """The offsets, the lanes and the counts of one epoch agree."""
    works = _members(partition)
    _check_offsets(partition)
    _check_counts(partition, works)
    _check_lanes(partition, works)
    _check_blocked(partition, works)
    _check_shelves(partition, works)


def _check_shelves(partition: Partition, works: list[Work]) -> None:
    """Of a lane that is put off nothing is kept whole that can be fetched again, and all comes."""
    lanes, bare = partition.lanes, partition.shelves.bare
    for work in bare:
        shed = work.record.value is None and not work.record.headers
        _need(shed, work, "keeps the bytes that it gave back")
        _need(work in works, work, "is done, and its bytes are waited for")
        waits = work.state in (*states.REMEMBERED, states.BYTES)
        _need(waits, work, "goes on without its bytes")
    for work in partition.shelves.wanted:
        _need(work.state == states.BYTES and work in bare, work, "is wanted and is here")
    if not lanes.shelves:
        return
    tails: dict[LaneKey, int] = {}
    for work in works:
        key = lanes.key_of(work.record)
        undone = partition.offsets.incomplete.get(work.record.offset) is work
        if undone and not (work.failure is not None and work.failure.left_lane):
            tails[key] = max(tails.get(key, -1), work.record.offset)
    for key, shelf in lanes.shelves.items():
        order = list(shelf.offsets)
        _need(order == sorted(set(order)), partition, f"the shelf of {key!r} is not in order")
        _need(
            shelf.offsets or shelf.head.put_off or key in tails,
            partition,
            f"the shelf of {key!r} is empty, and stands",
        )
        first = order[0] if order else tails.get(key, -1) + 1
        if not partition.handler.exact:
            _need(tails.get(key, -1) < first, partition, f"lane {key!r} goes past its shelf")
        dry = bool(order) and key not in lanes.tails
        _need(not dry or key in lanes.dry, partition, f"nothing fetches the shelf of {key!r}")


def _check_forgotten(state: EngineState, partition: Partition) -> None:
    """What is parked or held at the head of its lane keeps no bytes, nor does what is behind it."""
    shelves = partition.shelves
    for work in partition.offsets.works():
        if not work.put_off:
            continue
        assert work.failure is not None
        kept = work.failure.left_lane
        _need(kept or work in shelves.bare, work, "is put off and keeps its bytes")
        last = partition.lanes.tails.get(partition.lanes.key_of(work.record), work)
        plain = last.state == states.QUEUED and last.failure is None and not follows(last)
        _need(kept or not plain, last, "is behind a record that is put off, and keeps its bytes")
    idle = not shelves or partition in state.shelving
    _need(idle, partition, "keeps offsets, and nobody will fetch them")


def _members(partition: Partition) -> list[Work]:
    return partition.works()


def _check_offsets(partition: Partition) -> None:
    offsets = partition.offsets
    held = list(offsets.incomplete)
    _need(held == sorted(held), partition, "its offsets are not in order")
    unseen = [offset for offset, work in offsets.incomplete.items() if work is None]
    away = [offset for shelf in partition.lanes.shelves.values() for offset in shelf.offsets]
    told = sorted([*offsets.expected, *away])
    _need(unseen == told, partition, "expected holes are not among its offsets")
    _need(offsets.shelved == len(away), partition, "more or less is shelved than it says")
    received = []
    for offset, work in offsets.incomplete.items():  # of all records: no call for each
        if work is None:
            continue
        received.append(offset)
        if work.record.offset != offset:
            raise _broken(work, "stands at another offset")
        if work.partition is not partition:
            raise _broken(work, "belongs to another epoch")
        if work.state in (states.DONE, states.SUPERSEDED):
            raise _broken(work, "is finished with and not done")
    polled = not received or received[-1] < offsets.position
    _need(polled, partition, "holds what was not polled")
    _need(offsets.top not in offsets.incomplete, partition, "its top is not done")


def _check_counts(partition: Partition, works: list[Work]) -> None:
    count = Counter([work.state for work in works])
    for name, state in (
        ("in_flight", states.RUNNING),
        ("sending", states.SENDING),
    ):
        kept = getattr(partition, name)
        if kept != count[state]:
            raise InternalError(f"{partition!r}: {name} is {kept}, counted {count[state]}")
    size = sum([work.size for work in works]) + partition.offsets.shelved * SHELVED_BYTES
    _need(partition.bytes == size, partition, f"bytes is {partition.bytes}, counted {size}")
    held = sum(partition.outputs.values())
    _need(partition.outputs_bytes == held, partition, "outputs_bytes is not what it holds")
    for work in partition.outputs:
        _need(work.state == states.PENDING, work, "holds outputs and waits for no transaction")
    _need(len(works) == len(set(map(id, works))), partition, "holds a record twice")
    for work in works:
        if work.failure is not None:
            _need(len(work.story()) <= STORY_EVENTS_MAX, work, "its story has no end")


def _check_lanes(partition: Partition, works: list[Work]) -> None:
    """Each lane is one chain, and only its head may be anywhere but in the chain."""
    lanes = partition.lanes
    count = Counter([work.state for work in works])
    for why in states.STALLED:
        kept = lanes.waiting[why]
        name = states.RECORD_NAMES[why]
        _need(kept == count[why], partition, f"{name}: {kept} wait, counted {count[why]}")
    far = sorted(work.offset for work in works if work.state == states.ROOM)
    _need(sorted(lanes.far) == far, partition, "others wait for room than it says")
    occupied = [work for work in lanes.occupied.values() if work is not None]
    _need(len(occupied) == count[states.EPOCH], partition, "a head waits for no old call")
    heads = [*lanes.ready, *(work for work in lanes.turns if work.partition is partition)]
    _need(len(heads) == len(set(map(id, heads))), partition, "a head waits in two places")
    for work in heads:
        if work.state != states.QUEUED:
            raise _broken(work, "waits to start and is not queued")
        if work.partition is not partition:
            raise _broken(work, "waits in another epoch")
    # A lane has gone on past a pending record, though its link stays.
    linked = [work for work in works if work.state != states.PENDING]
    behind = {id(work.next) for work in linked if work.next is not None}
    for work in heads:
        if id(work) in behind:
            raise _broken(work, "may start and stands behind another")
    if partition.handler.spec.batch is None:  # a batch holds several of a lane, on purpose
        _check_one_head(partition, works, behind)
    for key, tail in lanes.tails.items():
        if lanes.key_of(tail.record) != key:
            raise _broken(tail, "is the tail of another lane")
        if tail.next is not None:
            raise _broken(tail, "is a tail with something behind it")


def _check_one_head(partition: Partition, works: list[Work], behind: set[int]) -> None:
    kept = partition.lanes
    waiting = {id(work) for work in (*kept.ready, *kept.turns)}
    heads = []
    for work in works:
        follows_another = id(work) in behind
        if work.state == states.QUEUED and not follows_another and id(work) not in waiting:
            raise _broken(work, "is queued and nothing will ever start it")
        if not follows_another:
            heads.append(work)
    if partition.handler.exact:  # the lanes of these may have gone on
        past = (states.PENDING, *states.REMEMBERED)
        heads = [work for work in heads if work.state not in past]
    lanes = Counter([kept.key_of(work.record) for work in heads])
    if len(lanes) == len(heads):
        return
    key, count = lanes.most_common(1)[0]
    raise InternalError(f"{partition!r}: lane {key!r} has {count} heads")


def _check_blocked(partition: Partition, works: list[Work]) -> None:
    charges = {id(work.charge): work.charge for work in works if work.charge is not None}
    if not charges and not partition.lanes.blocked_records:
        return
    blocked = [charge for charge in charges.values() if charge.blocked]
    records = sum(charge.records for charge in blocked)
    size = sum(charge.bytes for charge in blocked)
    shelved = partition.offsets.shelved * SHELVED_BYTES
    kept = (partition.lanes.blocked_records, partition.lanes.blocked_bytes - shelved)
    _need(kept == (records, size), partition, f"blocked is {kept}, counted {(records, size)}")
    for charge in charges.values():
        members = [work for work in works if work.charge is charge]
        _need(charge.records == len(members), partition, "a lane's charge is not what it holds")
        total = sum(work.size for work in members)
        _need(charge.bytes == total, partition, "a lane's charge is not its bytes")


# -- the whole engine ------------------------------------------------------------------------------


def _all_works(state: EngineState, handler: Handler) -> Iterator[Work]:
    for partition in state.partitions.values():
        if partition.handler is handler:
            yield from _members(partition)


def _check_retries(state: EngineState) -> None:
    timed = (states.RETRYING, states.HELD)
    every = [partition.lanes.waiting for partition in state.partitions.values()]
    waiting = sum(counts[why] for counts in every for why in timed)
    scheduled = state.retries.waiting()
    _need(scheduled == waiting, state.retries, f"{scheduled} scheduled, {waiting} retrying")
    waiting += sum(partition.parked for partition in state.partitions.values())  # for its time
    _need(len(state.retries) <= 2 * waiting + 64, state.retries, "keeps what is long gone")


def _check_rotation(state: EngineState, handler: Handler) -> None:
    standing = list(handler.rotation)
    _need(len(standing) == len(set(map(id, standing))), handler.name, "a partition stands twice")
    for partition in state.partitions.values():
        if partition.handler is handler and partition.lanes.far:
            _need(partition in handler.short_of_room, partition, "has records far out, forgotten")
    for one in standing:
        _need(one.listed, one, "stands in the rotation and does not know")
    for partition in state.partitions.values():
        if partition.handler is handler:
            idle = not (partition.lanes.ready and not partition.gate.reasons)
            _need(idle or partition.listed, partition, "has something ready and no turn")
            stands = not partition.listed or partition in standing
            _need(stands, partition, "knows that it stands in the rotation, and does not")


def _check_slots(state: EngineState, handler: Handler, calls: int) -> None:
    """Free + calls that run + what holds a slot otherwise = what there is."""
    spec = handler.spec
    works = list(_all_works(state, handler))
    slotless = {work for p in state.partitions.values() for work in p.commit.slotless}
    committing = [work for work in works if work.state == states.COMMITTING]
    used = calls + sum(work not in slotless for work in committing)
    if spec.commit_each:
        used += sum(work.state == states.SENDING for work in works)
    if spec.delivery == AT_MOST_ONCE:
        marking = [work for work in works if work.state == states.MARKING]
        if spec.batch is None:
            used += len(marking)
        else:  # a batch waits as one call until all its marks are stored
            calls_waiting = {id(work.call) for work in works if work.call and work.call.works}
            used += len(calls_waiting)
    slots = handler.slots
    told = f"{slots.free} free, {used} used of {slots.capacity}"
    _need(slots.free + used == slots.capacity, handler.name, told)
    declared = spec.concurrency + spec.ahead
    fewer = slots.capacity < declared  # by command, while more still run; or no more by command
    fits = slots.free >= 0 or spec.commit_each or fewer or used <= declared + SET_MORE
    _need(fits, handler.name, f"more calls than slots: {told}")


def _check_budget(state: EngineState, budget: SharedBudget, calls: Sequence[int] | None) -> None:
    """All that waits for it stands in one of its queues, and its calls are those that run."""
    works = [work for handler in budget.handlers for work in _all_works(state, handler)]
    queued = budget.queued()
    for work in works:
        if work.state == states.BUDGET and work not in queued:
            raise _broken(work, "waits for a budget and stands in no queue of it")
    if calls is None:
        return
    running = sum(calls[handler.index] for handler in budget.handlers)
    told = f"{budget.in_flight} in flight, {running} run"
    _need(budget.in_flight == running, budget.spec.name, told)


def _check_claims(state: EngineState) -> None:
    for partition in state.partitions.values():
        listed = partition in state.claiming
        _need(
            listed or not partition.commit.claims, partition, "claims, and nobody will commit them"
        )
        for work in partition.commit.claims:
            claiming = (states.MARKING, states.COMMITTING, states.PENDING)
            _need(work.state in claiming, work, "is a claim in a state that claims nothing")
    for orphans in state.orphans.values():
        for work in orphans.values():
            _need(work.state == states.SUPERSEDED, work, "holds a lane and is of the present")


def _check_account(engine: Engine) -> None:
    """Every record that is held is in exactly one place, and the account counts it there."""
    gathered, names = gathering(engine), [place.name for place in PLACES]
    for part in take(engine, engine.state.now).parts():
        partition = engine.state.partitions[part.topic, part.number]
        counted = Counter([place_of(work, gathered) for work in _members(partition)])
        told = {name: part.places[name] for name in names}
        found = {name: counted[name] for name in names}
        _need(told == found, partition, f"the account says {told}, counted {found}")
        _need(sum(told.values()) == counted.total(), partition, "the account leaves somebody out")
