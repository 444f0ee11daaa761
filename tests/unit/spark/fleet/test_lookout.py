"""What the driver looks after: executors that go, and the members' lines in Spark's UI."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from tests.unit.spark.fleet.test_roster import Heard, Orders, join

from weft.spark.fleet import lookout
from weft.spark.fleet.jobpage import _LINE
from weft.spark.fleet.lookout import Lookout, Signboard
from weft.spark.fleet.roster import Roster


class FakeSession:
    """A session whose executors go when told so, and that remembers what it was described as."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.told: list[dict[int, str]] = []
        self.heard = threading.Event()

    def going(self, executors: Collection[str]) -> list[str]:
        """Those of them that go."""
        return sorted(self.gone & set(executors))

    def describe(self, _group: str, members: Mapping[int, str]) -> bool:
        """Remember it; twice is enough."""
        self.told.append(dict(members))
        self.heard.set()
        return len(self.told) < 2


@pytest.fixture
def roster() -> Roster:
    """Two members, on executors of their own."""
    return Roster(2, Orders(static=True, ends=[], callbacks=[], log_level=20), Heard().ears())


def test_members_on_executors_that_go_are_told_once(roster, monkeypatch) -> None:
    """The member of a decommissioned executor is told to leave; the other is not."""
    monkeypatch.setattr(lookout, "_MOVE_LOOK_S", -1.0)
    wires = [join(roster, "0.0"), join(roster, "1.0")]
    roster.slots[0].executor, roster.slots[1].executor = "5", "6"
    session: Any = FakeSession()
    watch = Lookout(roster, session, 12_000)
    watch.look()
    session.gone = {"6"}
    for _ in range(3):
        watch.look()
    leave = {"type": "leave", "why": "moved"}
    assert wires[0].said.count(leave) == 0
    assert wires[1].said.count(leave) == 1


def test_members_lines_say_what_they_do(roster, monkeypatch) -> None:
    """Rate, done, failures, restarts, or that it is away."""
    monkeypatch.setattr(lookout, "TELL_EVERY_S", 0.01)
    monkeypatch.setattr("weft.spark.fleet.roster.SNAPSHOT_WAIT_S", 0.01)
    wire = join(roster, "0.0")
    counts = {"done": 1_200, "failures": 3}
    roster.told(0, wire, {"type": "progress", "counts": counts, "finished": [], "parked": 0})
    session: Any = FakeSession()
    board = Signboard(roster, session, "weft-run")
    board.begin()
    assert session.heard.wait(60)
    board.close()
    assert session.told[0] == {
        0: "0/s, 1,200 done, 3 failed attempts",
        1: "away, 0 done, 0 failed attempts",
    }


@pytest.mark.parametrize("behind", ["", " · 12/s, lag 3, 4 done", " · 1/s · 2"])
def test_a_description_keeps_its_first_words(behind) -> None:
    """What is put behind it replaces what was put there before, and nothing else."""
    first = "weft my · group: member 17 of 20, submitted again (1)"
    found = _LINE.match(first + behind)
    assert found is not None
    assert (found["first"], found["index"]) == (first, "17")
