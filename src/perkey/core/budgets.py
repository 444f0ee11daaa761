"""Budgets: what several handlers may use together of a service that limits its callers, fairly.

Theory of operation. Ready records of a handler with a budget leave `ready` and wait in a queue of
the budget (`gather`), one for each value of `Budget.by`, handler and partition::

    ready ──gather──► value ──► handler ──► partition ──► records
                        └ the value that has used least goes first; within it, handlers and
                          partitions take turns

- Records start while fewer than `in_flight` calls run and the bucket can pay for the next record
  (`start`). Budgets and handlers' rate limits use the same bucket.
- Deficit round robin, whose quantum is the current cost: each value has a number `used`, which
  grows by the cost of what it starts, and the lowest is next; a new value starts with the number of
  the last one that started. So of two values that wait, one gets no more than the other except for
  the cost of one record each, however many records or handlers it has.
- A handler that may start nothing (no slot, paused, its own rate limit) is skipped; its values get
  no credit for that time beyond one record.
- The actual cost of a record is settled later (`charged`): the bucket may be in debt, and so may
  the value, until that is paid back.
- If a service asks to wait (`wait`), the whole budget waits.
- Each member has a share of the budget equal to its share of the partitions (`divide`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import floor, inf
from typing import TYPE_CHECKING, Final

from perkey.core.events import DELAY_MAX_S
from perkey.core.states import BUDGET
from perkey.core.work import UNTAGGED, Tags

if TYPE_CHECKING:
    from perkey.core.engine_state import EngineState
    from perkey.core.events import Charged
    from perkey.core.partition import Partition
    from perkey.core.scheduling import Handler
    from perkey.core.work import Work
    from perkey.policies import Budget
    from perkey.types import ErrorInfo

BURST_S = 0.1  # a bucket saves up at most the tokens of this time
ROUNDING = 1e-9
#: most values with separate queues; further ones share one
VALUES_MAX = 1_000
REST: Final = object()

#: the waiting records of a value and a handler, by partition; partitions take turns
Line = dict["Partition", deque["Work"]]


class Bucket:
    """Tokens arrive at a rate and pay for starts; a few are saved up."""

    __slots__ = ("at", "per_s", "tokens")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.tokens = 1.0
        #: time of the last refill
        self.at: float | None = None

    @property
    def most(self) -> float:
        """The most tokens it saves up; at least one."""
        return max(1.0, self.per_s * BURST_S)

    def refill(self, now: float) -> None:
        """Add the tokens of the time that has passed."""
        if self.at is not None:
            self.tokens += (now - self.at) * self.per_s
        self.at = now
        self.tokens = min(self.tokens, self.most)

    def starts(self) -> int:
        """How many starts at one token each it can pay for."""
        return int(self.tokens + ROUNDING)

    def pays(self, cost: float) -> bool:
        """Whether it can pay this cost. A cost above `most` is paid when it is full, as a debt."""
        return self.tokens + ROUNDING >= min(cost, self.most)

    def due(self, cost: float = 1.0) -> float | None:
        """When it can pay this cost; None if it can now, or never will."""
        short = min(cost, self.most) - self.tokens
        if self.at is None or short <= ROUNDING or self.per_s <= 0:
            return None
        return self.at + short / self.per_s

    def pay(self, cost: float) -> None:
        """A call starts."""
        self.tokens -= cost

    def settle(self, extra_cost: float) -> None:
        """A call has cost more than was paid, or less."""
        self.tokens -= extra_cost


class Tenant:
    """The waiting records of one value."""

    __slots__ = ("lines", "used")

    def __init__(self, used: float) -> None:
        #: what it has used, on the scale of `SharedBudget.clock`
        self.used = used
        self.lines: dict[Handler, Line] = {}


class SharedBudget:
    """One budget of a member, and the records that wait for it."""

    def __init__(self, state: EngineState, spec: Budget, handlers: Sequence[Handler]) -> None:
        self._state = state
        self.spec = spec
        self.handlers = handlers
        self.bucket = Bucket(inf if spec.per_s is None else spec.per_s)
        self.limited = spec.per_s is not None
        #: running calls
        self.in_flight = 0
        #: the limit on calls for this member's share
        self.in_flight_max: float = inf if spec.in_flight is None else spec.in_flight
        #: this member's share of the whole budget
        self.share = 1.0
        #: the service asked to start nothing before this time; its error
        self.until = 0.0
        self.asked_by: ErrorInfo | None = None
        #: what the value that started last had used before
        self._clock = 0.0
        #: by value: those that wait, and those that have used more than the clock
        self._tenants: dict[Hashable, Tenant] = {}
        self._forgot_at = -1.0
        #: for each handler, the values with waiting records of it, the one that has used least
        #: first; an entry may be too low
        self._heads: dict[Handler, list[tuple[float, int, Tenant]]] = {
            handler: [] for handler in handlers
        }
        self._order = count()
        #: when each handler had its last turn: equals take turns
        self._turns = dict.fromkeys(handlers, -1)
        #: when something may start next, as of the last check; and why not before ("rate",
        #: "in_flight", "asked" or "share"; empty: it has room, or nothing waits for it)
        self.due: float | None = None
        self.why = ""

    @property
    def per_s(self) -> float | None:
        """This member's share of the rate."""
        return self.bucket.per_s if self.limited else None

    def divide(self, held: int, total: int | None) -> None:
        """Set the share: the member has `held` of `total` partitions; None: not known yet."""
        self.share = held / total if total else 0.0
        if self.spec.per_s is not None:
            self.bucket.refill(self._state.now)
            self.bucket.per_s = self.spec.per_s * self.share
        if self.spec.in_flight is not None:
            # At least one: otherwise its records would never be handled.
            part = floor(self.spec.in_flight * self.share + ROUNDING)
            self.in_flight_max = max(1, part) if held and total else 0

    # -- waiting records ---------------------------------------------------------------------------

    def gather(self, handler: Handler) -> None:
        """Move all ready records into the queues."""
        rotation = handler.rotation
        while rotation:
            partition = rotation.popleft()
            partition.listed = False
            if not partition.gate.reasons:
                for work in partition.lanes.take_for_budget():
                    tenant = self._tenant(_tags(work).budget)
                    line = tenant.lines.get(handler)
                    if line is None:
                        line = tenant.lines[handler] = {}
                        heappush(self._heads[handler], (tenant.used, next(self._order), tenant))
                    line.setdefault(partition, deque()).append(work)

    def _tenant(self, value: Hashable) -> Tenant:
        """The tenant of this value; if there are too many, the shared one."""
        tenants = self._tenants
        tenant = tenants.get(value)
        if tenant is None:
            if len(tenants) >= VALUES_MAX and self._forgot_at != self._clock:
                # Drop values that do not wait and have used no more than others
                self._forgot_at = self._clock
                for other, known in list(tenants.items()):
                    if not known.lines and known.used <= self._clock:
                        del tenants[other]
            value = value if len(tenants) < VALUES_MAX else REST
            tenant = tenants.get(value)
            if tenant is None:
                tenant = tenants[value] = Tenant(self._clock)
        if not tenant.lines:
            tenant.used = max(tenant.used, self._clock)
        return tenant

    def queued(self) -> set[Work]:
        """All records in its queues, for the view."""
        lines = [line for tenant in self._tenants.values() for line in tenant.lines.values()]
        return {work for line in lines for queue in line.values() for work in queue}

    def _head(self, handler: Handler) -> tuple[Tenant, Work] | None:
        """The next record of a handler, from the value that has used least."""
        heap = self._heads[handler]
        while heap:
            used, _, tenant = heap[0]
            if used < tenant.used:
                heapreplace(heap, (tenant.used, next(self._order), tenant))
                continue
            work = self._first(handler, tenant.lines[handler])
            if work is not None:
                return tenant, work
            heappop(heap)
            del tenant.lines[handler]
        return None

    @staticmethod
    def _first(handler: Handler, line: Line) -> Work | None:
        """The next record in a line; drops records that may not start."""
        while line:
            partition, queue = next(iter(line.items()))
            lanes = partition.lanes
            while queue and queue[0].state != BUDGET:
                queue.popleft()  # skipped by a command, or its epoch has ended
            if queue and not partition.gate.reasons:
                return queue[0]
            del line[partition]
            back = []
            for work in queue:  # one that a command took out and let in again is twice in it
                if work.state == BUDGET:
                    partition.lift(work)
                    back.append(work)
            lanes.put_back(back)
            handler.enlist(partition)
        return None

    # -- starting records --------------------------------------------------------------------------

    def start(self, handlers: Sequence[Handler]) -> None:
        """Start records of these handlers, which have room, as far as the budget allows."""
        state = self._state
        self.due, self.why = None, ""
        left = {
            sharer: most
            for sharer in handlers
            if self._heads[sharer] and (most := self._most(sharer))
        }
        if self.limited:
            self.bucket.refill(state.now)
        if left and state.now < self.until:
            self.due, self.why = self.until, "asked"
            return
        works = self._take(left)
        for handler, starting in works.items():
            if handler.limited:
                handler.bucket.pay(len(starting))
            handler.slots.take(len(starting))
            if handler.outages:
                state.outages.began_one_of(handler, starting)
            state.deliveries[handler.index].start(handler, starting)
        for handler in handlers:
            if handler.limited and self._heads[handler] and handler.slots.free > 0:
                self._wake(handler.bucket.due())
        if self._tenants and not any(self._heads.values()):  # nothing waits: all are even
            self._tenants.clear()
            self._clock, self._forgot_at = 0.0, -1.0

    def _most(self, handler: Handler) -> int:
        """How many calls of a handler may start, without regard to the budget."""
        state = self._state
        most = state.outages.most(handler) if handler.outages else handler.slots.free
        if most > 0 and handler.limited:
            most = handler.affordable(state.now, most)
        return max(0, most)

    def _wake(self, at: float | None) -> None:
        if at is not None and (self.due is None or at < self.due):
            self.due = at

    def _take(self, left: dict[Handler, int]) -> dict[Handler, list[Work]]:
        """The records that start now, at most `left` of each handler."""
        works: dict[Handler, list[Work]] = {}
        looked: dict[Partition, None] = {}
        while left and self.in_flight < self.in_flight_max:
            chosen = self._next(left)
            if chosen is None:
                break
            handler, tenant, work = chosen
            cost = _tags(work).cost
            if self.limited and not self.bucket.pays(cost):
                self._wake(self.bucket.due(cost))
                self.why = "rate" if self.share else "share"
                break
            starting = works.setdefault(handler, [])
            partition, line = work.partition, tenant.lines[handler]
            partition.lanes.paid(work)
            queue = line.pop(partition)
            queue.popleft()
            if queue:
                line[partition] = queue
            if not self._goes(handler, work, looked, starting):
                continue
            starting.append(work)
            self._clock = max(self._clock, tenant.used)
            tenant.used = self._clock + cost
            self.bucket.pay(cost)
            self.in_flight += 1
            self._turns[handler] = next(self._order)
            left[handler] -= 1
            if not left[handler]:
                del left[handler]
        if left and self.in_flight >= self.in_flight_max:
            self.why = "in_flight" if self.share else "share"
        return {handler: starting for handler, starting in works.items() if starting}

    def _next(self, left: dict[Handler, int]) -> tuple[Handler, Tenant, Work] | None:
        best = None
        rank = (inf, 0)
        for handler in list(left):
            head = self._head(handler)
            if head is None:
                del left[handler]
            elif (turn := (head[0].used, self._turns[handler])) < rank:
                rank, best = turn, (handler, *head)
        return best

    def _goes(
        self, handler: Handler, work: Work, looked: dict[Partition, None], taken: Sequence[Work]
    ) -> bool:
        """Whether it may start: the map has room, and no outage; otherwise it waits for that."""
        partition = work.partition
        room = work.offset < partition.reach.limit
        if not room and not partition.may_start(work, looked, taken):
            handler.put_far(work)
            return False
        return not handler.outages or self._state.outages.goes(handler, work)

    # -- what calls report -------------------------------------------------------------------------

    def ended(self) -> None:
        """A call is over."""
        self.in_flight -= 1

    def refund(self, work: Work) -> None:
        """Its call did not start."""
        self._settle(work, -_tags(work).cost)

    def charged(self, charge: Charged) -> None:
        """The actual cost of a call is known."""
        work = self._state.find(charge.topic, charge.partition, charge.offset)
        if work is None:
            self._state.count("late_charges")
            return
        before = _tags(work).cost if charge.before is None else charge.before
        self._settle(work, charge.cost - before)

    def _settle(self, work: Work, extra_cost: float) -> None:
        if self.limited:
            self.bucket.settle(extra_cost)
        tenant = self._tenants.get(_tags(work).budget)
        if tenant is not None:
            tenant.used += extra_cost

    def wait(self, seconds: float, error: ErrorInfo) -> None:
        """The service asks its callers to wait for this many seconds."""
        state = self._state
        until = state.now + min(max(0.0, seconds), DELAY_MAX_S)
        if until <= max(self.until, state.now):
            return
        if self.until <= state.now:
            state.count("budget_waits")
            state.note(
                "warning", "the budget waits: the service asks its callers to wait",
                budget=self.spec.name, error=error.line, seconds=round(until - state.now, 3),
            )  # fmt: skip
        self.until, self.asked_by = until, error


def _tags(work: Work) -> Tags:
    return getattr(work, "tags", UNTAGGED)


def budgets_of(state: EngineState) -> list[SharedBudget]:
    """One budget per name; every handler gets its own."""
    named: dict[str, list[Handler]] = {}
    for handler in state.handlers:
        if handler.spec.budget is not None:
            named.setdefault(handler.spec.budget.name, []).append(handler)
    budgets = []
    for users in named.values():
        spec = users[0].spec.budget
        assert spec is not None
        shared = SharedBudget(state, spec, users)
        for handler in users:
            handler.budget = shared
        budgets.append(shared)
    return budgets


def divide(state: EngineState) -> None:
    """Set this member's share of each budget: its share of the partitions of its handlers."""
    for budget in state.budgets:
        held = total = 0
        known = True
        for handler in budget.handlers:
            held_here = sum(partition.handler is handler for partition in state.partitions.values())
            whole = state.totals.get(handler.index, held_here)
            known = known and whole is not None
            held, total = held + held_here, total + max(whole or 0, held_here)
        budget.divide(held, total if known else None)
