"""The lists of parked and of held records: which, in which order, and how many more there are."""

from __future__ import annotations

import pytest
from tests.unit.account.test_account import ERROR, shot_of

from perkey.account.blockers import LISTED_MAX
from perkey.codec import Remembered
from perkey.core.events import Command, Failed, HandlerSpec, Limits, Target
from perkey.policies import Park, Retry

UNIX_S = 1_000.0


def parking(make_desk, count, **options):
    """So many records of their own keys are parked, one second after the other."""
    desk = make_desk(
        HandlerSpec("h", concurrency=count + 2, retry=Retry(attempts=1), **options),
        limits=Limits(forget_parked=True),
    )
    (desk.part,) = desk.assign(0, unix_s=UNIX_S)
    for offset in range(count):
        desk.poll(desk.part, offset, key=b"k%d" % offset)
    for work in desk.started():
        desk.do("calls_ended", [], [Failed(work, ERROR, final=True)])
        desk.pass_time(1.0)
    return desk


def hold(desk, target, until_s):
    """A command of a person."""
    given = Command("hold", target, "1", until_s, "being repaired", claimed_by="ana@laptop")
    desk.do("obey", [given], UNIX_S)


@pytest.mark.parametrize("count", [LISTED_MAX - 1, LISTED_MAX, LISTED_MAX + 1])
def test_so_many_parked_records_are_listed(make_desk, count):
    """Those that have been parked for longest; how many more there are is counted."""
    shot = shot_of(parking(make_desk, count))
    assert [row["offset"] for row in shot["parked"]] == list(range(min(count, LISTED_MAX)))
    assert shot["parked_left_out"] == max(0, count - LISTED_MAX)
    assert (shot["on_hold"], shot["on_hold_left_out"]) == ([], 0)


@pytest.mark.parametrize("count", [LISTED_MAX - 1, LISTED_MAX, LISTED_MAX + 1])
def test_so_many_held_records_are_listed(make_desk, count):
    """In the same way."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, key=b"runs")
    for offset in range(1, count + 1):
        desk.poll(part, offset, key=b"k%d" % offset)
        hold(desk, Target("t", None, 0, offset), UNIX_S + 60)
    shot = shot_of(desk)
    listed = list(range(1, min(count, LISTED_MAX) + 1))
    assert [row["offset"] for row in shot["on_hold"]] == listed
    assert shot["on_hold_left_out"] == max(0, count - LISTED_MAX)


def test_a_parked_record_has_its_cause_and_what_waits_behind_it(make_desk):
    """Also what is behind it as an offset alone; and when its policy releases it."""
    desk = parking(make_desk, 1, on_exhausted=Park(release_after_s=100.0))
    desk.poll(desk.part, 1, 2, key=b"k0")
    (row,) = shot_of(desk)["parked"]
    assert {name: row[name] for name in ("place", "key", "by", "until", "waiting_behind")} == {
        "place": "parked", "key": "k0", "by": "attempts", "until": 1_100.0, "waiting_behind": 2,
    }  # fmt: skip
    assert (row["last_error"]["type"], row["attempts"], row["for_s"]) == ("ValueError", 1, 1.0)
    assert "story" not in row


@pytest.mark.parametrize("for_s", [60.0, 0.5])
def test_a_parked_record_of_a_held_key_has_the_reason_of_the_hold(make_desk, for_s):
    """A command to the record alone is refused while the hold lasts; no longer."""
    desk = parking(make_desk, 1)
    hold(desk, Target("t", b"k0"), UNIX_S + for_s)
    desk.pass_time(1.0)
    (row,) = shot_of(desk)["parked"]
    assert (row["by"], row["reason"]) == ("attempts", "being repaired" if for_s > 1.0 else None)


def test_what_was_parked_before_is_listed_with_the_hash_of_its_error(make_desk):
    """A commit remembers no text."""
    desk = make_desk(HandlerSpec("h"))
    known = Remembered(0, 5, parked=True, exhausted_by="attempts", error=0x5B1F0C2E)
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=[known])
    desk.poll(part, 0)
    (row,) = shot_of(desk)["parked"]
    assert (row["last_error"], row["error_hash"]) == (None, "5b1f0c2e")
    assert (row["attempts"], row["by"], row["until"]) == (5, "attempts", None)


def test_a_held_record_has_the_reason_and_who_gave_it(make_desk):
    """Of a held key also a record that comes later; a release takes it from the list."""
    desk = make_desk(HandlerSpec("h"))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    hold(desk, Target("t", b"a"), UNIX_S + 60)
    desk.poll(part, 0, key=b"a")
    (row,) = shot_of(desk)["on_hold"]
    assert {name: row[name] for name in ("place", "reason", "by", "until", "due_in_s")} == {
        "place": "on_hold", "reason": "being repaired", "by": "ana@laptop", "until": 1_060.0,
        "due_in_s": 60.0,
    }  # fmt: skip
    desk.do("obey", [Command("release", Target("t", b"a"))], UNIX_S)
    assert shot_of(desk)["on_hold"] == []


def test_a_shorter_hold_of_its_lane_is_not_why_a_record_waits(make_desk):
    """The longer one is, which was given to it alone."""
    desk = make_desk(HandlerSpec("h", concurrency=1))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, key=b"runs")
    desk.poll(part, 1, key=b"a")
    hold(desk, Target("t", None, 0, 1), UNIX_S + 60)
    desk.do("obey", [Command("hold", Target("t", b"a"), "2", UNIX_S + 5, "for a look")], UNIX_S)
    (row,) = shot_of(desk)["on_hold"]
    assert (row["reason"], row["until"]) == ("being repaired", 1_060.0)


def test_a_held_record_that_blocks_is_named_as_held(make_desk):
    """Not as one that failed and waits for its next attempt."""
    desk = make_desk(HandlerSpec("h"))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    hold(desk, Target("t", b"a"), UNIX_S + 60)
    desk.poll(part, 0, 1, key=b"a")
    (worst,) = shot_of(desk)["blockers"]
    assert (worst["place"], worst["waiting_behind"]) == ("on_hold", 1)
