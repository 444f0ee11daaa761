"""Token buckets, and leases of budgets: what the driver of a fleet lends, a member uses.

Theory of operation. A bucket (`Bucket`) limits starts: tokens arrive at a rate and pay for them. In
a fleet no tokens arrive at a member: the driver has the whole of each budget and lends parts of it,
tokens of `per_s` and calls of `in_flight`. A member has none at first. It reports, and the driver
lends::

    member  ── LeaseReport: kept, spent, wanted ──►  driver
    BudgetLease ◄── Lent: more tokens, more calls ── Lessor

- Numbers are absolute: what a member keeps, and its total spending in this run. So a lost or
  repeated message lends nothing twice. `seen` and `answers` are the last message of the other side.
- A member returns what it has and does not use in its next report.
- A lease is valid for VALID_S from the time of the report that it answers, which is earlier than
  the driver sent it. Then nothing starts until the next answer; running calls continue and are
  counted. A later answer is not accepted: `lapsed` reports that.
- A member that uses nothing and needs nothing sends no report.

The driver. The total that is lent never exceeds the budget::

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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from perkey.policies import Budget

BURST_S = 0.1  # a bucket saves up at most the tokens of this time
ROUNDING = 1e-9


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

    def settle(self, more: float) -> None:
        """A call has cost more than was paid, or less."""
        self.tokens -= more


# -- a member borrows ------------------------------------------------------------------------------

#: how long a lease is valid without a new answer
VALID_S = 2.0
#: interval of the reports of a member that uses a budget
REPORT_EVERY_S = 0.25
#: a member keeps what it used since its last report this many times over
_KEPT = 1.5
_REPORTS_MAX = 100


class LeaseReport(NamedTuple):
    """What a member holds of a budget, and needs."""

    budget: str
    #: number of the report in this run, from 1
    number: int
    #: the last `Lent.number`; and the last report whose answer is no longer accepted
    seen: int
    lapsed: int
    #: tokens that it keeps, and the total cost of its calls in this run
    tokens: float
    spent: float
    #: more tokens that it could use until its next report, and how many its next record needs
    want: float
    need: float
    #: calls that it keeps, and how many it could use at the same time
    calls: int
    calls_want: int
    #: seconds for which the service asks its callers to wait
    wait_s: float

    @property
    def empty(self) -> bool:
        """Whether it holds nothing and needs nothing."""
        return not (self.tokens or self.want or self.calls or self.calls_want or self.wait_s)


class Lent(NamedTuple):
    """What the driver lends to a member, in addition to what it has."""

    budget: str
    #: number of what is lent in this run, from 1
    number: int
    #: the last `LeaseReport.number`
    answers: int
    tokens: float = 0.0
    calls: int = 0
    #: others wait: return idle calls now, and others as they end down to this number; None: keep
    keep: int | None = None
    #: seconds for which the service asks its callers to wait
    wait_s: float = 0.0


class BudgetLease(Bucket):
    """What a member may use of one budget. No tokens arrive by themselves."""

    __slots__ = (
        "_answered", "_asked", "_counted", "_limited", "_most", "_peak", "_quiet",
        "_spent_reported", "_used", "calls", "keep", "lapsed", "number", "seen", "short", "spent",
        "until", "urged",
    )  # fmt: skip

    def __init__(self, spec: Budget) -> None:
        super().__init__(0.0)
        self.tokens = 0.0
        self._most = max(1.0, (spec.per_s or 0.0) * BURST_S)
        self._limited, self._counted = spec.per_s is not None, spec.in_flight is not None
        #: calls that are lent, also after the lease has expired
        self.calls = 0
        #: see `Lent`
        self.keep: int | None = None
        #: end of the lease
        self.until = -inf
        #: number and time of the reports that may still be answered
        self._asked: deque[tuple[int, float]] = deque(maxlen=_REPORTS_MAX)
        self.number = self.seen = self.lapsed = self._answered = 0
        self.spent = self._spent_reported = 0.0
        #: since the last report: tokens used, the most calls, and the cost of a record that waited
        self._used, self._peak = 0.0, 0
        self.short: float | None = None
        #: the last report was empty; the next one is requested
        self._quiet, self.urged = True, False

    @property
    def most(self) -> float:
        """A record that costs more starts when this much is saved up."""
        return self._most

    def refill(self, now: float) -> None:
        """Nothing arrives with time; the lease expires."""
        self.at = now
        if now >= self.until:
            self.tokens = 0.0

    def pay(self, cost: float) -> None:
        """A call starts."""
        self.spent += cost
        self._used += cost
        self.tokens = max(0.0, self.tokens - cost)

    def settle(self, more: float) -> None:
        """The driver charges it to the whole budget."""
        self.spent += more

    def calls_max(self, now: float, in_flight: int) -> float:
        """How many calls may run together now."""
        self._peak = max(self._peak, in_flight)
        if self.keep is not None:
            self.calls = min(self.calls, max(in_flight, self.keep))
        if now >= self.until:
            return 0
        return self.calls if self._counted else inf

    def lacks(self, cost: float | None) -> bool:
        """A record has to wait: for tokens for this cost, or only for calls (None).

        Returns whether the driver must know before the next report.
        """
        self.short = cost if self.short is None else self.short
        return self._quiet

    def urge(self) -> bool:
        """Request the next report; whether it was not requested before."""
        before, self.urged = self.urged, True
        return not before

    def returns_calls(self, in_flight: int, *, waiting: bool) -> bool:
        """A call has ended that others wait for; `waiting`: an own call could take its place."""
        if self.keep is None:
            return False
        return self.calls > (max(in_flight, self.keep) if waiting else in_flight)

    def unanswered_since(self, now: float) -> float | None:
        """Since when the driver does not answer, if the lease has expired because of it."""
        asked = next((at for number, at in self._asked if number > self._answered), None)
        waits = asked is not None and now >= max(self.until, asked + VALID_S)
        return asked if waits else None

    def lapse(self) -> None:
        """Time may have passed that this clock has not counted."""
        self.until, self.tokens, self.lapsed = -inf, 0.0, self.number

    def lent(self, now: float, lent: Lent) -> None:
        """The driver has answered, or lends more."""
        if lent.number <= self.seen:
            return
        self.seen, self._answered = lent.number, lent.answers
        while self._asked and self._asked[0][0] < lent.answers:
            self._asked.popleft()
        if not self._asked or self._asked[0][0] != lent.answers or lent.answers <= self.lapsed:
            return
        until = self._asked[0][1] + VALID_S
        if now >= until:
            return  # the next report returns it
        self.refill(now)
        self.until = max(self.until, until)
        self.tokens += lent.tokens
        self.calls += lent.calls
        self.keep = lent.keep

    def repeat(self) -> None:
        """The last report may have been lost: make the next one even if nothing is new."""
        self._quiet = False

    def report(
        self, now: float, *, in_flight: int, waiting: int, wait_s: float
    ) -> LeaseReport | None:
        """What to report; the rest is returned. None: nothing is new since the last one."""
        self.refill(now)
        for number, at in self._asked:
            if now >= at + VALID_S:
                self.lapsed = max(self.lapsed, number)
        kept = want = need = 0.0
        if self._limited:
            want = self._used
            if self.short is not None:
                need = min(self.short, self._most)
                want = max(need, waiting * self.short + 2 * self._used)
            kept = min(self.tokens, max(_KEPT * self._used, need))
        calls = calls_want = 0
        if self._counted:
            calls_want = in_flight + waiting
            if self.keep is None:  # it will soon need as many again
                calls_want = max(self._peak, calls_want)
            most = calls_want if self.keep is None else max(in_flight, self.keep)
            calls = min(self.calls, calls_want, most)
        report = LeaseReport(
            "", self.number + 1, self.seen, self.lapsed, kept, self.spent, max(0.0, want - kept),
            need, calls, calls_want, wait_s,
        )  # fmt: skip
        known = self._quiet and self.spent == self._spent_reported
        self._used, self._peak, self.short, self.urged = 0.0, in_flight, None, False
        if report.empty and known:
            return None
        self._quiet, self._spent_reported, self.number = report.empty, self.spent, report.number
        self.tokens, self.calls = kept, calls
        self._asked.append((report.number, now))
        return report


# -- the driver lends ------------------------------------------------------------------------------

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
