"""Leases of budgets: a member of a fleet uses what the fleet's driver has lent to it.

Theory of operation. The driver (lessor.py) has the whole of each budget and lends parts: tokens, of
`per_s`, and calls, of `in_flight`. A member has none at first. It reports, and the driver lends::

    member  ── LeaseReport: kept, spent, wanted ──►  driver
            ◄── Lent: more tokens, more calls ─────

- Numbers are absolute: what a member keeps, and its total spending in this run. So a lost or
  repeated message lends nothing twice. `seen` and `answers` are the last message of the other side.
- A member returns what it has and does not use in its next report.
- A lease is valid for VALID_S from the time of the report that it answers, which is earlier than
  the driver sent it. Then nothing starts until the next answer; running calls continue and are
  counted. A later answer is not accepted: `lapsed` reports that.
- A member that uses nothing and needs nothing sends no report.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from weft.core.bucket import BURST_S, Bucket

if TYPE_CHECKING:
    from weft.policies import Budget

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
