"""A member's view of its group: itself as it is now, the others as they last reported."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from rich.console import Console

from perkey.account.blockers import LISTED_MAX
from perkey.cli.seen import _status_shown, _why_shown
from perkey.cli.sources import _reported
from perkey.kafka.ports import Word
from perkey.observe import reports
from perkey.observe.asking import Question, answer
from perkey.observe.group import GroupSource, wanted_of
from perkey.observe.overview import overview
from perkey.observe.reports import FORGOTTEN_S, SILENT_S, key_of, packed


def part(number, handler="check", **more):
    """A partition's row."""
    return {
        "topic": "orders", "partition": number, "handler": handler, "frontier": 10, "end": 30,
        "committed": 10, "committed_since": 0.0, "committed_for_s": 1.0, "done_beyond": 5,
        "remaining": 15, "remaining_is_bound": False, "lag": 20, "oldest_age_s": 3.0,
        "buffered": 9, "in_flight": 1, "retrying": 0, "parked": 0, "map_chars": 8,
        "map_limit": 4096, "paused": False, "places": {}, **more,
    }  # fmt: skip


def blocker(number, offset=10, key="k", **more):
    """A record that runs at the frontier."""
    return {
        "topic": "orders", "partition": number, "offset": offset, "key": key, "place": "running",
        "at_frontier": True, "since": 1.0, "for_s": 4.0, "attempts": 0, "attempts_max": 5,
        "timeout_s": None, "due_in_s": None, "last_error": None, "waiting_behind": 2,
        "done_beyond": 5, "story": [], **more,
    }  # fmt: skip


def handler(**more):
    """A handler's row."""
    return {"rate_per_s": 7.0, "done": 100, "failures": 1, "in_flight": 1, "concurrency": 4,
            "latency_ms": {"p99": 5.0}, **more}  # fmt: skip


def shot(member, numbers=(), *, age_s=0.0, group="g", halts=(), **more):
    """A member's snapshot."""
    return {
        "state": "running", "at": time.time() - age_s, "app": {"group": group, "member": member},
        "partitions": [part(n) for n in numbers], "handlers": {"check": handler()},
        "blockers": [blocker(n) for n in numbers], "halts": list(halts), "failures": [], **more,
    }  # fmt: skip


REFUSED: list[str] = []


class Own:
    """A run of this process: member m1 with partition 0."""

    def __init__(self):
        self.shot = shot("m1", [0])

    def snapshot(self):
        return self.shot

    measures = report = snapshot

    def members(self):
        return [self.shot]

    sums = members

    def picture(self, topic, partition):
        return {"partition": part(0), "cells": "r"} if partition == 0 else None

    def find(self, topic, partition, offset):
        place = "running" if partition == 0 else "elsewhere"
        return {"topic": topic, "partition": partition, "offset": offset, "place": place}

    def find_key(self, key, topic):
        return [blocker(0)] if key == b"k" else []

    def control(self, order):
        return []

    def commands(self):
        return []

    def live(self):
        return True, "ok"

    def ready(self):
        return True, "ok"


class Words:
    """What members have said last."""

    def __init__(self, *shots):
        self.said = {
            key_of(s["app"]["group"], s["app"]["member"]): Word(packed(s), s["at"]) for s in shots
        }

    def last(self):
        return dict(self.said)

    def now(self):
        return time.time()


def source(*shots):
    """Member m1, who has read these reports."""
    return GroupSource(Own(), Words(*shots), "g", REFUSED.append)


def test_the_others_come_from_their_reports():
    """We are shown as we are now, not by our own report; other groups' members are not shown."""
    seen = source(shot("m1", [7], age_s=60), shot("m2", [1]), shot("x", [2], group="other"))
    members = seen.members()
    assert [one["app"]["member"] for one in members] == ["m1", "m2"]
    assert [p["partition"] for one in members for p in one["partitions"]] == [0, 1]
    assert not members[0].get("silent_s")
    assert members[1]["silent_s"] == 0.0


@pytest.mark.parametrize(("age_s", "shown", "silent"), [
    (0.0, True, False), (SILENT_S - 1, True, False), (SILENT_S + 1, True, True),
    (FORGOTTEN_S - 5, True, True), (FORGOTTEN_S + 5, False, False),
])  # fmt: skip
def test_who_is_silent_is_marked_and_in_the_end_forgotten(age_s, shown, silent):
    """By the age of the last word."""
    found = source(shot("m2", [1], age_s=age_s)).members()[1:]
    assert bool(found) is shown
    assert bool(found and found[0]["silent_s"]) is silent


def test_a_word_is_unpacked_once(monkeypatch):
    """The page looks each second, reports come every five."""
    seen, calls = source(shot("m2", [1])), []

    def unpacked(word):
        calls.append(word)
        return shot("m2", [1]), 100

    monkeypatch.setattr(reports, "unpacked", unpacked)
    seen.members()
    seen.members()
    assert len(calls) == 1
    seen._words.said.clear()
    assert [one["app"]["member"] for one in seen.members()] == ["m1"]


def test_a_partition_of_another_member():
    """Its counts and blockers as reported, with who said so; ours are drawn from the engine."""
    seen = source(shot("m2", [1]))
    assert "reported" not in seen.picture("orders", 0)
    drawn = seen.picture("orders", 1)
    assert drawn["reported"]["member"] == "m2"
    assert drawn["records"][0]["offset"] == 10
    assert drawn["cells"] == ""  # it has reported no map
    assert seen.picture("orders", 5) is None


def test_the_holes_of_another_members_partition_are_drawn():
    """From the map in its report, which is of that partition and no other."""
    drawn = {"from": 10, "to": 16, "per_cell": 1, "cells": "rddfdd"}
    both = [{"topic": "orders", "partition": n, **drawn, "cells": c}
            for n, c in ((2, "pddddd"), (1, "rddfdd"))]  # fmt: skip
    seen = source(shot("m2", [1, 2], maps=both)).picture("orders", 1)
    assert {name: seen[name] for name in drawn} == drawn
    assert seen["partition"]["partition"] == 1


@pytest.mark.parametrize(
    ("offset", "place"), [(9, "done"), (10, "running"), (11, "elsewhere"), (30, "not_there")]
)
def test_a_record_of_another_member(offset, place):
    """What its report tells of it, and who has it."""
    found = source(shot("m2", [1])).find("orders", 1, offset)
    assert (found["place"], found["member"]) == (place, "m2")


def test_records_of_a_key_in_the_group():
    """Ours, and those of others that hold something up."""
    seen = source(shot("m2", [1]))
    assert [row.get("member") for row in seen.find_key(b"k", None)] == [None, "m2"]
    assert seen.find_key(b"k", "other-topic")[1:] == []


def test_why_speaks_of_the_whole_group():
    """A partition of another member, and which member is without one."""
    seen = source(shot("m2", [1]), shot("m3", halts=[{"cause": "unassigned"}]))
    (told,) = answer(seen, Question("orders", 1))["sentences"][:1]
    assert "orders[1] is committed to 10" in told["text"]
    assert "in member m2" in told["text"]
    texts = [one["text"] for one in answer(seen, Question())["sentences"]]
    assert "Member m3: Nothing starts: this member has no partition." in texts
    (elsewhere,) = answer(seen, Question("orders", 1, 11))["sentences"]
    assert "is in a partition of member m2" in elsewhere["text"]


def waits(number, since, place="parked"):
    """A row of a parked or held record."""
    where = {"topic": "orders", "partition": number, "offset": 9, "handler": "check", "key": "x"}
    return {**where, "place": place, "since": since, "waiting_behind": 0, "attempts": 5}


def parking(member, number, since, count):
    """A member with so many parked records, of which it lists one."""
    places = {"parked": count, "on_hold": 0}
    return shot(member, parked=[waits(number, since)], partitions=[part(number, places=places)])


@pytest.mark.parametrize("count", [LISTED_MAX - 1, LISTED_MAX, LISTED_MAX + 1])
def test_so_many_parked_records_of_a_group_are_listed(count):
    """Those parked for longest, of all members; how many more there are is counted."""
    seen = overview([parking(f"m{n}", n, 100.0 - n, 2) for n in range(count)])
    listed = [row["partition"] for row in seen["parked"]]
    assert listed == list(range(count))[::-1][:LISTED_MAX]
    assert seen["parked_left_out"] == 2 * count - min(count, LISTED_MAX)
    assert seen["totals"]["on_hold"] == 0


def test_a_silent_member_lists_nothing():
    """Its records may be elsewhere by now."""
    seen = overview([parking("m1", 0, 1.0, 2) | {"silent_s": 30.0}, parking("m2", 1, 1.0, 1)])
    assert [row["member"] for row in seen["parked"]] == ["m2"]
    assert seen["parked_left_out"] == 0


def test_a_parked_record_of_another_member_is_found():
    """Though it is not among those that block most."""
    group = source(parking("m2", 3, 1.0, 2))
    found = group.find("orders", 3, 9)
    assert (found["place"], found["member"]) == ("parked", "m2")
    assert [row["offset"] for row in group.find_key(b"x", None)] == [9]


def test_the_order_of_blockers_is_settled():
    """What blocks most, then the oldest, then by name: whichever member reported it, and when."""
    blocks_more = blocker(3, waiting_behind=9, since=5.0)
    older, equal, other = blocker(2, since=0.5), blocker(1), blocker(0)
    shots = [shot("m1", [0, 2]), shot("m2", [1, 3])]
    shots[0]["blockers"], shots[1]["blockers"] = [other, older], [equal, blocks_more]
    orders = [
        [row["partition"] for row in overview(given)["blockers"]] for given in (shots, shots[::-1])
    ]
    assert orders == [[3, 2, 0, 1]] * 2


def test_a_silent_member_does_nothing_any_more():
    """Its rate, its calls and its halts are gone; its partition is of who has it now."""
    dead = shot("m2", [1], age_s=60, halts=[{"cause": "slots", "handler": "check"}])
    dead["silent_s"] = 60.0
    alive = shot("m1", [0, 1])
    seen = overview([alive, dead])
    assert seen["totals"]["rate_per_s"] == 7.0
    (row,) = seen["handlers"]
    assert (row["rate_per_s"], row["concurrency"], row["done"]) == (7.0, 4, 200)
    assert seen["halts"] == []
    assert {(one["partition"], one["member"]) for one in seen["blockers"]} == {(0, "m1"), (1, "m1")}
    assert {(one["partition"], one["member"]) for one in seen["partitions"]} == {
        (0, "m1"), (1, "m1"),
    }  # fmt: skip


def test_of_a_silent_member_no_count_is_left():
    """Not in its own row, nor in the sums, but for what is left of partitions nobody else has."""
    seen = overview([shot("m1", [0, 1]), shot("m2", [1, 2], silent_s=40.0)])
    alive, dead = seen["members"]
    assert (alive["partitions"], alive["remaining"], alive["in_flight"]) == (2, 30, 2)
    assert [dead[name] for name in ("partitions", "remaining", "in_flight", "rate_per_s")] == [
        None
    ] * 4
    assert dead["silent_s"] == 40.0
    sums = seen["totals"]
    assert (sums["members"], sums["partitions"], sums["remaining"]) == (1, 3, 45)
    assert (sums["in_flight"], sums["buffered"]) == (2, 18)


def test_status_shows_of_a_silent_member_what_no_other_reports():
    """Grey and in one line where others have its partitions; never with what it was doing."""
    alive, dead = shot("m1", [0, 1]), shot("m2", [1], silent_s=40.0)

    def told(*shots):
        stream = StringIO()
        shown = _status_shown([(one["app"]["member"], one) for one in shots])
        Console(file=stream, width=200).print(shown)
        return stream.getvalue()

    assert told(alive, dead).splitlines()[-1].rstrip() == (
        "g  m2  SILENT: killed, suspended or disconnected; last report 40 s ago; others own its partitions"
    )
    # Nor among the healthy ones, with records that others count
    shown = told(alive, shot("m3", [2]), dead)
    assert "well: g m1, g m3: 45 remaining in 3 partitions" in shown
    assert "g  m2  SILENT" in shown
    alone = told(dead)
    assert "with 15 remaining in 1 partitions that no other member reports" in alone
    assert alone.splitlines()[-1].split().count("-") == 4  # past map, run, retry, park


def why_of(*answers):
    """What `perkey why` shows of the answers of several runs."""
    stream = StringIO()
    shown = _why_shown([(f"run-{n}", {"found": [], **one}) for n, one in enumerate(answers)])
    Console(file=stream, width=200).print(shown)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def said(*texts, about="running"):
    """An answer of these sentences."""
    return {"sentences": [{"text": text, "next": "", "about": about} for text in texts]}


def test_what_runs_of_a_group_report_of_a_record_is_reported_once():
    """Each tells it with the time at which it was asked; what only one says stays."""
    first, second = "Record 7 runs for 5.3 s.", "Record 7 runs for 7.4 s."
    assert why_of(said(first), said(second)) == ["run-0", first]
    assert why_of(said(first), said(second, "Record 8 runs for 1 s.")) == [
        "run-0", first, "run-1", "Record 8 runs for 1 s.",
    ]  # fmt: skip
    assert why_of(said(first), said("x of another", about="elsewhere"), said()) == ["run-0", first]
    assert "no answer" in why_of(said(about="elsewhere"), {"error": "no answer"})


def test_a_topic_of_many_partitions_does_not_flood_the_terminal():
    """A hundred sentences; the others are counted, and --json has them all."""
    lines = why_of(said(*(f"Partition {n} moves." for n in range(10_000))))
    assert len(lines) == 101
    assert lines[-1] == "and 9,900 more: name a partition, or see --json"


def test_that_nothing_holds_up_is_reported_of_each_run():
    """Two groups that are well say the same."""
    well = said("Nothing holds up a commit.", about="healthy")
    assert why_of(well, well).count("Nothing holds up a commit.") == 2
    nowhere = why_of(said(), said())
    assert len(nowhere) == 4
    assert nowhere[1].startswith("This run holds no such record")


def test_what_to_do_about_a_silent_members_partition():
    """Its handler's time-out would end nothing: the member is not there."""
    dead = shot("m2", [1], age_s=60)
    dead["silent_s"] = 60.0
    told = _reported(dead, {"ask": "why", "where": "orders:1", "key": None})
    (one,) = told["sentences"]
    assert one["text"].endswith("Its member is silent: killed, suspended or disconnected.")
    assert one["next"].startswith("restart that member, or wait")


def test_only_our_group_is_read():
    """By the key, before anything is unpacked."""
    wanted = wanted_of("g")
    assert wanted(key_of("g", "m1"))
    assert not wanted(key_of("g2", "m1"))
    assert not wanted(key_of("other", "g"))


@pytest.mark.parametrize("cause", ["broker", "refused"])
def test_what_remains_is_unknown_while_no_broker_answers(cause):
    """After its session a member has no partitions: that is no 0."""
    away = {**shot("m1", []), "halts": [{"cause": cause, "for_s": 60.0}]}
    seen = overview([away])
    assert (seen["totals"]["remaining"], seen["members"][0]["remaining"]) == (None, None)
    seen = overview([{**away, "halts": [{"cause": "unassigned"}]}])
    assert (seen["totals"]["remaining"], seen["members"][0]["remaining"]) == (0, 0)
