"""What the driver of a fleet lends of one budget to its members, by what they want.

Theory of operation. Never more is lent than there is::

    tokens    free + lent <= LEASE_S of the rate and one    free grows at the rate
    calls     the parts of all members <= in_flight

- What a member reports as spent was lent to it, and what it no longer keeps is free again. So no
  more start in any second than come in that second, and what could be lent before: one lease.
- Members take turns: each gets what its next record needs, the one that was served longest ago
  first; if that cannot be paid for yet, no one is served before. The rest is divided so that what
  one does not want goes to the others.
- Calls that are lent stay with a member while they run. Where others wait for them, who has more
  than its part returns some as calls end; with fewer calls than members they change hands after
  TENURE_S.
- A member that is silent keeps its tokens until its lease has run out; then they count as spent.
  Its calls may still run, so they are kept for it: until it reports again, or its run is surely
  over (`over`: reported, or its process has ended), or its line has been gone for CALLS_OVER_S. A
  member without a line to its driver finishes what runs and leaves long before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from weft.core.bucket import ROUNDING
from weft.core.leases import VALID_S, LeaseReport, Lent

#: so much of the rate is lent at a time, to all members together
LEASE_S = 0.5
#: so much longer than VALID_S the driver waits: clocks do not run alike
MARGIN_S = 0.5
#: a member with a call keeps it for so long, where there are fewer calls than members
TENURE_S = 1.0
#: after so long without a line a member has ended
CALLS_OVER_S = 60.0


@dataclass(slots=True, eq=False)
class _Borrower:
    """One life of a member."""

    reported_at: float
    report: LeaseReport
    #: what was lent and is in no report yet
    under_way: deque[Lent] = field(default_factory=deque)
    lents: int = 0
    answered: bool = True
    #: tokens that it had when its lease ran out: they count as spent
    owed: float = 0.0
    #: its line has ended
    gone_at: float | None = None
    #: it was asked to give calls back, down to so many
    keep_sent: int | None = None
    #: when it was served last, in order; and when it got calls
    turn: int = 0
    calls_turn: int = 0
    calls_at: float = -inf
    want: float = 0.0

    @property
    def tokens(self) -> float:
        """At most so many it has."""
        return self.report.tokens + sum(lent.tokens for lent in self.under_way)

    @property
    def calls(self) -> int:
        """At most so many it has."""
        return self.report.calls + sum(lent.calls for lent in self.under_way)

    def is_silent(self, now: float) -> bool:
        """Its lease has run out."""
        return now >= self.reported_at + VALID_S + MARGIN_S

    def take_tokens(self) -> None:
        """It can use none of them any more; calls that it began with them may run."""
        self.owed, self.want = self.owed + self.tokens, 0.0
        self.report = self.report._replace(tokens=0.0)
        self.under_way = deque(lent._replace(tokens=0.0) for lent in self.under_way)


class Lessor:
    """One budget of a fleet. Events in, what to send out."""

    def __init__(self, name: str, per_s: float | None, in_flight: int | None, now: float) -> None:
        self.name, self.per_s, self.in_flight = name, per_s, in_flight
        #: tokens that are lent or saved up, at most
        self._lease = (per_s or 0.0) * LEASE_S + 1.0
        self.free = 1.0
        self._at = now
        self._until = 0.0
        self._turns = count(1)
        #: by life
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
        """Its line has ended."""
        one = self._borrowers.get(life)
        if one is not None:
            one.gone_at, one.want = now, 0.0

    def over(self, now: float, life: str) -> None:
        """Its run has ended, and with it every call."""
        self._pass(now)
        self._borrowers.pop(life, None)

    # -- what to do --------------------------------------------------------------------------------

    def contended(self, life: str) -> bool:
        """Others wait for tokens: they are divided in rounds."""
        return any(one.want > 0 for name, one in self._borrowers.items() if name != life)

    def knows(self, life: str) -> bool:
        """Something may be lent to it."""
        return life in self._borrowers

    def held_by(self, life: str) -> int:
        """So many calls are lent to it."""
        one = self._borrowers.get(life)
        return 0 if one is None else one.calls

    @property
    def busy(self) -> bool:
        """There is a member to serve, or to wait for."""
        return any(not one.answered or one.want or one.calls for one in self._borrowers.values())

    def deal(self, now: float) -> list[tuple[str, Lent]]:
        """Lend what there is; by life, what to send."""
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
        """Time has passed: tokens have come in, leases have run out."""
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
        """No more is saved up than may be lent."""
        there = self._lease - sum(one.tokens for one in self._borrowers.values())
        self.free = min(self.free, there)

    def _share_tokens(self, borrowers: Sequence[_Borrower]) -> dict[_Borrower, float]:
        """First what the next records need, in turn; then the rest, as it is wanted."""
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
        """Of each how many more it gets, and down to how many it returns."""
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
    """Divide it equally; what one does not want goes to the others."""
    found: dict[_Borrower, float] = {}
    left = there
    ordered = sorted(wanted.items(), key=lambda row: row[1])
    for number, (one, want) in enumerate(ordered):
        found[one] = min(want, left / (len(ordered) - number))
        left -= found[one]
    return found
