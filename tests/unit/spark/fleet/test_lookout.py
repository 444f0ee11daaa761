"""What the driver looks after: executors that go."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.unit.spark.fleet.test_roster import Heard, Orders, join

from perkey.spark.fleet import lookout
from perkey.spark.fleet.lookout import Lookout
from perkey.spark.fleet.roster import Roster


class FakeSession:
    """A session whose executors go."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def going(self, executors: Collection[str]) -> list[str]:
        """Those of them that go."""
        return sorted(self.gone & set(executors))


@pytest.fixture
def roster() -> Roster:
    """Two members, on executors of their own."""
    return Roster(2, Orders(static=True, ends=[], callbacks=[], log_level=20), Heard().ears())


def test_members_on_executors_that_go_are_reported_once(roster, monkeypatch) -> None:
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
