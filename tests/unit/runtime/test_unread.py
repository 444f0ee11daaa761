"""Assigned partitions that are not read: each is in every view, and is fetched anew if stuck."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.core.gates import PAUSED, REVOKING, Gate
from perkey.core.partition import Partition
from perkey.kafka.ports import KafkaUnavailable, Polled, PolledBatch
from perkey.observe.metrics import exposed
from perkey.observe.overview import overview, page_of
from perkey.observe.why import why
from perkey.runtime.member import rebalance
from perkey.runtime.member.unread import (
    ASK_S,
    BUSY_TIMES,
    COMES_S,
    SILENT_ASK_S,
    STILL_S,
    Watchdog,
)
from perkey.runtime.run.progress_line import line_of
from perkey.testing import MemoryKafka

WHERE = ("orders", 3)
#: when a partition that is stuck from the start is fetched anew
ACTS_S = ASK_S + COMES_S


class GroupMembership:
    """One partition on a clock of our own; what is left for other threads is done at once."""

    def __init__(self, *, end: int) -> None:
        self.time, self.end, self.away = 0.0, end, False
        self.leaderless: set[Any] = set()
        self.partition: Any = SimpleNamespace(gate=Gate(), intake_paused=False, position=5)
        self.partitions: dict[Any, Partition] = {WHERE: self.partition}
        self.consumer = self
        self.paused: set[Any] = set()
        #: what was asked of the consumer
        self.did: list[Any] = []
        self.dog = Watchdog(self, lambda: self.paused)

    def now(self) -> float:
        return self.time

    def background(self, action: Any) -> None:
        action()

    on_poll_thread = background

    def stable_ends(self, where: Any, timeout_s: float) -> dict[Any, int]:
        self.did.append("asked")
        if self.away:
            raise KafkaUnavailable
        return {one: self.end for one in where if one not in self.leaderless}

    def refresh(self, topics: Any, timeout_s: float) -> None:
        self.did.append(("refreshed", *topics))

    def begin(self, where: Any, offset: int) -> None:
        self.did.append(("sought", where, offset))

    def pass_time(self, until: float, *, each: Any = lambda now: None) -> GroupMembership:
        """Tick twice a second until then."""
        while self.time < until:
            self.time += 0.5
            each(self.time)
            self.dog.tick(self.time)
        return self

    @property
    def sought(self) -> list[Any]:
        return [one for one in self.did if one[0] == "sought"]


def test_a_partition_that_is_not_fetched_is_refreshed_and_sought_after_30_s() -> None:
    """Metadata first, then a seek to the same place; counted, and shown until a record arrives."""
    membership = GroupMembership(end=9).pass_time(STILL_S + 2)
    assert membership.did == ["asked", ("refreshed", "orders"), "asked", ("sought", WHERE, 5)]
    assert membership.dog.refetched == 1
    assert membership.dog.stuck.keys() == {WHERE}
    assert membership.dog.ends == {WHERE: 9}
    membership.partition.position = 6
    membership.pass_time(membership.time + 2)
    assert (membership.dog.stuck, membership.dog.ends) == ({}, {})


def test_one_that_stays_stuck_is_fetched_again_every_30_s() -> None:
    """Not at every look."""
    membership = GroupMembership(end=9).pass_time(4 * STILL_S + 8)
    assert len(membership.sought) == 4


def test_an_idle_partition_is_only_asked_about() -> None:
    """Its log ends where it is."""
    membership = GroupMembership(end=5).pass_time(10 * STILL_S)
    assert set(membership.did) == {"asked"}
    assert len(membership.did) <= 10 * STILL_S / ASK_S


@pytest.mark.parametrize("by", ["intake_paused", PAUSED, REVOKING, "out of range"])
def test_what_is_paused_is_left_alone(by: str) -> None:
    """Also for long, and its time starts anew once it is resumed."""
    membership = GroupMembership(end=9)
    if by == "out of range":
        membership.paused = {WHERE}
    elif by == "intake_paused":
        membership.partition.intake_paused = True
    else:
        membership.partition.gate.close(by)
    membership.pass_time(5 * STILL_S)
    assert not membership.did
    membership.paused = set()
    membership.partition.gate.open(by)
    membership.partition.intake_paused = False
    began = membership.time
    membership.pass_time(began + ASK_S - 1)
    assert not membership.did
    assert membership.pass_time(began + ACTS_S + 2).sought


def test_one_that_moves_now_and_then_is_never_sought() -> None:
    """A record every 25 s is a partition that is fetched."""

    def fetched(now: float) -> None:
        membership.partition.position = 5 + int(now // (STILL_S - 5))

    membership = GroupMembership(end=99)
    assert not membership.pass_time(10 * STILL_S, each=fetched).sought


def test_while_no_broker_answers_nothing_is_sought() -> None:
    """Nothing is known then; after the outage it is asked again."""
    membership = GroupMembership(end=9)
    membership.away = True
    assert not membership.pass_time(3 * STILL_S).sought
    membership.away = False
    assert membership.pass_time(membership.time + STILL_S + 2).sought


OTHER = ("orders", 4)


@pytest.mark.parametrize("alone", [True, False])
def test_a_partition_whose_leader_does_not_answer_is_reported(alone: bool, caplog: Any) -> None:
    """Drained or not: its broker was killed, and it was "drained: all records are done" for ever."""
    membership = GroupMembership(end=5)
    if not alone:
        other: Any = SimpleNamespace(**vars(membership.partition))
        membership.partitions[OTHER] = other
    membership.pass_time(3 * ASK_S)
    assert membership.dog.silent == {}
    membership.leaderless = {WHERE}
    membership.pass_time(membership.time + ASK_S + 2 * SILENT_ASK_S)
    assert membership.dog.silent.keys() == {WHERE}
    membership.pass_time(membership.time + 10 * ASK_S)
    (line,) = caplog.messages
    assert "their leaders do not answer partitions=orders[3] " in line
    membership.leaderless = set()
    membership.pass_time(membership.time + 2 * SILENT_ASK_S)
    assert membership.dog.silent == {}


def test_a_leader_that_answers_the_second_query_is_not_silent() -> None:
    """It moved: one query was lost. A record that arrives shows the same."""
    membership = GroupMembership(end=5)
    membership.leaderless = {WHERE}
    membership.pass_time(ASK_S + 1)
    membership.leaderless = set()
    membership.pass_time(membership.time + 2 * ASK_S)
    assert membership.dog.silent == {}
    membership.leaderless = {WHERE}
    membership.pass_time(membership.time + 3 * ASK_S)
    assert membership.dog.silent.keys() == {WHERE}
    membership.partition.position = 6
    membership.pass_time(membership.time + 2)
    assert membership.dog.silent == {}


def test_behind_full_polls_a_partition_waits_longer() -> None:
    """Its records may wait in the client behind those of others."""

    def full(_now: float) -> None:
        records: Any = [None] * 4
        membership.dog.polled(Polled([PolledBatch("orders", 1, records, [1] * 4)]), 4)

    membership = GroupMembership(end=9)
    assert not membership.pass_time((BUSY_TIMES - 1) * STILL_S, each=full).sought
    assert membership.pass_time((BUSY_TIMES + 1) * STILL_S, each=full).sought


def test_a_partition_whose_start_is_not_known_is_in_every_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its place and since when; what is left of it is unknown, not 0."""
    monkeypatch.setattr(rebalance, "FIND_AGAIN_S", 0.01)
    kafka = MemoryKafka()
    kafka.create_topic("orders")
    kafka.produce("orders", b"x")
    kafka.fail_next("find", "LEADER_NOT_AVAILABLE", times=100_000)
    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
    app.consume("orders")(lambda record: None)
    run = app.start()
    try:
        shot = until(app, lambda row: "LEADER" in (row["place_reason"] or ""))
        (row,) = shot["partitions"]
        assert (row["place"], row["state"], row["remaining"]) == ("start_unknown", "assigned", None)
        assert row["handler"] in shot["handlers"]
        assert [halt["cause"] for halt in shot["halts"]] == ["start_unknown"]
        told = "orders[0] is assigned, but its start offset has been unknown for "
        assert str(why(shot)[0]).startswith(told)
        assert [str(one).startswith(told) for one in why(shot, "orders", 0)] == [True]
        text = exposed(lambda: shot).decode()
        assert "perkey_remaining_records{" not in text
        assert 'perkey_partition_unread_seconds{group="g",partition="0",topic="orders"}' in text
        assert 'perkey_halted{cause="start_unknown",group="g"} 1.0' in text
        assert "remaining unknown" in line_of(shot)
        seen = overview([shot])
        assert (seen["totals"]["remaining"], seen["totals"]["unread"]) == (None, 1)
        assert page_of(seen["partitions"])["rows"][0]["place"] == "start_unknown"
        kafka._faults["find"].clear()
        (row,) = until(app, lambda row: row["remaining"] == 0)["partitions"]
        assert row["place"] is None
    finally:
        run.stop()
        run.wait(60)


def until(app: perkey.App, holds: Any) -> dict[str, Any]:
    """The first snapshot whose one partition is so."""

    def found() -> dict[str, Any] | None:
        shot = app.snapshot()
        return shot if shot["partitions"] and holds(shot["partitions"][0]) else None

    return dict(wait_for(found, what=app.snapshot))
