"""A fleet as its own process tree: members, driver and signals, and what is left behind."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from typing import Any

import pytest
from tests.integration.spark.fleet_kit import (
    START_S,
    all_gone,
    at_work,
    fill,
    kill,
    order_breaks,
    running,
    write_app,
)
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS, PARTITIONS = 6_000, 4
#: The session time-out in the apps is 120 s: sooner than that only a static id can be. On a quiet
#: machine it should be a second at most (benchmarks/spark_fleet.py).
BACK_S = 90.0
#: So long the other member may pause; a rebalance without the dead one would take the 120 s.
PAUSE_S = 90.0
#: Below the drain time-out and the session, on a machine that runs other things too.
STOP_S = 60.0


@pytest.fixture
def folder(tmp_path, topic, kafka_broker) -> Any:
    """A folder with an app for a topic with records in it."""
    name = topic(PARTITIONS, "kills")
    fill(kafka_broker.bootstrap, name, RECORDS, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, concurrency=5, together=2)
    return tmp_path


@pytest.mark.long
def test_a_killed_member_is_back_immediately(folder) -> None:
    """After kill -9 a member has its partitions long before the session time-out.

    The other goes on, nothing is lost, keys stay in order, and the drain ends it all.
    """
    with running(folder, "--members", "2", "--until", "drained") as fleet:
        before = at_work(fleet)
        victim = min(before)
        held = {one["p"] for one in fleet.events("begin") if one["pid"] == victim}
        at = time.time()
        kill(victim)

        def back() -> Any:
            return [
                one
                for one in fleet.events("begin")
                if one["pid"] not in before and one["at"] > at and one["p"] in held
            ]

        first = wait_for(back, START_S, "the member's return")[0]
        kin = fleet.descendants()
        assert fleet.wait() == 0, fleet.text
        others = sorted(
            one["at"]
            for one in fleet.events("begin")
            if one["pid"] == max(before) and one["at"] > at - 1
        )
        assert first["at"] - at < BACK_S
        assert max((b - a for a, b in pairwise(others)), default=0.0) < PAUSE_S
        assert len(fleet.done()) == RECORDS
        assert order_breaks(fleet.events()) == []
        assert "member died member=" in fleet.text
        assert f"reason=drained done={RECORDS} " in fleet.text
        assert all_gone(kin, STOP_S) == []


@pytest.mark.long
def test_ctrl_c_drains_all_members(folder) -> None:
    """Ctrl-C: what runs is finished, the lifespans closed, and nothing stays."""
    with running(folder, "--members", "2") as fleet:
        at_work(fleet)
        kin = fleet.descendants()
        at = time.time()
        fleet.ctrl_c()
        assert fleet.wait() == 0, fleet.text
        assert time.time() - at < STOP_S
        begun = {(one["p"], one["o"]) for one in fleet.events("begin")}
        assert begun == fleet.done()
        assert len(fleet.events("open")) == len(fleet.events("close")) == 2
        assert all_gone(kin, STOP_S) == []


@pytest.mark.long
def test_a_second_signal_ends_it_now(tmp_path, topic, kafka_broker) -> None:
    """Two SIGTERMs while a handler takes long: exit code 143, soon."""
    name = topic(PARTITIONS, "slow")
    fill(kafka_broker.bootstrap, name, 100, PARTITIONS)
    write_app(tmp_path, kafka_broker.bootstrap, name, seconds=600)
    with running(tmp_path, "--members", "1") as fleet:
        wait_for(lambda: fleet.events("begin"), START_S, "the first call")
        fleet.signal(signal.SIGTERM)
        wait_for(lambda: "mode=in_flight" in fleet.text, 60, "the first stop")
        at = time.time()
        fleet.signal(signal.SIGTERM)
        assert fleet.wait() == 143, fleet.text
        assert time.time() - at < STOP_S  # the call takes 600 s, a drain 90 s


def test_members_leave_when_the_driver_is_killed(folder, kafka_broker) -> None:
    """After kill -9 of the driver members commit and leave soon, and nothing stays.

    The next run repeats nothing that was finished.
    """
    with running(folder, "--members", "2") as fleet:
        at_work(fleet)
        kin = fleet.descendants()
        at = time.time()
        fleet.signal(signal.SIGKILL)
        fleet.process.wait(STOP_S)
        assert all_gone(kin, STOP_S) == []
        assert max(one["at"] for one in fleet.events("close")) - at < STOP_S
        assert len(fleet.events("close")) == 2
        first = len(fleet.events("end"))
    with running(folder, "--until", "drained", engine="local") as fleet:
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.events("end")) == len(fleet.done()) == RECORDS > first


@pytest.mark.long
def test_sigterm_to_one_member_moves_it(folder) -> None:
    """SIGTERM to a member's own process: it drains and leaves, and another takes its place."""
    with running(folder, "--members", "2", "--until", "drained") as fleet:
        before = at_work(fleet)
        os.kill(min(before), signal.SIGTERM)
        wait_for(lambda: "why=terminated" in fleet.text, 60, "its goodbye")
        assert fleet.wait() == 0, fleet.text
        assert len(fleet.events("end")) == len(fleet.done()) == RECORDS
