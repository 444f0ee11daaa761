"""Budgets that a driver lends to its members: lines that break, members that die (S17)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perkey.core.leases import LEASE_S, LeaseReport, Lent, Lessor
from simulators.core.violation import require

if TYPE_CHECKING:
    from perkey.policies import Budget
    from simulators.core.dice import Dice
    from simulators.core.member import Member
    from simulators.core.world import World

#: the budget whose calls all cost the same
EVEN = "even"
#: a line that broke is there again after so long; a member without one leaves soon after
BROKEN_S = 5.0
_SLACK = 1e-6


class Line:
    """Between one life of a member and the driver; each way in order."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.up: deque[LeaseReport] = deque()
        self.down: deque[Lent] = deque()
        self.broken_at: float | None = None


class Lending:
    """The driver, and what a service has seen of its budget."""

    def __init__(self, spec: Budget, now: float) -> None:
        self.spec = spec
        self.lessor = Lessor(spec.name, spec.per_s, spec.in_flight, now)
        self.lines: dict[str, Line] = {}
        #: processes that have ended, and the driver does not know it yet
        self.ended: list[str] = []
        #: what started, and when
        self.starts: list[tuple[float, float]] = []

    def joined(self, member: Member) -> None:
        """A member starts, with nothing."""
        self.lines[member.name] = Line(member)
        member.engine.lease_budgets(member.world.now)

    def left(self, member: Member) -> None:
        """Its process has ended, and its calls."""
        self.cut(member.name, member.world.now)
        del self.lines[member.name]
        self.ended.append(member.name)

    def cut(self, name: str, now: float) -> None:
        """What is on its way is lost."""
        line = self.lines[name]
        line.up.clear()
        line.down.clear()
        line.broken_at = now
        self.lessor.gone(now, name)

    def paid(self, now: float, cost: float) -> None:
        """A call starts, or its start is taken back."""
        self.starts = [one for one in self.starts if one[0] > now - 1.0]
        self.starts.append((now, cost))
        rate = self.spec.per_s
        if rate is None:
            return
        used = sum(cost for _, cost in self.starts)
        lease = rate * LEASE_S + 1.0
        require(used <= rate + lease + _SLACK, "S17", f"{used} used in a second of all members")

    # -- messages ----------------------------------------------------------------------------------

    def report(self, name: str, now: float) -> None:
        """The member reports; without a line no one hears it."""
        line = self.lines[name]
        reports = line.member.engine.lease_reports(now)
        if line.broken_at is None:
            line.up.extend(reports)

    def hear(self, name: str, now: float) -> None:
        """The driver gets a report."""
        line = self.lines[name]
        if line.up:
            self.lessor.received(now, name, line.up.popleft())

    def deal(self, now: float) -> None:
        """The driver lends."""
        for name, lent in self.lessor.deal(now):
            if name in self.lines and self.lines[name].broken_at is None:
                self.lines[name].down.append(lent)

    def lend(self, name: str, now: float) -> None:
        """The member gets what was lent."""
        line = self.lines[name]
        if line.down:
            line.member.engine.lent(now, [line.down.popleft()])
            line.member.oracle.stats["lent"] += 1
            line.member.perform()

    def look(self, now: float) -> None:
        """Lines come back."""
        for line in self.lines.values():
            if line.broken_at is not None and now > line.broken_at + BROKEN_S:
                line.broken_at = None

    def check(self, handlers: Sequence[int]) -> None:
        """A call begins: of all members no more run than the budget allows."""
        calls = sum(
            call.handler in handlers for line in self.lines.values() for call in line.member.calls
        )
        most = self.spec.in_flight
        told = f"{calls} calls of all members, {most} are allowed"
        require(most is None or calls <= most, "S17", told)


def exchange(world: World, dice: Dice) -> None:
    """Something happens between a member and its driver."""
    lending, now = world.lending, world.now
    if lending is None or not lending.lines:
        return
    name = dice.pick(list(lending.lines))
    kind = dice.roll()
    if kind < 0.03:
        world.oracle.stats["lines cut"] += 1
        lending.cut(name, now)
    elif kind < 0.08:
        lending.lines[name].broken_at = None
    elif kind < 0.12 and lending.ended:
        lending.lessor.over(now, lending.ended.pop(0))
    elif kind < 0.4:
        lending.report(name, now)
    elif kind < 0.6:
        lending.hear(name, now)
    elif kind < 0.75:
        lending.deal(now)
    else:
        lending.lend(name, now)


def serve(world: World) -> None:
    """All of it in one go: everyone reports, then the driver lends."""
    lending, now = world.lending, world.now
    if lending is None:
        return
    while lending.ended:
        lending.lessor.over(now, lending.ended.pop())
    for name, line in lending.lines.items():
        line.broken_at = None
        lending.report(name, now)
        while line.up:
            lending.hear(name, now)
    lending.deal(now)
    for name, line in list(lending.lines.items()):
        while line.down:
            lending.lend(name, now)
