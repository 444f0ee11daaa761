"""Budgets between the driver of a fleet and its members: messages, lines, and proof of death."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

from perkey.core.engine import Engine
from perkey.core.events import Assignment, HandlerSpec
from perkey.policies import Budget
from perkey.spark.fleet import lending
from perkey.spark.fleet.lending import Borrowing, Lending
from perkey.spark.fleet.slots import Incarnation
from perkey.spark.fleet.wire import WireError
from perkey.types import Record

WAIT_S = 60.0
BUDGET = Budget("b", in_flight=3)


class Wire:
    """A line to a member."""

    def __init__(self) -> None:
        self.sent_over: list[dict[str, Any]] = []
        self.broken = False

    def send(self, message: dict[str, Any]) -> None:
        if self.broken:
            raise WireError("gone")
        self.sent_over.append(json.loads(json.dumps(message)))  # as it travels

    @property
    def calls(self) -> int:
        """So many were lent over it."""
        return sum(row[4] for one in self.sent_over for row in one["lents"])


@pytest.fixture
def dead() -> set[int]:
    """Process ids that are known to have ended."""
    return set()


@pytest.fixture
def driver(dead, monkeypatch):
    """Its end of the budget."""
    monkeypatch.setattr(lending, "_PROOF_EVERY_S", 0.01)
    monkeypatch.setattr(lending, "_WORKERS_END_S", 0.0)
    one = Lending([BUDGET], lambda _kernel, pid: pid in dead)
    one.begin()
    yield one
    one.close()


def slot(index: int, pid: int) -> Any:
    """A member's place."""
    return SimpleNamespace(index=index, incarnation=Incarnation("host", pid, 0, 0), kernel="k")


def report(number: int, calls: int = 0, want: int = 9) -> list[Any]:
    """As a member sends it."""
    return ["b", number, 0, 0, 0.0, 0.0, 0.0, 0.0, calls, want, 0.0]


def hear(driver: Lending, wire: Wire, pid: int, *reports: list[Any], **more: Any) -> None:
    """The driver gets a message of the process."""
    message = {"type": "lease", "life": f"of {pid}", "reports": list(reports), **more}
    driver.received(slot(pid, pid), wire, message)


def asks(driver: Lending, wire: Wire, pid: int):
    """A member that wants something, again and again; whether it has got anything."""
    number = 1

    def got() -> int:
        nonlocal number
        number += 1
        hear(driver, wire, pid, report(number))
        return wire.calls

    return got


def test_what_is_lent_to_a_dead_member_is_lent_again_when_that_is_proved(driver, dead, caplog):
    """Its line has ended: nothing. Its process has ended: all of it."""
    caplog.set_level("INFO", "perkey")
    lost, other = Wire(), Wire()
    hear(driver, lost, 1, report(1))
    assert lost.calls == 3
    driver.line_ended(lost)
    got = asks(driver, other, 2)
    assert [got() for _ in range(20)] == [0] * 20
    dead.add(1)
    wait_for(got)
    assert other.calls == 3
    line = "what was lent to a dead member is lent to others member=1 budgets=b"
    wait_for(lambda: line in caplog.text)


def test_a_member_whose_line_broke_keeps_its_calls(driver, dead):
    """It dials again and reports; from then on its death is not looked for."""
    first, again, other = Wire(), Wire(), Wire()
    hear(driver, first, 1, report(1))
    driver.line_ended(first)
    hear(driver, again, 1, report(2, 3, 3))
    driver.line_ended(first)
    dead.add(1)  # a mistake: it lives
    got = asks(driver, other, 2)
    assert [got() for _ in range(20)] == [0] * 20


@pytest.mark.parametrize(("running", "calls"), [(False, 3), (True, 0)])
def test_a_life_that_ends_says_whether_calls_run(driver, running, calls):
    """Those of threads that cannot be ended; only without them the next one gets all."""
    wire = Wire()
    hear(driver, wire, 1, report(1))
    hear(driver, wire, 1, running=running)
    other = Wire()
    hear(driver, other, 2, report(1))
    assert other.calls == calls


def test_a_line_that_breaks_while_the_driver_lends(driver):
    """Others get theirs; what was not sent comes back with the next report."""
    wire, other = Wire(), Wire()
    wire.broken = True
    hear(driver, wire, 1, report(1, 0, 1))
    hear(driver, other, 2, report(1))
    assert other.calls == 2


def test_without_a_budget_nothing_runs_and_nothing_is_sent():
    """Neither on the driver nor in a member."""
    before = set(threading.enumerate())  # of tests before this one may end meanwhile
    Lending([], lambda *_: True).begin()
    assert set(threading.enumerate()) <= before
    sent: list[Any] = []
    member = Borrowing(sent.append, sent.append, needed=False)
    member.begin(SimpleNamespace())
    member.look()
    member.end()
    assert (sent, member.within_s(0.4)) == ([], 0.4)


class Member:
    """An engine without threads."""

    def __init__(self, budget: Budget) -> None:
        spec = HandlerSpec("h", ordering="unordered", budget=budget, concurrency=100)
        self.engine, self.door = Engine([spec]), self

    def call(self, event):
        return event(self.engine, 1.0)

    post = call

    def poll(self, count: int) -> None:
        (part,) = self.engine.assigned(1.0, [Assignment("t", 0, 0, 0)])
        records = [Record("t", 0, n, 0, None, b"v") for n in range(count)]
        self.engine.polled(1.0, [(part, records, [9] * count)])


def test_a_member_and_its_driver(driver):
    """From the first record that waits to the end of the life, over the messages as they travel."""
    wire, member, sent = Wire(), Member(BUDGET), list[dict[str, Any]]()

    def send(message):
        sent.append(json.loads(json.dumps(message)))
        driver.received(slot(0, 1), wire, sent[-1])
        return True

    end = Borrowing(send, send, needed=True)
    end.begin(member)
    end.look()
    assert sent == []
    member.poll(5)
    wait_for(lambda: (end.look(), sent)[1])
    wait_for(lambda: wire.sent_over)
    end.lent(wire.sent_over[-1])
    assert member.engine.under_way() == 3
    end.lent({**wire.sent_over[-1], "life": "another"})
    end.end()
    assert sent[-1]["running"] is True
    assert end.within_s(0.4) == 0.4


def test_what_a_broken_line_lost_of_a_budget_is_reported_again():
    """An idle member has nothing new to report, and would hold for ever what it has returned."""
    sent: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    line = [True]

    def send(message):
        if line[0]:
            sent.append(message)
        return line[0]

    member, end = Member(BUDGET), Borrowing(send, kept.append, needed=True)
    end.begin(member)

    def look() -> int:
        end._reported_at = 0.0
        end.look()
        return len(sent)

    member.poll(1)
    assert look() == 1
    life = sent[0]["life"]
    end.lent({"life": life, "lents": [["b", 1, 1, 0.0, 1, 1]]})
    wait_for(lambda: member.engine.under_way() == 1)
    before = look()
    line[0] = False
    look()
    line[0] = True
    end.again()
    assert look() == before + 1
    line[0] = False
    end.end()
    assert [(one["life"], one["running"]) for one in kept] == [(life, True)]
