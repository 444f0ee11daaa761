"""Handlers that share a budget, and whether a member keeps that (S17)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import floor, inf
from typing import TYPE_CHECKING

from perkey.core.events import ALL_STARTS_PER_S, AT_LEAST_ONCE, Charged, Ended, Failed, Unhandled
from perkey.core.partition import Partition
from perkey.core.work import Tags, Work
from perkey.policies import Budget
from perkey.types import Record
from simulators.core.dice import Dice
from simulators.core.violation import require

if TYPE_CHECKING:
    from simulators.core.ledger import Life
    from simulators.core.member import Call, Member
    from simulators.core.world import World

SLACK = 1e-6
COSTS = (0.5, 1.0, 1.0, 4.0)
COST_MAX = max(COSTS)
BURST_S = 0.1
#: two values' costs, and what one may have used before it waited
UNFAIR = 3 * COST_MAX + SLACK


def tags_of(partition: Partition, records: Sequence[Record]) -> list[Tags]:
    """What functions of the user say of records that come in."""
    budget = partition.handler.spec.budget
    by_key = budget is not None and budget.by is not None
    return [
        Tags(record.key, record.key if by_key else None, _cost(budget, record.offset))
        for record in records
    ]


def _cost(budget: Budget | None, offset: int) -> float:
    return 1.0 if budget is None else COSTS[offset % len(COSTS)]


class Purse:
    """One budget of a member, as it must be by what is seen from outside."""

    def __init__(self, spec: Budget, handlers: Sequence[int], *, fair: bool, now: float) -> None:
        self.spec, self.handlers = spec, handlers
        #: nothing but the budget decides who starts
        self.fair = fair
        self.until = 0.0
        self.in_flight_max: float = 0
        #: the rate from that time on
        self.rates: list[tuple[float, float]] = [(now, 0.0)]
        #: what was charged, and when
        self.charges: list[tuple[float, float]] = []
        self.tokens, self.at = 1.0, now
        #: what each value has used, and had when it began to wait
        self.used: defaultdict[Hashable, float] = defaultdict(float)
        self.since: dict[Hashable, dict[Hashable, float]] = {}
        #: calls that have reported what they cost
        self.settled: dict[Call, float] = {}

    @property
    def most(self) -> float:
        """What may be saved up."""
        return max(1.0, self.rates[-1][1] * BURST_S)

    def refill(self, now: float) -> None:
        """Time has passed."""
        self.tokens = min(self.tokens + (now - self.at) * self.rates[-1][1], self.most)
        self.at = now

    def charge(self, now: float, value: Hashable, cost: float) -> None:
        """So much was used, or given back."""
        self.refill(now)
        self.tokens -= cost
        self.charges.append((now, cost))
        self.used[value] += cost

    def divide(self, now: float, share: float) -> None:
        """The member has this share."""
        self.refill(now)
        self.rates.append((now, (self.spec.per_s or 0.0) * share))
        count = self.spec.in_flight
        most = inf if count is None else max(1, floor(count * share + 1e-9))
        self.in_flight_max = most if share else 0

    def check_window(self, now: float, cost: float) -> None:
        """Of the last second no more was used than came in, and a burst or the last record."""
        if self.spec.per_s is None:
            return
        self.charges = [one for one in self.charges if one[0] > now - 1.0]
        ends = [*(at for at, _ in self.rates[1:]), now]
        came = burst = 0.0
        for (at, rate), end in zip(self.rates, ends, strict=True):
            if end >= now - 1.0:
                came += max(0.0, end - max(at, now - 1.0)) * rate
                burst = max(burst, rate * BURST_S, 1.0)
        used = sum(amount for _, amount in self.charges)
        told = f"{used} used in a second, {came} came in"
        require(used <= came + max(burst, cost) + SLACK, "S17", told)


def purses_of(member: Member) -> dict[str, Purse]:
    """Its budgets, while it holds nothing; it does not know yet how many partitions there are."""
    world, found = member.world, {}
    named: dict[str, list[int]] = {}
    for index, spec in enumerate(world.setup.specs):
        if spec.budget is not None:
            named.setdefault(spec.budget.name, []).append(index)
    for name, handlers in named.items():
        specs = [world.setup.specs[index] for index in handlers]
        fair = all(
            spec.concurrency >= 100
            and spec.rate_limit_per_s == ALL_STARTS_PER_S
            and spec.delivery == AT_LEAST_ONCE
            for spec in specs
        )
        fair = fair and not any(action == "charge" for action in _actions(member))
        assert specs[0].budget is not None
        found[name] = Purse(specs[0].budget, handlers, fair=fair, now=world.now)
    if found:
        member.engine.totals_known(world.now, dict.fromkeys(range(len(world.setup.specs))))
    return found


def _actions(member: Member) -> list[str]:
    """What may happen at all."""
    last, found = 0.0, []
    for end, name in member.world.setup.ends:
        if end > last:
            found.append(name)
        last = end
    return found


def known(member: Member) -> None:
    """It has a partition, and knows how many there are."""
    setup = member.world.setup
    if member.budgets:
        totals = dict.fromkeys(range(len(setup.specs)), setup.partitions)
        member.engine.totals_known(member.world.now, totals)
    divide(member)


def divide(member: Member) -> None:
    """It holds other partitions than before."""
    setup, now = member.world.setup, member.world.now
    for purse in member.budgets.values():
        held = sum(part.handler.index in purse.handlers for part in member.parts.values())
        purse.divide(now, held / (setup.partitions * len(purse.handlers)))


def _purse(member: Member, work: Work) -> Purse | None:
    budget = work.partition.handler.spec.budget
    return None if budget is None else member.budgets[budget.name]


def _value(purse: Purse, work: Work) -> Hashable:
    return None if purse.spec.by is None else work.record.key


def begins(member: Member, works: Sequence[Work]) -> None:
    """A call is made: the budget must have had room for it."""
    work, now = works[0], member.world.now
    purse = _purse(member, work)
    if purse is None:
        return
    cost = _cost(purse.spec, work.record.offset)
    calls = sum(call.handler in purse.handlers for call in member.calls)
    told = f"{work!r} is call {calls} of {purse.in_flight_max}"
    require(calls <= purse.in_flight_max, "S17", told)
    asked = f"{work!r} starts before {purse.until:.3f}, as the service asks"
    require(now >= purse.until - SLACK, "S17", asked)
    purse.charge(now, _value(purse, work), cost)
    purse.check_window(now, cost)
    member.oracle.stats["paid for"] += 1
    _look(member, purse)


def ended(member: Member, work: Work, ending: Ended | None) -> None:
    """A call has ended, in this way; None: it returned."""
    purse, now = _purse(member, work), member.world.now
    if purse is None:
        return
    cost = _cost(purse.spec, work.record.offset)
    if isinstance(ending, Unhandled):
        purse.charge(now, _value(purse, work), -cost)
    elif isinstance(ending, Failed) and ending.budget_s is not None:
        purse.until = max(purse.until, now + ending.budget_s)
        member.oracle.stats["asked to wait"] += 1


def charge(world: World, member: Member, dice: Dice) -> None:
    """A handler finds out what its call really costs."""
    calls = [
        call
        for call in member.calls
        if _purse(member, call.first) is not None
        and world.oracle.lives[call.first.partition].state != "closed"
    ]
    if not calls:
        return
    call = dice.pick(calls)
    record, purse = call.first.record, _purse(member, call.first)
    assert purse is not None
    before, cost = purse.settled.get(call), dice.pick((0.0, 0.5, 3.0, 12.0))
    purse.settled[call] = cost
    known = _cost(purse.spec, record.offset) if before is None else before
    purse.charge(world.now, _value(purse, call.first), cost - known)
    world.oracle.stats["settled"] += 1
    place = (record.topic, record.partition, record.offset)
    member.engine.charged(world.now, [Charged(call.handler, *place, cost, before)])
    member.perform()


# -- who waits -------------------------------------------------------------------------------------


def has_room(world: World, member: Member, life: Life) -> bool:
    """The budget of its handler, if any, lets any record start; whoever waits for it is next."""
    budget = life.spec.budget
    if budget is None:
        return True
    purse = member.budgets[budget.name]
    _look(member, purse)
    _check_shares(member, purse)
    purse.refill(world.now)
    calls = sum(call.handler in purse.handlers for call in member.calls)
    paid = budget.per_s is None or purse.tokens >= min(COST_MAX, purse.most) - SLACK
    free = calls < purse.in_flight_max and world.now >= purse.until
    world.oracle.stats["room in a budget"] += paid and free
    return paid and free


def _look(member: Member, purse: Purse) -> None:
    """Which values wait, and what all had used when they began to."""
    if not purse.fair or member.user_paused or member.held or member.stop_at is not None:
        purse.since.clear()
        return
    waiting = _waiting(member, purse)
    for value in list(purse.since):
        if value not in waiting:
            del purse.since[value]
    for value in waiting:
        purse.since.setdefault(value, dict(purse.used))


def _check_shares(member: Member, purse: Purse) -> None:
    """None got much more than one that waited all the time."""
    if member.world.now < purse.until:
        return
    for value, before in purse.since.items():
        own = purse.used[value] - before.get(value, 0.0)
        for other, used in purse.used.items():
            more = used - before.get(other, 0.0) - own
            told = f"{other!r} used {more} more than {value!r}, which waited all the time"
            require(more <= UNFAIR, "S17", told)
            member.oracle.stats["shares compared"] += other != value


def _waiting(member: Member, purse: Purse) -> set[Hashable]:
    """Values with a record that the budget alone keeps from starting."""
    found: set[Hashable] = set()
    now, oracle = member.world.now, member.oracle
    for partition in member.parts.values():
        life = oracle.lives[partition]
        if partition.handler.index not in purse.handlers or life.state != "open":
            continue
        for offset, since in life.startable.items():
            key = life.source.keys[offset]
            value = None if purse.spec.by is None else key
            if value in found or since > now or _is_elsewhere(life, offset):
                continue
            lane = life.source.lane(offset)
            runs = (member.name, life.source.tp, lane) in oracle.lanes_running
            if not runs and life.next_of(lane) == offset:
                found.add(value)
    return found


def _is_elsewhere(life: Life, offset: int) -> bool:
    places = (
        life.running, life.sending, life.passed, life.parked, life.asked, life.claimable,
        life.dead_letters, life.given_up, life.known,
    )  # fmt: skip
    return any(offset in place for place in places) or life.away(offset)
