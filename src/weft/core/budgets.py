"""Budgets: what several handlers may use together of a service that limits its callers, fairly.

Theory of operation. What a handler with a budget has ready leaves `ready` and waits in a queue of
the budget (`gather`), one for each value of `Budget.by`, handler and partition::

    ready ──gather──► value ──► handler ──► partition ──► records
                        └ the value that has used least goes first; of it handlers and
                          partitions take turns

- Records start while calls are in flight fewer than `in_flight` and the bucket pays for the cost of
  the next one (`start`). One bucket is the mechanism of a budget and of a handler's rate limit.
- Deficit round robin, its quantum being the cost at hand: each value has a number `used`, which
  grows by the cost of what it starts, and the lowest is next; one that comes in begins at what the
  last one had. So of two values that wait, one gets no more than the other but for the cost of a
  record of each, however many records or handlers it has.
- A handler that may start nothing (no slot, paused, its own rate limit) is passed over; its values
  have no credit for that time beyond one record.
- What a record has really cost is settled later (`charged`): the bucket may be in debt, and so is
  the value, until that is paid back.
- A service that asks to wait (`wait`) is obeyed by the whole budget.
- Each member has the share of the budget that it has of the partitions (`divide`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from math import floor, inf
from typing import TYPE_CHECKING, Final

from weft.core.retries import DELAY_MAX_S
from weft.core.work import UNTAGGED, Tags

if TYPE_CHECKING:
    from weft.core.engine_state import EngineState
    from weft.core.events import Charged
    from weft.core.handler import Handler
    from weft.core.partition import Partition
    from weft.core.work import Work
    from weft.policies import Budget
    from weft.types import ErrorInfo

#: so many values have separate queues; those that come in beyond that share one
VALUES_MAX = 1_000
RATE_BURST_S = 0.1  # a bucket saves up at most this much of a second
REST: Final = object()
_ROUNDING = 1e-9

#: the records of a value and a handler that wait, by partition; these take turns
Line = dict["Partition", deque["Work"]]


class Bucket:
    """Tokens that come at a rate and are paid for starts; a few are saved up."""

    __slots__ = ("at", "per_s", "tokens")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.tokens = 1.0
        #: when it was refilled last
        self.at: float | None = None

    @property
    def most(self) -> float:
        """What it saves up; one at least."""
        return max(1.0, self.per_s * RATE_BURST_S)

    def refill(self, now: float) -> None:
        """Time has passed."""
        if self.at is not None:
            self.tokens += (now - self.at) * self.per_s
        self.at = now
        self.tokens = min(self.tokens, self.most)

    def starts(self) -> int:
        """How many starts at a token each it pays for."""
        return int(self.tokens + _ROUNDING)

    def pays(self, cost: float) -> bool:
        """It pays for that; for what is more than it saves up when it is full, by a debt."""
        return self.tokens + _ROUNDING >= min(cost, self.most)

    def due(self, cost: float = 1.0) -> float | None:
        """When it will pay for that, if it does not yet; None: it does, or never will."""
        short = min(cost, self.most) - self.tokens
        if self.at is None or short <= _ROUNDING or self.per_s <= 0:
            return None
        return self.at + short / self.per_s


class Flow:
    """What waits of one value."""

    __slots__ = ("lines", "used")

    def __init__(self, used: float) -> None:
        #: what it has used, on the scale of `SharedBudget.clock`
        self.used = used
        self.lines: dict[Handler, Line] = {}


class SharedBudget:
    """One budget of a member, and what waits for it."""

    def __init__(self, state: EngineState, spec: Budget, handlers: Sequence[Handler]) -> None:
        self._state = state
        self.spec = spec
        self.handlers = handlers
        self.bucket = Bucket(inf if spec.per_s is None else spec.per_s)
        self.limited = spec.per_s is not None
        #: calls that run
        self.in_flight = 0
        #: at most so many, of this member's share
        self.in_flight_max: float = inf if spec.in_flight is None else spec.in_flight
        #: of all that the budget allows
        self.share = 1.0
        #: the service asked to start nothing before; with this error
        self.until = 0.0
        self.asked_by: ErrorInfo | None = None
        #: what the value that started last had used before
        self._clock = 0.0
        #: by value: those that wait, and those that have used more than the clock
        self._flows: dict[Hashable, Flow] = {}
        self._forgot_at = -1.0
        #: of each handler the values that have a line of it, the one that has used least first; an
        #: entry may be too early
        self._heads: dict[Handler, list[tuple[float, int, Flow]]] = {one: [] for one in handlers}
        self._order = count()
        #: when each handler had its last turn: equals take turns
        self._turns = dict.fromkeys(handlers, -1)
        #: when something may start next, as of the last look; and why not before ("rate",
        #: "in_flight", "asked" or "share"; empty: it has room, or nothing waits for it)
        self.due: float | None = None
        self.why = ""

    @property
    def per_s(self) -> float | None:
        """This member's share of the rate."""
        return self.bucket.per_s if self.limited else None

    def divide(self, held: int, total: int | None) -> None:
        """The member holds so many of all partitions; None: no one knows yet how many there are."""
        self.share = held / total if total else 0.0
        if self.spec.per_s is not None:
            self.bucket.refill(self._state.now)
            self.bucket.per_s = self.spec.per_s * self.share
        if self.spec.in_flight is not None:
            # One at least: else what it holds would never be handled.
            part = floor(self.spec.in_flight * self.share + _ROUNDING)
            self.in_flight_max = max(1, part) if held and total else 0

    # -- what waits --------------------------------------------------------------------------------

    def gather(self, handler: Handler) -> None:
        """All that is ready comes into the queues."""
        rotation = handler.rotation
        while rotation:
            partition = rotation.popleft()
            partition.listed = False
            if partition.startable:
                lanes = partition.lanes
                for work in lanes.take(len(lanes.ready)):
                    lanes.unpaid[work.record[2]] = work
                    self._line(handler, work).setdefault(partition, deque()).append(work)

    def _line(self, handler: Handler, work: Work) -> Line:
        flow = self._flow(_tags(work).budget)
        line = flow.lines.get(handler)
        if line is None:
            line = flow.lines[handler] = {}
            heappush(self._heads[handler], (flow.used, next(self._order), flow))
        return line

    def _flow(self, value: Hashable) -> Flow:
        """Of this value; where there are too many, of all that have none."""
        flows = self._flows
        flow = flows.get(value)
        if flow is None:
            if len(flows) >= VALUES_MAX:
                self._forget()
            value = value if len(flows) < VALUES_MAX else REST
            flow = flows.get(value)
            if flow is None:
                flow = flows[value] = Flow(self._clock)
        if not flow.lines:
            flow.used = max(flow.used, self._clock)
        return flow

    def _forget(self) -> None:
        """Values that do not wait, and have used no more than others."""
        clock = self._clock
        if self._forgot_at != clock:
            self._forgot_at = clock
            for value, flow in list(self._flows.items()):
                if not flow.lines and flow.used <= clock:
                    del self._flows[value]

    def queued(self) -> set[Work]:
        """All that is in its queues; the view."""
        lines = [line for flow in self._flows.values() for line in flow.lines.values()]
        return {work for line in lines for queue in line.values() for work in queue}

    def _head(self, handler: Handler) -> tuple[Flow, Work] | None:
        """The next record of a handler, of the value that has used least."""
        heap = self._heads[handler]
        while heap:
            used, _, flow = heap[0]
            if used < flow.used:
                heapreplace(heap, (flow.used, next(self._order), flow))
                continue
            work = self._first(handler, flow.lines[handler])
            if work is not None:
                return flow, work
            heappop(heap)
            del flow.lines[handler]
        return None

    @staticmethod
    def _first(handler: Handler, line: Line) -> Work | None:
        """What is next in a line; what may not start leaves it on the way."""
        while line:
            partition, queue = next(iter(line.items()))
            lanes = partition.lanes
            while queue and not lanes.is_unpaid(queue[0]):
                queue.popleft()  # by a command, or its epoch has ended
            if queue and partition.startable:
                return queue[0]
            del line[partition]
            back = [work for work in queue if lanes.is_unpaid(work)]
            for work in back:
                del lanes.unpaid[work.record[2]]
            lanes.put_back(back)
            handler.enlist(partition)
        return None

    # -- what starts -------------------------------------------------------------------------------

    def start(self, handlers: Sequence[Handler]) -> None:
        """Start what may: of these handlers, which may start something."""
        state = self._state
        self.due, self.why = None, ""
        left = {one: most for one in handlers if self._heads[one] and (most := self._most(one))}
        if self.limited:
            self.bucket.refill(state.now)
        if left and state.now < self.until:
            self.due, self.why = self.until, "asked"
            return
        works = self._take(left)
        for handler, some in works.items():
            if handler.limited:
                handler.bucket.tokens -= len(some)
            handler.slots.take(len(some))
            if handler.outages:
                state.outages.began_one_of(handler, some)
            state.deliveries[handler.index].start(handler, some)
        for handler in handlers:
            if handler.limited and self._heads[handler] and handler.slots.free > 0:
                self._wake(handler.bucket.due())
        if self._flows and not any(self._heads.values()):  # nothing waits: all are even
            self._flows.clear()
            self._clock, self._forgot_at = 0.0, -1.0

    def _most(self, handler: Handler) -> int:
        """So many calls of a handler may start, but for the budget."""
        state = self._state
        most = state.outages.most(handler) if handler.outages else handler.slots.free
        if most > 0 and handler.limited:
            most = handler.affordable(state.now, most)
        return max(0, most)

    def _wake(self, at: float | None) -> None:
        if at is not None and (self.due is None or at < self.due):
            self.due = at

    def _take(self, left: dict[Handler, int]) -> dict[Handler, list[Work]]:
        """What starts now, up to so many of each handler."""
        works: dict[Handler, list[Work]] = {}
        looked: dict[Partition, None] = {}
        while left and self.in_flight < self.in_flight_max:
            found = self._next(left)
            if found is None:
                break
            handler, flow, work = found
            cost = _tags(work).cost
            if self.limited and not self.bucket.pays(cost):
                self._wake(self.bucket.due(cost))
                self.why = "rate" if self.share else "share"
                break
            some = works.setdefault(handler, [])
            self._leave(handler, flow, work)
            if not self._goes(handler, work, looked, some):
                continue
            some.append(work)
            self._clock = max(self._clock, flow.used)
            flow.used = self._clock + cost
            self.bucket.tokens -= cost
            self.in_flight += 1
            self._turns[handler] = next(self._order)
            left[handler] -= 1
            if not left[handler]:
                del left[handler]
        if left and self.in_flight >= self.in_flight_max:
            self.why = "in_flight" if self.share else "share"
        return {handler: some for handler, some in works.items() if some}

    def _next(self, left: dict[Handler, int]) -> tuple[Handler, Flow, Work] | None:
        found = None
        rank = (inf, 0)
        for handler in list(left):
            head = self._head(handler)
            if head is None:
                del left[handler]
            elif (mine := (head[0].used, self._turns[handler])) < rank:
                rank, found = mine, (handler, *head)
        return found

    @staticmethod
    def _leave(handler: Handler, flow: Flow, work: Work) -> None:
        partition, line = work.partition, flow.lines[handler]
        del partition.lanes.unpaid[work.record[2]]
        queue = line.pop(partition)
        queue.popleft()
        if queue:
            line[partition] = queue

    def _goes(
        self, handler: Handler, work: Work, looked: dict[Partition, None], taken: Sequence[Work]
    ) -> bool:
        """The map has room for it, and what it calls is not away; else it waits for that."""
        partition = work.partition
        room = work.record[2] < partition.reach.limit
        if not room and not partition.may_start(work, looked, taken):
            handler.put_far(work)
            return False
        return not handler.outages or self._state.outages.goes(handler, work)

    # -- what calls report -------------------------------------------------------------------------

    def ended(self) -> None:
        """A call is over."""
        self.in_flight -= 1

    def refund(self, work: Work) -> None:
        """Its call did not begin."""
        self._settle(work, -_tags(work).cost)

    def charged(self, one: Charged) -> None:
        """What a call really costs is known."""
        work = self._state.find(one.topic, one.partition, one.offset)
        if work is None:
            self._state.count("late_charges")
            return
        before = _tags(work).cost if one.before is None else one.before
        self._settle(work, one.cost - before)

    def _settle(self, work: Work, more: float) -> None:
        if self.limited:
            self.bucket.tokens -= more
        flow = self._flows.get(_tags(work).budget)
        if flow is not None:
            flow.used += more

    def wait(self, seconds: float, error: ErrorInfo) -> None:
        """The service asks its callers to wait so long."""
        state = self._state
        until = state.now + min(max(0.0, seconds), DELAY_MAX_S)
        if until <= max(self.until, state.now):
            return
        if self.until <= state.now:
            state.count("budget_waits")
            state.note(
                "warning", "the budget waits: the service asks its callers to",
                budget=self.spec.name, error=error.line, seconds=round(until - state.now, 3),
            )  # fmt: skip
        self.until, self.asked_by = until, error


def _tags(work: Work) -> Tags:
    return getattr(work, "tags", UNTAGGED)


def budgets_of(state: EngineState, handlers: Sequence[Handler]) -> list[SharedBudget]:
    """One for each name; every handler knows its own."""
    named: dict[str, list[Handler]] = {}
    for handler in handlers:
        if handler.spec.budget is not None:
            named.setdefault(handler.spec.budget.name, []).append(handler)
    found = []
    for users in named.values():
        spec = users[0].spec.budget
        assert spec is not None
        shared = SharedBudget(state, spec, users)
        for handler in users:
            handler.budget = shared
        found.append(shared)
    return found


def divide(state: EngineState, totals: Mapping[int, int | None]) -> None:
    """Give this member its share of each budget: what it holds of the partitions of its handlers.

    `totals`: of handlers, how many partitions all their topics have; None where no one knows yet.
    Of a handler that is not in it the member has all.
    """
    for budget in state.budgets:
        held = total = 0
        known = True
        for handler in budget.handlers:
            mine = sum(one.handler is handler for one in state.partitions.values())
            whole = totals.get(handler.index, mine)
            known = known and whole is not None
            held, total = held + mine, total + max(whole or 0, mine)
        budget.divide(held, total if known else None)
