"""What a driver lends, in any order of reports, losses and deaths: never more than there is."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perkey.core.leases import LEASE_S, BudgetLease, Lent, Lessor
from perkey.policies import Budget

RELAXED = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MEMBERS = 3
steps = st.lists(
    st.tuples(
        st.sampled_from(["work", "serve", "serve", "serve", "end", "report", "deal", "take",
                         "lose", "gone", "die", "time"]),
        st.integers(0, MEMBERS - 1),
        st.integers(1, 9),
    ),
    min_size=10,
    max_size=120,
)  # fmt: skip


class Member:
    """One life: what waits and runs, its lease, and what is on its way to it."""

    def __init__(self, budget: Budget, name: str) -> None:
        self.lease, self.name = BudgetLease(budget), name
        self.waiting = self.running = 0
        self.coming: list[Lent] = []


class World:
    """A driver and its members."""

    def __init__(self, per_s: float | None, in_flight: int | None) -> None:
        self.budget = Budget("b", per_s, in_flight)
        self.lessor = Lessor("b", per_s, in_flight, 0.0)
        self.now = 0.0
        self.lives = 0
        self.members = [self.born() for _ in range(MEMBERS)]
        self.starts: list[float] = []

    def born(self) -> Member:
        self.lives += 1
        return Member(self.budget, f"life {self.lives}")

    def do(self, what: str, index: int, count: int) -> None:
        """One step."""
        member = self.members[index]
        if what == "work":
            member.waiting += count
        elif what == "serve":
            self.report(member)
            self.deal()
            while member.coming:
                member.lease.lent(self.now, member.coming.pop(0))
            self.start(member)
        elif what == "end":
            member.running = max(0, member.running - count)
        elif what == "report":
            self.report(member)
        elif what == "deal":
            self.deal()
        elif what == "take" and member.coming:
            member.lease.lent(self.now, member.coming.pop(0))
        elif what == "lose":
            member.coming.clear()
        elif what == "gone":
            member.coming.clear()
            self.lessor.gone(self.now, member.name)
        elif what == "die":
            self.lessor.gone(self.now, member.name)
            self.lessor.over(self.now, member.name)
            self.members[index] = self.born()
        elif what == "time":
            self.now += count / 8

    def start(self, member: Member) -> None:
        """All that may."""
        lease = member.lease
        while member.waiting:
            lease.refill(self.now)
            pays = self.budget.per_s is None or lease.pays(1.0)
            if not pays or member.running >= lease.calls_max(self.now, member.running):
                lease.lacks(None if pays else 1.0)
                return
            lease.pay(1.0)
            member.waiting -= 1
            member.running += 1
            self.starts.append(self.now)

    def report(self, member: Member) -> None:
        state = {"in_flight": member.running, "waiting": member.waiting, "wait_s": 0.0}
        report = member.lease.report(self.now, **state)
        if report is not None:
            self.lessor.received(self.now, member.name, report._replace(budget="b"))

    def deal(self) -> None:
        for name, lent in self.lessor.deal(self.now):
            (member,) = [one for one in self.members if one.name == name]
            assert lent.tokens >= 0
            assert lent.calls >= 0
            member.coming.append(lent)

    def check(self) -> None:
        """Of all members together."""
        running = sum(member.running for member in self.members)
        if self.budget.in_flight is not None:
            assert running <= self.budget.in_flight
        if self.budget.per_s is not None:
            rate = self.budget.per_s
            recent = [at for at in self.starts if at > self.now - 1.0]
            assert len(recent) <= rate * (1.0 + LEASE_S) + 1.0 + 1e-6


@RELAXED
@given(
    steps,
    st.sampled_from([(None, 1), (None, 5), (2.0, None), (8.0, 2), (40.0, None), (0.5, 1)]),
)
def test_no_more_than_the_numbers(script, numbers):
    """Calls never, starts never by more than one lease in any second; and all is lent in the end."""
    world = World(*numbers)
    for step in script:
        world.do(*step)
        world.check()
    for member in world.members:
        member.waiting = min(member.waiting, 3)
    # When nothing is lost any more, everything that waits starts.
    for _ in range(400):
        for index, member in enumerate(world.members):
            member.running = 0
            world.start(member)
            world.do("serve", index, 0)
            world.check()
        world.now += 0.25
    assert [member.waiting for member in world.members] == [0] * MEMBERS
