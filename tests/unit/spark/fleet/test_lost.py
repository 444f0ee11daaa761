"""Who is pushed out of the group while the fleet runs: the dead, and never who may be alive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

import pytest
from tests.support.waiting import wait_for
from tests.unit.spark.fleet.test_roster import FakeWire, Heard

from perkey.kafka.ports import KafkaUnavailable
from perkey.spark.fleet import lookout
from perkey.spark.fleet.lookout import Lost
from perkey.spark.fleet.membership import has_ended, kernel, static_id
from perkey.spark.fleet.roster import Orders, Roster

OURS = "this kernel"


class FakeGhosts:
    """Remembers whom it pushed out; an admin client that says how the group is."""

    group = "g"

    def __init__(self) -> None:
        #: Kafka's word for it; None: it does not answer
        self.state: str | None = "PREPARING_REBALANCING"
        self.out: list[str] = []
        #: who has left by itself
        self.left: set[str] = set()

    def admin(self) -> FakeGhosts:
        """Itself."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def group_state(self, _group: str, _timeout_s: float) -> tuple[str, int]:
        """As it was set."""
        if self.state is None:
            raise KafkaUnavailable("describe group g: no answer within 2 s")
        return self.state, 2

    def static_id(self, index: int, suffix: int) -> str:
        """The id of a member."""
        return static_id("g-run", index, suffix)

    def in_the_group(self, names: list[str]) -> list[str]:
        """Those that have not left."""
        return [name for name in names if name not in self.left]

    def push_out(self, names: list[str]) -> list[str]:
        """Remember it."""
        self.out += names
        return []


class FakeSession:
    """A session that has given executors up."""

    def __init__(self) -> None:
        self.gone: set[str] = set()

    def removed(self, executor: str) -> bool:
        """Whether it is one of them."""
        return executor in self.gone


class Fleet:
    """A roster of two, and who looks after the lost."""

    def __init__(self) -> None:
        orders = Orders(static=True, ends=[], callbacks=[], log_level=20)
        self.roster = Roster(2, orders, Heard().ears())
        self.session, self.ghosts = FakeSession(), FakeGhosts()
        self.lost = Lost(self.roster, cast("Any", self.session), cast("Any", self.ghosts))

    def join(self, index: int, pid: int, kernel: str | None = OURS, executor: str = "") -> FakeWire:
        """A member dials in."""
        wire = FakeWire()
        facts = {"kernel": kernel, "executor": executor or None, "host": "h", "attempt": pid}
        self.roster.joined({"place": f"{index}.0", "pid": pid, **facts}, wire)
        return wire

    def pushed_out(self, seconds: float = 0.3) -> list[str]:
        """Whom it has pushed out, once there is somebody or the time is over."""
        until = time.monotonic() + seconds
        while not self.ghosts.out and time.monotonic() < until:
            self.lost.look()
            time.sleep(0.01)  # between two looks
        return self.ghosts.out


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """One whose times are short; what its threads wait for ends with it."""
    monkeypatch.setattr(lookout, "kernel", lambda: OURS)
    for name, seconds in {"IN_THE_WAY_S": 0.0, "RETURN_S": 0.1, "_PROOF_EVERY_S": 0.01}.items():
        monkeypatch.setattr(lookout, name, seconds)
    made = Fleet()
    yield made
    made.roster.orders.stop = "now"


@pytest.fixture
def dead() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_dead_member_is_pushed_out_and_its_successor_gets_another_id(fleet, dead) -> None:
    """Line and process are gone: it is out, and who comes now does not take its id."""
    wire = fleet.join(1, dead)
    assert wire.said[0]["suffix"] == 0
    fleet.roster.left(1, wire)
    assert fleet.pushed_out(30) == ["g-run-1"]
    assert fleet.roster.slots[1].vacant
    assert fleet.join(1, os.getpid()).said[0]["suffix"] == 1
    assert not fleet.roster.slots[1].vacant


def test_a_process_that_runs_is_left_alone(fleet) -> None:
    """Its line has broken and it may dial again: it is a member still."""
    fleet.roster.left(1, fleet.join(1, os.getpid()))
    assert fleet.pushed_out() == []


@pytest.mark.parametrize("theirs", [None, "another kernel"])
def test_a_process_id_of_elsewhere_proves_nothing(fleet, dead, theirs) -> None:
    """Under another kernel the same number is another process: its session decides."""
    fleet.roster.left(1, fleet.join(1, dead, theirs))
    assert fleet.pushed_out() == []


@pytest.mark.parametrize(("ended", "out"), [(True, ["g-run-1"]), (False, [])])
def test_a_neighbour_reports_whether_it_has_ended(fleet, ended, out) -> None:
    """A member under the dead one's kernel is asked for its process."""
    neighbour = fleet.join(0, 7, "theirs")
    fleet.roster.left(1, fleet.join(1, 8, "theirs"))
    fleet.lost.look()
    asked = wait_for(lambda: neighbour.said[1:], 30, "a question")[0]
    assert (asked["ask"], asked["pid"]) == ("ended", 8)
    fleet.roster.received(0, neighbour, {"type": "answer", "id": asked["id"], "answer": ended})
    assert fleet.pushed_out(30 if ended else 0.3) == out


@pytest.mark.parametrize(("grace_s", "out"), [(0.0, ["g-run-1"]), (60.0, [])])
def test_an_executor_that_spark_gave_up_is_a_proof_after_an_orphan_s_time(
    fleet, monkeypatch, grace_s, out
) -> None:
    """Its members may live on for a moment, and leave by themselves."""
    monkeypatch.setattr(lookout, "GRACE_S", grace_s)
    fleet.session.gone = {"5"}
    fleet.roster.left(1, fleet.join(1, 8, None, "5"))
    assert fleet.pushed_out(30 if out else 0.3) == out


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize(("left", "out"), [(True, []), (False, ["g-run-1"])])
def test_who_says_goodbye_has_left_or_is_pushed_out(fleet, left, out, back, monkeypatch) -> None:
    """Its request to leave may be lost behind a join that a dead member holds up.

    A successor that is there first has an id of its own: who takes over a place between the two
    halves of a cooperative rebalance gets what is left of it, and no one the rest.
    """
    if left:
        fleet.ghosts.left = {"g-run-1"}
    wire = fleet.join(1, os.getpid())
    fleet.roster.received(1, wire, {"type": "bye", "why": "moved"})
    if back:
        monkeypatch.setattr(lookout, "RETURN_S", 60.0)
        fleet.ghosts.state = "STABLE"
    fleet.roster.left(1, wire)
    if back:
        assert fleet.join(1, os.getppid()).said[0]["suffix"] == 1
    assert fleet.pushed_out(30 if out else 0.3) == out
    if not back:
        assert fleet.join(1, os.getppid()).said[0]["suffix"] == 1


def test_a_group_at_rest_waits_for_the_member_s_return(fleet, dead, monkeypatch) -> None:
    """One rebalance then is enough, in which the successor joins: under an id of its own."""
    monkeypatch.setattr(lookout, "RETURN_S", 60.0)
    fleet.ghosts.state = "STABLE"
    fleet.roster.left(1, fleet.join(1, dead))
    assert fleet.pushed_out() == []
    assert fleet.join(1, os.getpid()).said[0]["suffix"] == 1
    assert fleet.pushed_out(30) == ["g-run-1"]


def test_a_group_that_does_not_answer_now_ends_no_push_out(fleet, dead) -> None:
    """A coordinator may move while a member dies: it is taken for a group at rest."""
    fleet.ghosts.state = None
    fleet.roster.left(1, fleet.join(1, dead))
    assert fleet.pushed_out(30) == ["g-run-1"]


def test_a_line_that_broke_keeps_its_place(fleet) -> None:
    """The same process dials in again: it is in the group all the time."""
    fleet.roster.left(1, fleet.join(1, os.getpid()))
    assert fleet.join(1, os.getpid()).said[0]["suffix"] == 0
    assert fleet.pushed_out() == []


def test_a_run_that_stops_leaves_it_to_the_end(fleet, dead) -> None:
    """Who is left then is seen off when all have gone."""
    fleet.roster.orders.stop = "in_flight"
    fleet.roster.left(1, fleet.join(1, dead))
    assert fleet.pushed_out() == []


def _zombie() -> tuple[int, Callable[[], Any]]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return process.pid, process.wait


def test_a_process_has_ended_when_no_one_has_waited_for_it_yet(dead) -> None:
    """Gone, or a zombie; this process runs, and so does one of another user."""
    zombie, wait = _zombie()
    assert has_ended(zombie)
    wait()
    assert has_ended(dead)
    assert not has_ended(os.getpid())
    assert not has_ended(1)


def test_one_kernel_is_the_same_for_all_its_processes() -> None:
    """What names it names it for a child, too; where the platform shows it."""
    code = "from perkey.spark.fleet.membership import kernel; print(kernel())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(kernel())
