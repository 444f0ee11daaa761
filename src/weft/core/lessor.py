"""The driver's side of leases: lends one budget of a fleet to its members by their demand.

Theory of operation. The total that is lent never exceeds the budget::

    tokens    free + lent <= LEASE_S of the rate and one    free grows at the rate
    calls     the parts of all members <= in_flight

- What a member reports as spent was lent to it, and what it no longer keeps is free again. So no
  more starts in any second than the tokens of that second, plus what was lent before: one lease.
- Members take turns: each gets what its next record needs, the one that was served longest ago
  first; if that cannot be paid for yet, no one is served before. The rest is divided; what one
  member does not need goes to the others.
- Lent calls stay with a member while they run. If others wait for them, a member with more than its
  part returns some as calls end; with fewer calls than members they are reassigned after TENURE_S.
- A member that is silent keeps its tokens until its lease has expired; then they count as spent.
  Its calls may still run, so they stay reserved: until it reports again, or its run is surely over
  (`over`: reported, or its process has ended), or its connection has been gone for CALLS_OVER_S. A
  member without a connection to its driver finishes running calls and leaves long before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from weft.core.bucket import ROUNDING
from weft.core.leases import VALID_S, LeaseReport, Lent

#: the part of the rate that is lent at a time, to all members together
LEASE_S = 0.5
#: the driver waits so much longer than VALID_S: clocks differ
MARGIN_S = 0.5
#: a member keeps a call for so long if there are fewer calls than members
TENURE_S = 1.0
#: after so long without a connection a member has ended
CALLS_OVER_S = 60.0


@dataclass(slots=True, eq=False)
class _Borrower:
    """One run of a member."""

    reported_at: float
    report: LeaseReport
    #: lent and not in a report yet
    under_way: deque[Lent] = field(default_factory=deque)
    lents: int = 0
    answered: bool = True
    #: its tokens when its lease expired: they count as spent
    owed: float = 0.0
    #: its connection has ended
    gone_at: float | None = None
    #: it was asked to return calls, down to this number
    keep_sent: int | None = None
    #: when it was last served, in order; and when it got calls
    turn: int = 0
    calls_turn: int = 0
    calls_at: float = -inf
    want: float = 0.0

    @property
    def tokens(self) -> float:
        """The most tokens that it can have."""
        return self.report.tokens + sum(lent.tokens for lent in self.under_way)

    @property
    def calls(self) -> int:
        """The most calls that it can have."""
        return self.report.calls + sum(lent.calls for lent in self.under_way)

    def is_silent(self, now: float) -> bool:
        """Whether its lease has expired."""
        return now >= self.reported_at + VALID_S + MARGIN_S

    def take_tokens(self) -> None:
        """It can use none of them any more; calls that it started with them may run."""
        self.owed, self.want = self.owed + self.tokens, 0.0
        self.report = self.report._replace(tokens=0.0)
        self.under_way = deque(lent._replace(tokens=0.0) for lent in self.under_way)


class Lessor:
    """One budget of a fleet. Takes events, returns messages to send."""

    def __init__(self, name: str, per_s: float | None, in_flight: int | None, now: float) -> None:
        self.name, self.per_s, self.in_flight = name, per_s, in_flight
        #: limit of tokens that are lent or saved up
        self._lease = (per_s or 0.0) * LEASE_S + 1.0
        self.free = 1.0
        self._at = now
        self._until = 0.0
        self._turns = count(1)
        #: by run of a member
        self._borrowers: dict[str, _Borrower] = {}

    # -- events ------------------------------------------------------------------------------------

    def received(self, now: float, life: str, report: LeaseReport) -> None:
        """A member reports."""
        self._pass(now)
        one = self._borrowers.get(life)
        if one is None:
            # What it spent before it was forgotten was counted as spent then.
            nothing = LeaseReport(self.name, 0, 0, 0, 0.0, report.spent, 0.0, 0.0, 0, 0, 0.0)
            one = self._borrowers[life] = _Borrower(now, nothing)
        if report.number <= one.report.number:
            return
        before = one.tokens + one.owed
        one.under_way = deque(
            lent
            for lent in one.under_way
            if lent.number > report.seen and lent.answers > report.lapsed
        )
        spent = report.spent - one.report.spent
        one.report, one.reported_at, one.gone_at, one.owed = report, now, None, 0.0
        one.want, one.answered = report.want, False
        self.free += before - one.tokens - spent
        self._cut()
        if report.wait_s > 0:
            self._until = max(self._until, now + report.wait_s)

    def gone(self, now: float, life: str) -> None:
        """Its connection has ended."""
        one = self._borrowers.get(life)
        if one is not None:
            one.gone_at, one.want = now, 0.0

    def over(self, now: float, life: str) -> None:
        """Its run has ended, and with it every call."""
        self._pass(now)
        self._borrowers.pop(life, None)

    # -- what to do --------------------------------------------------------------------------------

    def contended(self, life: str) -> bool:
        """Whether others wait for tokens: then these are divided in rounds."""
        return any(one.want > 0 for name, one in self._borrowers.items() if name != life)

    def knows(self, life: str) -> bool:
        """Whether something may be lent to it."""
        return life in self._borrowers

    def held_by(self, life: str) -> int:
        """How many calls are lent to it."""
        one = self._borrowers.get(life)
        return 0 if one is None else one.calls

    @property
    def busy(self) -> bool:
        """Whether there is a member to serve, or to wait for."""
        return any(not one.answered or one.want or one.calls for one in self._borrowers.values())

    def deal(self, now: float) -> list[tuple[str, Lent]]:
        """Lend what is available; returns what to send to each."""
        self._pass(now)
        active = {
            life: one
            for life, one in self._borrowers.items()
            if one.gone_at is None and not one.is_silent(now)
        }
        everyone = list(active.values())
        open_now = now >= self._until
        tokens = self._share_tokens(everyone) if open_now and self.per_s is not None else {}
        calls = self._share_calls(now, everyone) if self.in_flight is not None else {}
        found = []
        for life, one in active.items():
            more, keep = calls.get(one, (0, None))
            some = tokens.get(one, 0.0)
            if one.answered and some <= 0 and more <= 0 and keep == one.keep_sent:
                continue
            one.lents, one.answered, one.keep_sent = one.lents + 1, True, keep
            wait_s = max(0.0, self._until - now)
            lent = Lent(self.name, one.lents, one.report.number, some, more, keep, wait_s)
            one.under_way.append(lent)
            found.append((life, lent))
        return found

    # -- inside ------------------------------------------------------------------------------------

    def _pass(self, now: float) -> None:
        """Time has passed: tokens have arrived, leases have expired."""
        for life, one in list(self._borrowers.items()):
            if one.is_silent(now):
                one.take_tokens()
            away_s = -inf if one.gone_at is None else now - one.gone_at
            if away_s >= CALLS_OVER_S or (one.gone_at is not None and not one.calls + one.tokens):
                del self._borrowers[life]
        self.free += (now - self._at) * (self.per_s or 0.0)
        self._at = now
        self._cut()

    def _cut(self) -> None:
        """Limit what is saved up to what may be lent."""
        there = self._lease - sum(one.tokens for one in self._borrowers.values())
        self.free = min(self.free, there)

    def _share_tokens(self, borrowers: Sequence[_Borrower]) -> dict[_Borrower, float]:
        """First what the next records need, in turn; then the rest, by demand."""
        waiting = sorted((one for one in borrowers if one.want > 0), key=lambda one: one.turn)
        found: dict[_Borrower, float] = {}
        left = self.free
        served = True
        for one in waiting:
            need = min(one.want, max(0.0, one.report.need - one.tokens))
            if need > left + ROUNDING:
                served = False
                break
            found[one] = need
            left -= need
        if served and left > ROUNDING:
            for one, more in _filled({one: one.want - found[one] for one in waiting}, left).items():
                found[one] += more
        for one in waiting:
            some = found.get(one, 0.0)
            if some > 0:
                one.turn = next(self._turns)
                one.want = max(0.0, one.want - some)
                self.free -= some
        return found

    def _share_calls(
        self, now: float, borrowers: Sequence[_Borrower]
    ) -> dict[_Borrower, tuple[int, int | None]]:
        """For each how many more calls it gets, and down to how many it returns."""
        assert self.in_flight is not None
        taken = sum(one.calls for one in self._borrowers.values())
        free = self.in_flight - taken
        mine = self.in_flight - (taken - sum(one.calls for one in borrowers))
        wanted = {one: max(one.report.calls_want, 0) for one in borrowers}

        def rank(one: _Borrower) -> tuple[bool, int]:
            keeps = one.calls > 0 and now - one.calls_at < TENURE_S
            return not keeps, one.calls_turn

        order = sorted((one for one in borrowers if wanted[one]), key=rank)
        level = _filled({one: float(wanted[one]) for one in order}, float(max(0, mine)))
        part = {one: int(level[one] + ROUNDING) for one in order}
        spare = max(0, mine) - sum(part.values())
        for one in order:
            if spare > 0 and part[one] < wanted[one]:
                part[one] += 1
                spare -= 1
        found: dict[_Borrower, tuple[int, int | None]] = {}
        lacking = 0
        for one in order:
            if self._until > now or part[one] <= one.calls:
                continue
            more = max(0, min(part[one] - one.calls, free))
            lacking += part[one] - one.calls - more
            if more:
                one.calls_turn, one.calls_at = next(self._turns), now
                found[one] = (more, None)
                free -= more
        if lacking > 0:
            for one in borrowers:
                if one.calls or one in found:
                    found[one] = (found.get(one, (0, None))[0], part.get(one, 0))
        return found


def _filled(wanted: dict[_Borrower, float], there: float) -> dict[_Borrower, float]:
    """Divide it equally; what one does not need goes to the others."""
    found: dict[_Borrower, float] = {}
    left = there
    ordered = sorted(wanted.items(), key=lambda row: row[1])
    for number, (one, want) in enumerate(ordered):
        found[one] = min(want, left / (len(ordered) - number))
        left -= found[one]
    return found
