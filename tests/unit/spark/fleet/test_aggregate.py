"""Snapshots of a fleet's members as one."""

from __future__ import annotations

import json

from perkey.observe.orders import Answer, Order
from perkey.spark.fleet.aggregate import merged
from perkey.spark.fleet.outside import FleetSource, answered


def shot(name: str, waits: int) -> dict:
    """One member's answer, with one blocker and one cause."""
    place = {"topic": "t", "partition": 0, "offset": waits, "since": None}
    blocker = {**place, "waiting_behind": waits, "done_beyond": 1}
    return {
        "shot": {
            "state": "running", "partitions": [], "handlers": {}, "counts": {"parked_records_gone": 1},
            "blockers": [blocker], "halts": [{"cause": "slots", "handler": name}], "holds": [name],
        },
        "latencies": {},
    }  # fmt: skip


def test_the_worst_blockers_of_all_members_come_first():
    """Blockers and causes name their member, the heaviest blocker first; counts add up."""
    whole = merged("running", {1: shot("a", 3), 0: shot("b", 2)}, [], {"group": "g"})
    assert [(row["member"], row["offset"]) for row in whole["blockers"]] == [(1, 3), (0, 2)]
    assert [(row["member"], row["handler"]) for row in whole["halts"]] == [(0, "b"), (1, "a")]
    assert (whole["holds"], whole["counts"]) == (["a", "b"], {"parked_records_gone": 2})


def test_the_records_parked_for_longest_come_first():
    """Of all members; how many more there are is known from their partitions."""
    shots = {1: shot("a", 3), 0: shot("b", 2)}
    for at, one in enumerate(shots.values()):
        body = one["shot"]
        body["parked"] = [{"topic": "t", "partition": at, "offset": 7, "since": 5.0 - at}]
        body["partitions"] = [{"topic": "t", "partition": at, "places": {"parked": 3 + at}}]
    whole = merged("running", shots, [])
    assert [(row["member"], row["since"]) for row in whole["parked"]] == [(0, 4.0), (1, 5.0)]
    assert (whole["parked_left_out"], whole["on_hold"], whole["on_hold_left_out"]) == (5, [], 0)


def test_histograms_add_up():
    """The driver's metrics are those of all members."""
    row = {"latency_buckets": {"le": [0.1], "counts": [2, 1], "sum": 0.5}, "done": 3}
    shots = {n: {**shot("a", 1), "shot": {**shot("a", 1)["shot"], "handlers": {"h": row}}}
             for n in range(3)}  # fmt: skip
    total = merged("running", shots, [], {"group": "g"})["handlers"]["h"]
    assert total["latency_buckets"] == {"le": [0.1], "counts": [6, 3], "sum": 1.5}
    assert total["done"] == 9


class Members:
    """A fleet of two: the second has the partition; nobody answers for a third."""

    def __init__(self, *, there=True):
        self.there = there

    def members(self):
        return [{"app": {"member": "m0"}}, {"app": {"member": "m1"}}]

    def ask(self, question):
        question = json.loads(json.dumps(question))  # as it travels
        mine = answered(Member(), question) if self.there else None
        return {"m0": answered(Member(mine=False), question), "m1": mine, "m2": None}


class Member:
    """One member, as a source."""

    def __init__(self, *, mine=True):
        self.mine = mine

    def picture(self, topic, partition):
        return {"cells": "r"} if self.mine else None

    def find(self, topic, partition, offset):
        return {"offset": offset, "place": "running" if self.mine else "elsewhere"}

    def find_key(self, key, topic):
        return [{"key": key.decode(), "place": "behind"}] if self.mine else []

    def control(self, order):
        return [Answer("m1" if self.mine else "m0", "would" if order.dry_run else "done", "x")]

    def commands(self):
        return [{"member": "m1" if self.mine else "m0", "in_force": [], "log": []}]


def test_the_driver_has_each_member_obey():
    """An answer each; to stop is the driver's, once all have been asked."""
    stopped = []
    source = FleetSource(dict, Members(), stopped.append)
    order = Order("pause", "r", "i")
    assert [one.outcome for one in source.control(order)] == ["done", "done"]
    assert [one["member"] for one in source.commands()] == ["m0", "m1"]
    assert not stopped
    stop = source.control(Order("stop", "r", "i"))
    assert ([one.outcome for one in stop], stopped) == (["done", "done"], ["in_flight"])


def test_the_driver_asks_the_member_that_has_the_record():
    """Of records, keys and partitions it knows what their member knows, and who that is."""
    source = FleetSource(dict, Members(), print)
    assert source.find("t", 0, 7) == {"offset": 7, "place": "running", "member": "m1"}
    assert source.find_key(b"k", None) == [{"key": "k", "place": "behind", "member": "m1"}]
    assert source.picture("t", 0) == {"cells": "r"}
    assert len(source.members()) == 2


def test_a_record_that_no_member_has_is_elsewhere():
    """So it is when nobody answers."""
    source = FleetSource(dict, Members(there=False), print)
    assert source.find("t", 0, 7)["place"] == "elsewhere"
    assert source.find_key(b"k", "t") == []
    assert source.picture("t", 0) is None


def test_a_fleet_is_ready_once_it_has_partitions():
    """And lives while it has not failed."""
    told = {"state": "running", "partitions": [], "blockers": []}
    source = FleetSource(lambda: told, Members(), print)
    assert source.ready() == (False, "the fleet is running, with 0 partitions")
    told["partitions"] = [{}]
    assert (source.ready(), source.live()) == ((True, "ok"), (True, "running"))


def test_failures_and_commit_times_of_all_members():
    """The driver's page and metrics have them."""
    failed = {
        "handler": "h", "type": "ValueError", "attempts": 2, "parked": 1, "dead_lettered": 0,
        "skipped": 0, "first_at": 1.0, "last_at": 2.0, "example": {},
    }  # fmt: skip
    took = {"le": [0.1], "counts": [2, 0], "sum": 0.1}
    shots = {n: shot("a", 1) for n in range(2)}
    for one in shots.values():
        one["shot"] |= {"failures": [failed], "commit_buckets": took}
    whole = merged("running", shots, [], {"group": "g"})
    assert [row["attempts"] for row in whole["failures"]] == [4]
    assert whole["commit_buckets"] == {"le": [0.1], "counts": [4, 0], "sum": 0.2}
