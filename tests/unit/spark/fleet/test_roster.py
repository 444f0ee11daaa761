"""What the driver makes of what members say: deaths, goodbyes, counts, drained, one snapshot."""

from __future__ import annotations

import time
from typing import Any

import pytest

from perkey.kafka.ports import KafkaUnavailable
from perkey.runtime.run.drain import SHORT_MAX
from perkey.spark.fleet.aggregate import merged, percentiles_ms
from perkey.spark.fleet.ending import GroupDrain
from perkey.spark.fleet.limits import DEATHS_MAX, SILENT_S
from perkey.spark.fleet.roster import Orders, Receivers, Roster
from perkey.spark.fleet.wire import WireError

PATIENCE_S = 0.2


class FakeWire:
    """A line that remembers what was said on it."""

    def __init__(self, *, gone: bool = False) -> None:
        self.said: list[dict[str, Any]] = []
        self.gone = gone

    def send(self, message: dict[str, Any]) -> None:
        """Remember it, or fail as a line without a peer does."""
        if self.gone:
            raise WireError("gone")
        self.said.append(message)


class Heard:
    """What the fleet was told."""

    def __init__(self) -> None:
        self.fatal: list[tuple[int, str, bool]] = []
        self.asked: list[Any] = []
        self.events: list[Any] = []

    def ears(self) -> Receivers:
        """The roster's listeners."""
        return Receivers(
            lambda code, reason, _error, up: self.fatal.append((code, reason, up)),
            self.asked.append,
            lambda name, items: self.events.append((name, items)),
        )


@pytest.fixture
def heard() -> Heard:
    """Nothing yet."""
    return Heard()


@pytest.fixture
def roster(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Roster:
    """A fleet of two of whom nobody is there yet; who does not go is not waited for long."""
    monkeypatch.setattr("perkey.spark.fleet.roster.PREDECESSOR_S", PATIENCE_S)
    orders = Orders(static=True, ends=[["t", 0, 9]], callbacks=[], log_level=20)
    return Roster(2, orders, heard.ears())


def join(roster: Roster, place: str = "0.0", *, pid: int = 1, attempt: int = 0) -> FakeWire:
    """A member dials in and is up."""
    wire = FakeWire()
    hello = {"place": place, "host": "h", "pid": pid, "attempt": attempt}
    index = roster.joined(hello, wire)
    assert index is not None
    roster.received(index, wire, {"type": "up"})
    return wire


def progress(roster: Roster, wire: FakeWire, done: int, finished: Any = ()) -> None:
    """Member 0 reports."""
    counts = {"done": done, "failures": 0}
    message = {"type": "progress", "counts": counts, "finished": list(finished), "parked": 0}
    places = [[topic, partition, 0] for topic, partition, _ in finished]
    roster.received(0, wire, {**message, "places": places})


def test_a_member_is_reported_how_things_are(roster) -> None:
    """The welcome has the ends and whether it comes back."""
    wire = join(roster)
    assert (wire.said[0]["ends"], wire.said[0]["again"]) == ([["t", 0, 9]], False)
    roster.left(0, wire)
    assert join(roster, pid=2).said[0]["again"] is True


def test_counts_survive_a_death(roster) -> None:
    """What a killed life has reported stays in the total, and what it held is held no more."""
    wire = join(roster)
    progress(roster, wire, 5, [["t", 0, True]])
    assert roster.finished() == {("t", 0): True}
    roster.left(0, wire)
    wire = join(roster, pid=2)
    assert roster.finished() == {}
    progress(roster, wire, 3)
    assert roster.total("done") == 8
    assert roster.slots[0].facts()["restarts"] == 1


def begun(roster: Roster, index: int, wire: FakeWire, place: int) -> None:
    """A member begins partition 0 of t where the group's commit is."""
    roster.received(index, wire, {"type": "begun", "partitions": [["t", 0, place]]})


def told(roster: Roster, index: int, wire: FakeWire, done: int, place: int | None = None) -> None:
    """A member reports its count, and how far it is in that partition if it holds it."""
    rows = [] if place is None else [["t", 0, place]]
    message = {"counts": {"done": done}, "finished": [], "parked": 0, "places": rows}
    roster.received(index, wire, {"type": "progress", **message})


def reports(roster: Roster, index: int, wire: FakeWire, *partitions: int) -> None:
    """A member's snapshot: it has these partitions of t, a record runs and blocks in each."""
    rows = [{"topic": "t", "partition": number, "remaining": 1} for number in partitions]
    blocks = {"offset": 0, "since": None, "waiting_behind": 1, "done_beyond": 0}
    blockers = [{**row, **blocks} for row in rows]
    halts = [{"cause": "buffers", **row} for row in rows] + [{"cause": "slots", "handler": "h"}]
    body = {
        "state": "running", "partitions": rows, "blockers": blockers, "halts": halts,
        "holds": ["outputs"], "app": {"member": f"m{index}"},
        "handlers": {"h": {"done": 5, "in_flight": len(rows), "concurrency": 4}},
    }  # fmt: skip
    message = {"type": "snapshot", "id": 1_000, "shot": body, "latencies": {}}
    roster.received(index, wire, message)


def owners(roster: Roster) -> list[tuple[int, int]]:
    """(partition, member) of every row of the fleet's view; the members' own rows are the same."""
    rows = merged("running", roster.shots(), [])["partitions"]
    theirs = [
        (row["partition"], member["app"]["member"])
        for member in roster.members()
        for row in member["partitions"]
    ]
    assert sorted(theirs) == [(row["partition"], f"m{row['member']}") for row in rows]
    return [(row["partition"], row["member"]) for row in rows]


def claims(roster: Roster, index: int, wire: FakeWire, *, at_end: bool | None = None) -> None:
    """A member reports that it holds partition 0 of t, and whether that is finished."""
    finished = [] if at_end is None else [["t", 0, at_end]]
    message = {"counts": {}, "finished": finished, "parked": 0 if at_end is None else 1}
    roster.received(index, wire, {"type": "progress", **message, "places": [["t", 0, 0]]})


@pytest.fixture
def pair(roster: Roster) -> tuple[FakeWire, FakeWire]:
    """Members 0 and 1; 0 began partition 0 of t first, then 1 did, and both report it."""
    one, two = join(roster, "0.0"), join(roster, "1.0")
    begun(roster, 0, one, 0)
    begun(roster, 1, two, 0)
    reports(roster, 0, one, 0, 1)
    reports(roster, 1, two, 0)
    return one, two


def test_the_later_assignment_owns_a_partition(roster, pair) -> None:
    """Of two living members that both report it; an assignment back changes the owner again."""
    assert owners(roster) == [(0, 1), (1, 0)]
    whole = merged("running", roster.shots(), [])
    assert sorted((row["member"], row["partition"]) for row in whole["blockers"]) == [
        (0, 1), (1, 0),
    ]  # fmt: skip
    assert [(row["member"], row.get("partition")) for row in whole["halts"]] == [
        (0, 1), (0, None), (1, 0), (1, None),
    ]  # fmt: skip
    begun(roster, 0, pair[0], 0)
    assert owners(roster) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("how", ["killed", "silent", "moved"])
def test_a_lost_member_owns_nothing_that_a_living_one_reports(roster, pair, how) -> None:
    """Also where its assignment was the later one; what no other member reports stays visible."""
    reports(roster, 1, pair[1], 0, 2)
    if how == "killed":
        roster.left(1, pair[1])
    elif how == "silent":
        roster.slots[1].received_at -= 1_000
    else:
        roster.received(1, pair[1], {"type": "bye", "why": "moved"})
    assert owners(roster) == [(0, 0), (1, 0), (2, 1)]


def test_a_lost_member_does_nothing_now(roster, pair) -> None:
    """What it has done counts; its calls, slots, halts and holds have ended with it."""
    roster.left(1, pair[1])
    whole = merged("running", roster.shots(), [])
    handler = whole["handlers"]["h"]
    assert (handler["done"], handler["in_flight"], handler["concurrency"]) == (10, 2, 4)
    assert {row["member"] for row in whole["halts"]} == {0}
    roster.left(0, pair[0])
    assert merged("running", roster.shots(), [])["holds"] == []


@pytest.mark.parametrize("how", ["killed", "silent", "moved"])
def test_drained_does_not_believe_a_lost_member(roster, pair, how) -> None:
    """Neither that a partition is at its end, nor that records are parked there."""
    claims(roster, 0, pair[0])
    told(roster, 0, pair[0], 0)  # no other member claims it now
    claims(roster, 1, pair[1], at_end=False)
    assert (roster.finished(), roster.parked()) == ({("t", 0): False}, 1)
    if how == "killed":
        roster.left(1, pair[1])
    elif how == "silent":
        roster.slots[1].received_at -= 1_000
    else:
        roster.received(1, pair[1], {"type": "bye", "why": "moved"})
    assert (roster.finished(), roster.parked()) == ({}, 0)


def test_drained_believes_the_later_assignment(roster, pair) -> None:
    """The former holder's True is void from when the next one begins, not from its report on."""
    claims(roster, 0, pair[0], at_end=True)
    assert roster.finished() == {}
    claims(roster, 1, pair[1], at_end=True)
    assert roster.finished() == {("t", 0): True}


def test_an_assignment_that_was_not_received_shows_in_the_progress(roster, pair) -> None:
    """The line broke as member 0 began again: that it lists the partition anew is later."""
    claims(roster, 0, pair[0])
    told(roster, 0, pair[0], 0)
    claims(roster, 0, pair[0], at_end=True)
    assert roster.finished() == {("t", 0): True}


def test_the_last_word_of_members_that_left_for_good_is_believed(roster, pair) -> None:
    """After a stop: what is parked is not missing from the group's commits."""
    roster.orders.stop = "in_flight"
    claims(roster, 1, pair[1], at_end=False)
    for index, wire in enumerate(pair):
        roster.received(index, wire, {"type": "bye", "why": "stopped"})
        roster.left(index, wire)
    assert roster.finished() == {("t", 0): False}


def test_the_owner_answers_first(roster, pair) -> None:
    """Of a partition that two members say they have."""
    for index, wire in enumerate(pair):
        wire.send = lambda message, i=index, w=wire: roster.received(
            i, w, {"type": "answer", "id": message["id"], "answer": i}
        )
    asked = {"ask": "picture", "topic": "t", "partition": 0}
    assert list(roster.ask(asked).items()) == [("m1", 1), ("m0", 0)]
    assert list(roster.ask({"ask": "find_key", "topic": None})) == ["m0", "m1"]


@pytest.mark.parametrize("committed", [110, 107, 104])
@pytest.mark.parametrize("heir", [0, 1])
def test_what_a_killed_life_did_not_report_is_counted(roster, committed, heir) -> None:
    """It told of 7 records and had committed more, as much, or less: each record counts once."""
    wires = [join(roster, "0.0"), join(roster, "1.0")]
    begun(roster, 0, wires[0], 100)
    told(roster, 0, wires[0], 7, 107)
    roster.left(0, wires[0])
    if heir == 0:
        wires[0] = join(roster, "0.0", pid=2)
    begun(roster, heir, wires[heir], committed)
    told(roster, heir, wires[heir], 120 - committed, 120)
    assert roster.total("done") == 20


def test_a_partition_that_moves_is_not_counted_twice(roster) -> None:
    """The one that gave it up lives and tells the rest of its count itself."""
    wires = [join(roster, "0.0"), join(roster, "1.0")]
    told(roster, 0, wires[0], 7, 107)
    begun(roster, 1, wires[1], 110)
    assert roster.total("done") == 7
    told(roster, 0, wires[0], 10)
    told(roster, 1, wires[1], 5, 115)
    roster.left(0, wires[0])
    assert roster.total("done") == 15


def test_a_broken_line_is_no_death(roster) -> None:
    """The same process on a new line: nothing has died, nothing is counted twice."""
    wire = join(roster)
    progress(roster, wire, 5)
    roster.left(0, wire)
    progress(roster, join(roster), 6)
    assert roster.total("done") == 6
    assert len(roster.slots[0].deaths) == 0


@pytest.mark.parametrize(("deaths", "fatal"), [(DEATHS_MAX - 1, 0), (DEATHS_MAX, 1)])
def test_the_last_death_is_fatal(roster, heard, deaths, fatal) -> None:
    """One death below the limit the fleet goes on; at the limit it ends with the story."""
    for pid in range(deaths):
        wire = join(roster, pid=pid)
        roster.received(0, wire, {"type": "died", "reason": f"story {pid}"})
    assert len(heard.fatal) == fatal
    if fatal:
        assert heard.fatal[0][0] == 1
        assert heard.fatal[0][1].endswith(f"story {deaths - 1}")


def test_old_deaths_are_forgiven(roster, heard) -> None:
    """Deaths count within a window only."""
    wire = join(roster)
    for _ in range(DEATHS_MAX - 1):
        roster.received(0, wire, {"type": "died", "reason": "x"})
    roster.slots[0].deaths[0] -= 1_000
    roster.received(0, wire, {"type": "died", "reason": "x"})
    assert heard.fatal == []


def test_a_refusal_ends_the_run_as_bad_input(roster, heard) -> None:
    """An executor that cannot run the app: exit code 2, with its words."""
    wire = join(roster)
    roster.received(0, wire, {"type": "bye", "why": "refused", "reason": "lacks x"})
    roster.left(0, wire)
    assert heard.fatal == [(2, "member 0: lacks x", True)]
    assert roster.slots[0].ended
    assert len(roster.slots[0].deaths) == 0


def test_an_end_before_a_member_is_up_is_a_start_that_failed(roster, heard) -> None:
    """A lifespan that does not open, unlike a handler's Stop: start() raises the first only."""
    wire = FakeWire()
    roster.joined({"place": "0.0", "host": "h", "pid": 1, "attempt": 0}, wire)
    roster.received(0, wire, {"type": "bye", "why": "failed", "reason": "no lifespan"})
    assert heard.fatal == [(1, "member 0: no lifespan", False)]


def test_a_member_that_was_terminated_is_awaited(roster) -> None:
    """It said goodbye, but the fleet goes on: another takes its place."""
    wire = join(roster)
    roster.received(0, wire, {"type": "bye", "why": "terminated"})
    roster.left(0, wire)
    assert not roster.slots[0].ended
    assert len(roster.slots[0].deaths) == 0


def test_who_comes_after_a_stop_is_sent_away(roster) -> None:
    """A restarted member that arrives while the fleet stops leaves at once."""
    roster.orders.stop = "in_flight"
    assert join(roster).said[0]["leave"] is True


def test_a_ghost_is_sent_away(roster) -> None:
    """A process of a job that was given up meets its successor and leaves."""
    join(roster, "0.1", pid=2)
    assert join(roster, "0.0", pid=1).said[0]["leave"] is True


def test_a_predecessor_leaves_first(roster) -> None:
    """A new life waits until the old one, still on the line, has been told to leave."""
    old = join(roster, pid=1)
    began = time.monotonic()
    old.gone = False
    join(roster, "0.1", pid=2)
    assert {"type": "leave"} in old.said
    assert time.monotonic() - began >= PATIENCE_S  # nobody hung up: it took the whole patience


class FakeAdmin:
    """Answers with what the group has committed."""

    def __init__(self) -> None:
        self.committed: dict[Any, int | None] = {}
        self.down = False
        self.logs = {("t", 0): 5, ("t", 1): 7}
        #: what it answers first, whatever is committed since
        self.stale: list[dict[Any, int | None]] = []

    def ends(self, *_: Any, **__: Any) -> dict[Any, int]:
        """Ends of the logs."""
        return self.logs

    def group_offsets(self, group: str, partitions: Any, timeout_s: float) -> dict[Any, Any]:
        """The committed offsets."""
        if self.down:
            raise KafkaUnavailable("down")
        held = self.stale.pop(0) if self.stale else self.committed
        return {where: held.get(where) for where in partitions}


def test_drained_is_judged_for_the_group(monkeypatch) -> None:
    """Every end must be committed, or held by a member that says it is finished with it."""
    monkeypatch.setattr("perkey.spark.fleet.ending._ASK_EVERY_S", -1.0)
    monkeypatch.setattr("perkey.spark.fleet.ending._VISIBLE_S", 0.0)
    admin = FakeAdmin()
    ends = {("t", 0): 5, ("t", 1): 7, ("t", 2): 0}
    drain = GroupDrain(admin, "g", {("t", 2): 0}, ends)
    assert drain.ends() == [["t", 0, 5], ["t", 1, 7]]
    assert not drain.over([])
    admin.committed[("t", 0)] = 5
    admin.committed[("t", 1)] = 6
    assert not drain.over([])
    admin.down = True
    assert not drain.over([])
    assert drain.over([("t", 1)])
    admin.down = False
    assert drain.missing([]) == [("t", 1)]
    assert drain.missing([("t", 1)]) == []


def test_a_deleted_topic_is_not_drained_for_ever(monkeypatch) -> None:
    """Its records no longer exist; those of others are waited for."""
    monkeypatch.setattr("perkey.spark.fleet.ending._ASK_EVERY_S", -1.0)
    monkeypatch.setattr("perkey.runtime.run.drain.LOGS_EVERY_S", -1.0)
    admin = FakeAdmin()
    drain = GroupDrain(admin, "g", {}, {("t", 0): 5, ("u", 0): 7})
    admin.logs = {("u", 0): 7}
    for _ in range(SHORT_MAX):
        assert not drain.over([])
    admin.committed[("u", 0)] = 7
    assert drain.over([])
    assert drain.missing([]) == []


def test_the_offsets_of_the_last_transaction_may_be_late() -> None:
    """The broker answers its end before they can be read: no member was killed."""
    admin = FakeAdmin()
    drain = GroupDrain(admin, "g", {}, {("t", 0): 5})
    admin.committed[("t", 0)] = 5
    admin.stale = [{("t", 0): 3}, {("t", 0): 3}]
    assert drain.missing([]) == []


def test_snapshots_add_up() -> None:
    """Partitions side by side, counts and rates summed, percentiles of all samples."""

    def shot(partition: int, done: int) -> dict[str, Any]:
        row = {"topic": "t", "partition": partition, "lag": 1}
        handler = {"done": done, "rate_per_s": 1.5, "concurrency": 10, "latency_ms": {}}
        body = {"state": "running", "partitions": [row], "handlers": {"h": handler}}
        return {"shot": body, "latencies": {"h": [0.001 * done]}}

    total = merged("running", {1: shot(0, 2), 0: shot(1, 4)}, [])
    assert [row["partition"] for row in total["partitions"]] == [0, 1]
    assert [row["member"] for row in total["partitions"]] == [1, 0]
    handler = total["handlers"]["h"]
    assert (handler["done"], handler["rate_per_s"], handler["concurrency"]) == (6, 3.0, 20)
    assert handler["latency_ms"] == {"p50": 2.0, "p99": 4.0}
    assert percentiles_ms([]) == {"p50": None, "p99": None}
    assert merged("stopping", {}, [])["state"] == "stopping"


def test_a_member_that_does_not_report_is_silent(roster, monkeypatch) -> None:
    """Suspended, or cut off without an end of its line: what it reported last does not hold."""
    now = [time.monotonic()]
    monkeypatch.setattr("perkey.spark.fleet.slots.time.monotonic", lambda: now[0])
    wire = join(roster)
    reports(roster, 0, wire, 0)
    now[0] += SILENT_S - 0.1
    (member,) = roster.members()
    assert (member["silent_s"], roster.slots[0].facts()["state"]) == (0.0, "up")
    assert merged("running", roster.shots(), [])["halts"]
    now[0] += 0.1
    (member,) = roster.members()
    assert (member["silent_s"], roster.slots[0].facts()["state"]) == (SILENT_S, "away")
    shot = merged("running", roster.shots(), [])
    assert (shot["halts"], shot["handlers"]["h"]["in_flight"]) == ([], 0)
    reports(roster, 0, wire, 0)
    assert roster.members()[0]["silent_s"] == 0.0


def test_a_member_that_starts_is_not_silent(roster, monkeypatch) -> None:
    """It reports nothing before it is up: its lifespan may take a minute."""
    wire = FakeWire()
    roster.joined({"place": "0.0", "host": "h", "pid": 1, "attempt": 0}, wire)
    assert roster.slots[0].silent_s(time.monotonic() + 60.0) == 0.0


def test_a_line_that_breaks_before_the_welcome_has_ended(roster) -> None:
    """No one reads it, so its end would never be seen."""
    hello = {"place": "0.0", "host": "h", "pid": 1, "attempt": 0}
    assert roster.joined(hello, FakeWire(gone=True)) is None
    assert roster.slots[0].wire is None
    assert roster.slots[0].silent_since is not None
