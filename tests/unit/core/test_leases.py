"""Leases of budgets: what a member may use, what its driver lends, and that it is never too much."""

from __future__ import annotations

import pytest

from perkey.core import effects as fx
from perkey.core.events import Charged, Failed, HandlerSpec
from perkey.core.leases import (
    CALLS_OVER_S,
    LEASE_S,
    MARGIN_S,
    TENURE_S,
    VALID_S,
    LeaseReport,
    Lent,
    Lessor,
)
from perkey.core.work import Tags
from perkey.policies import Budget, Retry
from perkey.types import ErrorInfo, Record

ERROR = ErrorInfo("TooMany", "429")


def user(budget: Budget) -> HandlerSpec:
    """A handler of it, without an order of its records."""
    return HandlerSpec(
        "h", ordering="unordered", budget=budget, concurrency=1_000, retry=Retry(delay_s=0.0)
    )


class Fleet:
    """A driver and its members, whose messages come at once."""

    def __init__(self, make_desk, budget: Budget, members: int) -> None:
        self.lessor = Lessor(budget.name, budget.per_s, budget.in_flight, 0.0)
        self.desks = [make_desk(user(budget)) for _ in range(members)]
        self.parts = []
        for desk in self.desks:
            desk.do("lease_budgets")
            (part,) = desk.assign(0)
            self.parts.append(part)
        self.started: list[list] = [[] for _ in self.desks]

    def poll(self, member: int, count: int) -> None:
        """So many records more."""
        desk, part = self.desks[member], self.parts[member]
        desk.poll(part, *range(part.position, part.position + count), key=None)

    def exchange(self, *members: int) -> None:
        """These report, the driver lends."""
        now = self.desks[0].now
        for member in members or range(len(self.desks)):
            for report in self.desks[member].engine.lease_reports(now):
                self.lessor.received(now, str(member), report)
        for name, lent in self.lessor.deal(now):
            self.desks[int(name)].do("lent", [lent])
        for member, desk in enumerate(self.desks):
            self.started[member] += desk.started()

    def pass_time(self, seconds: float) -> None:
        """On all clocks."""
        for desk in self.desks:
            desk.pass_time(seconds)

    def counts(self) -> list[int]:
        """How many each has started."""
        return [len(some) for some in self.started]

    def end(self, member: int, count: int) -> None:
        """Calls return."""
        done, self.started[member] = self.started[member][:count], self.started[member][count:]
        self.desks[member].do("calls_ended", done)
        self.started[member] += self.desks[member].started()


# -- a member --------------------------------------------------------------------------------------


def test_nothing_starts_before_something_is_lent(make_desk):
    """The first record that waits asks for a report, once; then what is lent starts."""
    desk = make_desk(user(Budget("b", per_s=50, in_flight=20)))
    desk.do("lease_budgets")
    (part,) = desk.assign(0)
    assert desk.engine.lease_reports(desk.now) == []
    desk.poll(part, *range(5), key=None)
    desk.poll(part, *range(5, 9), key=None)
    assert (len(desk.take(fx.ReportLease)), desk.started()) == (1, [])
    (report,) = desk.engine.lease_reports(desk.now)
    assert (report.want, report.need, report.calls_want) == (9.0, 1.0, 9)
    desk.do("lent", [Lent("b", 1, report.number, 3.0, 2)])
    assert len(desk.started()) == 2


@pytest.mark.parametrize(("after_s", "starts"), [(VALID_S - 0.01, 1), (VALID_S, 0)])
def test_a_lease_runs_out(make_desk, after_s, starts):
    """From the report on: what is not used by then is gone, and `why` names the driver."""
    desk = make_desk(user(Budget("b", per_s=50)))
    desk.do("lease_budgets")
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (report,) = desk.engine.lease_reports(desk.now)
    desk.pass_time(after_s)
    desk.do("lent", [Lent("b", 1, report.number, 5.0)])
    assert len(desk.started()) == starts
    (budget,) = desk.engine.state.budgets
    assert budget.why == ("" if starts else "lent")
    desk.engine.lease_reports(desk.now)
    desk.pass_time(VALID_S)
    desk.poll(part, 1, key=None)
    assert (desk.started(), budget.why) == ([], "link")


def test_what_comes_twice_lends_once(make_desk):
    """The number of what is lent tells."""
    desk = make_desk(user(Budget("b", per_s=50)))
    desk.do("lease_budgets")
    (part,) = desk.assign(0)
    desk.poll(part, *range(9), key=None)
    (report,) = desk.engine.lease_reports(desk.now)
    for _ in range(2):
        desk.do("lent", [Lent("b", 1, report.number, 2.0)])
    assert len(desk.started()) == 2


def test_a_process_that_was_suspended_has_nothing(make_desk):
    """Its clock may have stood still: what was lent before is not used."""
    desk = make_desk(user(Budget("b", per_s=50)))
    desk.do("lease_budgets")
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (report,) = desk.engine.lease_reports(desk.now)
    desk.do("halt", "membership", on=True)
    desk.do("lent", [Lent("b", 1, report.number, 5.0)])
    desk.do("halt", "membership", on=False)
    assert desk.started() == []
    (report,) = desk.engine.lease_reports(desk.now)
    assert (report.lapsed, report.tokens) == (1, 0.0)


def test_an_idle_member_gives_all_back_and_is_quiet(make_desk):
    """What it kept for more records goes with the next report; then it reports nothing."""
    fleet = Fleet(make_desk, Budget("b", per_s=50, in_flight=9), 1)
    fleet.poll(0, 3)
    while any(fleet.parts[0].lanes.unpaid) or not fleet.started[0]:
        fleet.exchange()
        fleet.pass_time(0.05)
    fleet.end(0, 3)
    reports: list[LeaseReport] = []
    for _ in range(4):
        fleet.pass_time(0.25)
        reports += fleet.desks[0].engine.lease_reports(fleet.desks[0].now)
    assert (reports[-1].empty, len(reports)) == (True, 2)


# -- the driver ------------------------------------------------------------------------------------


def test_a_member_with_all_the_work_has_all(make_desk):
    """Of three the one whose records wait gets the whole rate, and never more than a lease over."""
    fleet = Fleet(make_desk, Budget("b", per_s=40), 3)
    fleet.poll(1, 450)  # more than ten seconds' worth
    starts = []
    for _ in range(80):
        before = len(fleet.started[1])
        fleet.exchange()
        starts.append((fleet.desks[0].now, len(fleet.started[1]) - before))
        fleet.pass_time(0.125)
    assert fleet.counts()[0] == fleet.counts()[2] == 0
    assert fleet.counts()[1] >= 380
    for at, _ in starts:
        some = sum(count for when, count in starts if at <= when < at + 1.0)
        assert some <= 40 + 40 * LEASE_S + 1


def test_what_one_does_not_want_others_get(make_desk):
    """A member with a few records is served whole; the rest is divided equally."""
    fleet = Fleet(make_desk, Budget("b", per_s=40), 3)
    fleet.poll(0, 300)  # more than its part of ten seconds
    fleet.poll(1, 300)
    for _ in range(40):
        fleet.poll(2, 1)
        fleet.exchange()
        fleet.pass_time(0.25)
    counts = fleet.counts()
    assert counts[2] >= 36
    assert abs(counts[0] - counts[1]) <= 4
    assert sum(counts) >= 380


@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
def test_calls_are_never_more_than_the_number(make_desk, in_flight):
    """Of three members, also where they are fewer; and each has its turn."""
    fleet = Fleet(make_desk, Budget("b", in_flight=in_flight), 3)
    served = set()
    for member in range(3):
        fleet.poll(member, 40)  # of which no member ends more than 20
    for step in range(60):
        fleet.exchange()
        counts = fleet.counts()
        assert sum(counts) <= in_flight
        served |= {member for member, count in enumerate(counts) if count}
        fleet.pass_time(TENURE_S / 4)
        fleet.end(step % 3, 1)
    assert sum(fleet.counts()) >= in_flight - 1
    assert served == {0, 1, 2}


def test_a_record_that_costs_much_is_saved_up_for(make_desk):
    """It waits for a tenth of a second's worth; nobody is served before it, and all pay the rest."""
    fleet = Fleet(make_desk, Budget("b", per_s=100, cost=len), 2)
    dear, (part, _) = fleet.desks[0], fleet.parts
    record = Record("t", 0, 0, 0, None, b"v")
    dear.do("polled", [(part, [record], [100])], {part: [Tags(None, None, 60.0)]})
    fleet.poll(1, 150)  # more than a second's worth
    for _ in range(8):
        fleet.exchange()
        fleet.pass_time(0.125)
    assert fleet.counts()[0] == 1
    assert fleet.counts()[1] <= 100 + 10 - 60 + 1


def test_what_a_call_really_costs_is_charged_to_all(make_desk):
    """By one member; another one waits until it is paid."""
    fleet = Fleet(make_desk, Budget("b", per_s=10, cost=len), 2)
    fleet.poll(0, 1)
    fleet.exchange()
    fleet.desks[0].do("charged", [Charged(0, "t", 0, 0, 31.0)])
    fleet.exchange()
    fleet.poll(1, 100)
    for _ in range(12):
        fleet.exchange()
        fleet.pass_time(0.25)
    assert fleet.counts()[1] == 0
    for _ in range(8):
        fleet.pass_time(0.25)
        fleet.exchange()
    assert 15 <= fleet.counts()[1] <= 21


def test_a_429_slows_the_whole_fleet(make_desk):
    """What one member is asked for, all do."""
    fleet = Fleet(make_desk, Budget("b", in_flight=4), 2)
    for member in range(2):
        fleet.poll(member, 10)
    fleet.exchange()
    (first, *_), desk = fleet.started[0], fleet.desks[0]
    desk.take(fx.ReportLease)
    desk.do("calls_ended", [], [Failed(first, ERROR, budget_s=3.0)])
    assert len(desk.take(fx.ReportLease)) == 1
    fleet.exchange(0)
    fleet.exchange(1)
    fleet.end(1, len(fleet.started[1]))
    (there,) = fleet.desks[1].engine.state.budgets
    assert (fleet.counts()[1], there.why, there.until) == (0, "asked", 3.0)
    fleet.pass_time(3.0)
    fleet.exchange()
    assert fleet.counts()[1] > 0


def wants(number: int, *, calls: int = 0, tokens: float = 0.0, **more) -> LeaseReport:
    """A report of a member with much work."""
    report = LeaseReport("b", number, more.pop("seen", 0), 0, tokens, 0.0, 99.0, 1.0, calls, 99, 0)
    return report._replace(**more)


def lent(lessor_: Lessor, now: float) -> dict[str, tuple[float, int]]:
    """What is lent to whom."""
    return {name: (one.tokens, one.calls) for name, one in lessor_.deal(now)}


@pytest.mark.parametrize(
    ("after_s", "more"), [(CALLS_OVER_S - 0.01, 0), (CALLS_OVER_S, 3), (CALLS_OVER_S + 0.01, 3)]
)
def test_calls_of_a_lost_member_are_kept_for_it(after_s, more):
    """They may run: others get them after so long without a line."""
    one = Lessor("b", None, 3, 0.0)
    one.received(0.0, "lost", wants(1))
    assert lent(one, 0.0) == {"lost": (0.0, 3)}
    one.gone(1.0, "lost")
    one.received(1.0 + after_s, "other", wants(1))
    assert lent(one, 1.0 + after_s) == {"other": (0.0, more)}


def test_calls_of_a_member_that_is_surely_dead_are_lent_to_others():
    """Its process has ended, or it said that no call runs."""
    one = Lessor("b", None, 3, 0.0)
    one.received(0.0, "dead", wants(1))
    one.deal(0.0)
    one.over(0.5, "dead")
    one.received(0.5, "other", wants(1))
    assert lent(one, 0.5) == {"other": (0.0, 3)}


def test_calls_of_a_silent_member_with_a_line_are_kept():
    """However long: it lives, and its calls may run."""
    one = Lessor("b", None, 3, 0.0)
    one.received(0.0, "silent", wants(1))
    one.deal(0.0)
    one.received(10 * CALLS_OVER_S, "other", wants(1))
    assert lent(one, 10 * CALLS_OVER_S) == {"other": (0.0, 0)}


def test_tokens_of_a_silent_member_count_as_spent_until_it_reports():
    """They are not lent twice; what it had not spent is there again then."""
    one = Lessor("b", 1.0, None, 0.0)
    one.received(0.0, "silent", wants(1))
    assert lent(one, 0.0) == {"silent": (1.0, 0)}
    later = VALID_S + MARGIN_S
    one.received(later, "silent", wants(2, seen=1, spent=0.0, want=0.0))
    assert one.free == pytest.approx(1.5)  # a lease of 1.5: its own, and half of a new one


def test_a_message_that_never_came_lends_nothing():
    """The member says up to which report it takes no answer: what was lent then is free again."""
    one = Lessor("b", None, 3, 0.0)
    one.received(0.0, "m", wants(1))
    assert lent(one, 0.0) == {"m": (0.0, 3)}
    one.received(0.2, "m", wants(2))
    assert lent(one, 0.2) == {"m": (0.0, 0)}
    one.received(VALID_S, "m", wants(3, lapsed=1))
    assert lent(one, VALID_S) == {"m": (0.0, 3)}


def test_reports_out_of_order_are_ignored():
    """An older one says nothing new."""
    one = Lessor("b", None, 3, 0.0)
    one.received(0.0, "m", wants(2, calls=2))
    one.received(0.1, "m", wants(1))
    assert one.held_by("m") == 2


def test_a_member_that_was_forgotten_pays_nothing_twice():
    """What it spent before it was given up was counted then."""
    one = Lessor("b", 1.0, None, 0.0)
    one.received(0.0, "m", wants(7, spent=500.0, want=1.0))
    assert lent(one, 0.0) == {"m": (1.0, 0)}


def test_a_lease_is_what_the_docs_say():
    """Half a second's worth, for two seconds, and a minute for calls of a lost member."""
    assert (LEASE_S, VALID_S, CALLS_OVER_S) == (0.5, 2.0, 60.0)
