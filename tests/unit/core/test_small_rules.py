"""Rules that only show in company, each by itself."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import Desk

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.commits import CommitState
from perkey.core.events import HandlerSpec, Limits, Returned
from perkey.core.offsets import Offsets
from perkey.types import Record

UNORDERED = HandlerSpec("h", ordering="unordered", concurrency=1)


def test_claims_that_are_not_kept_are_given_back():
    """Those that are named stay."""
    commit = CommitState(Offsets(0))
    named, other = object(), object()
    commit.claims += [named, other]
    left = commit.keep({named})
    assert (commit.claims, left) == ([named], [other])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_claims_that_are_removed_leave_the_others_in_order(place):
    """The first ones, as is usual, or any others."""
    commit = CommitState(Offsets(0))
    claims = [object() for _ in range(3)]
    commit.claims += claims
    commit.remove([claims.pop(place)])
    assert commit.claims == claims


def test_a_mark_that_is_taken_back_lowers_the_top_to_what_is_done():
    """Not further: what was done below it stays told."""
    offsets = Offsets(0)
    records = [Record("t", 0, offset, 0, None, b"") for offset in range(6)]
    works = offsets.receive(records, [1] * 6, None)
    for offset in (0, 4):
        offsets.done(offset)
    offsets.mark(5)
    assert offsets.top == 5
    offsets.undone(5, works[5])
    assert (offsets.top, list(offsets.incomplete)) == (4, [1, 2, 3, 5])


def test_what_is_read_of_a_commit_that_is_not_in_doubt_reports_nothing():
    """Its own answer is on the way, or has come."""
    desk = Desk(UNORDERED, limits=Limits(commit_answer_s=60.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    (item,) = sent.items
    desk.do("committed_read", [(part, item.frontier, item.metadata)])
    assert part.commit.state == states.SENT
    assert desk.take(fx.CommitsStored) == []


def test_only_what_was_handled_is_reported_when_its_partition_goes():
    """Its outputs were on the way; what only waited will be handled elsewhere."""
    desk = Desk(UNORDERED)
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    desk.do("closed", [part], lost=True)
    reported = desk.take(fx.Finished)
    assert [(one.work.record.offset, one.outcome) for one in reported] == [(0, "superseded")]


@pytest.mark.parametrize("behind", [0, 1, 9, 10, 11, 3_000])
def test_a_snapshot_is_the_same_however_much_is_held_behind_the_top(behind):
    """Ten are not done below it; what was not started behind it is not looked at where it is much."""
    offsets = Offsets(0)
    count = 21 + behind
    offsets.receive([Record("t", 0, o, 0, None, b"") for o in range(count)], [1] * count, None)
    for offset in range(0, 21, 2):
        offsets.done(offset)
    shot = offsets.snapshot()
    assert (shot.frontier, shot.top, shot.not_done) == (1, 20, list(range(1, 20, 2)))
    claimed = offsets.snapshot(range(1, 20, 2))
    assert (claimed.frontier, claimed.top, claimed.not_done) == (21, 20, [])
