"""Bounds: what is fetched, what the map can hold, what failing records may take."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, offsets

from perkey.codec import decode
from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.core.offsets import always_fits
from perkey.policies import Retry

SLOW = HandlerSpec("h", concurrency=1, ordering="unordered")


@pytest.mark.parametrize(("count", "paused"), [(9, False), (10, True), (11, True)])
def test_intake_pauses_at_the_budget(make_desk, count, paused):
    """At `buffer_records` the partition is not fetched any more."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=10))
    (part,) = desk.assign(0)
    desk.poll(part, *range(count))
    assert [effect.partitions for effect in desk.take(fx.PauseIntake)] == [[part]] * paused


@pytest.mark.parametrize(("held", "room"), [(24, 24), (25, 49), (73, 1), (74, 0), (75, 0)])
def test_room_is_what_may_come_without_a_pause(make_desk, held, room):
    """Of 100, a quarter is kept for the other partition: the busy one stops at 75."""
    desk = make_desk(limits=Limits(buffer_records=100))
    busy, _idle = parts = desk.assign(0, 1)
    desk.poll(busy, *range(held))
    assert desk.engine.state.flow.room(parts).records == room
    if room:
        desk.poll(busy, *range(held, held + room))
        assert desk.take(fx.PauseIntake) == []


def test_large_records_leave_room_for_fewer(make_desk):
    """Of 800 bytes for healthy records half is kept for the partition: three more for sure."""
    desk = make_desk(limits=Limits(buffer_records=1_000, buffer_bytes=1_600))
    (busy,) = parts = desk.assign(0)
    desk.poll(busy, 0, 1, size=100)
    room = desk.engine.state.flow.room(parts)
    assert (room.share, room.records) == (0.5, 3)
    desk.poll(busy, 2, 3, 4, size=100)
    assert desk.take(fx.PauseIntake) == []


def test_room_beside_one_large_record(make_desk):
    """Of 800 bytes for healthy records one of 400 leaves half: as many of its size as are sure."""
    desk = make_desk(limits=Limits(buffer_records=1_000, buffer_bytes=1_600))
    (busy,) = parts = desk.assign(0)
    desk.poll(busy, 0, size=200)
    assert desk.engine.state.flow.room(parts).records == 1


def test_outputs_that_wait_for_their_transaction_take_room(make_desk):
    """They are in memory as records are: with them the budget is full, and nothing is fetched."""
    limits = Limits(buffer_records=1_000, buffer_bytes=8_000)
    desk = make_desk(HandlerSpec("h", delivery="exactly_once"), limits=limits, size_bytes=4_000)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in desk.started()])
    desk.poll(part, 1)
    assert [effect.partitions for effect in desk.take(fx.PauseIntake)] == [[part]]


def test_room_beside_records_that_are_all_marked(make_desk):
    """at_most_once: none of them is incomplete any more, and each takes memory until it is done."""
    limits = Limits(buffer_records=1_000, buffer_bytes=1_600)
    desk = make_desk(HandlerSpec("h", delivery="at_most_once"), limits=limits)
    (part,) = desk.assign(0)
    desk.poll(part, 0, size=200)
    (effect,) = desk.take(fx.CommitOffsets)
    desk.answer(effect)
    assert desk.under_way
    assert not part.offsets.incomplete
    assert desk.engine.room([part]).records == 1


def test_a_partition_that_goes_is_not_fetched_again(make_desk):
    """It was paused, and is another member's now; the others go on."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=10))
    gone, _other = desk.assign(0, 1)
    desk.poll(gone, *range(10))
    (paused,) = desk.take(fx.PauseIntake)
    assert paused.partitions == [gone]
    desk.do("closed", [gone])
    desk.do("tick")
    assert desk.take(fx.ResumeIntake) == []
    assert gone not in desk.engine.state.flow.paused


def test_intake_resumes_when_half_is_free(make_desk):
    """Resuming fetches again, so it waits until that is worth it."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=10))
    (part,) = desk.assign(0)
    desk.poll(part, *range(10))
    for resumed in (False, False, False, False, False, True):
        desk.do("calls_ended", desk.started())
        desk.do("tick")
        assert any(isinstance(effect, fx.ResumeIntake) for effect in desk.effects) == resumed


def test_failing_lane_does_not_stop_the_intake_of_others(make_desk):
    """What stands behind a failing record is charged to another budget."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=60.0)), limits=Limits(buffer_records=10))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=b"bad")
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.poll(part, *range(1, 9), key=b"bad")
    desk.poll(part, 9, 10, key=b"good")
    assert desk.take(fx.PauseIntake) == []
    desk.poll(part, 11, 12, key=b"bad")
    assert len(desk.take(fx.PauseIntake)) == 1


@pytest.mark.parametrize(("good", "bad", "resumed"), [(4, 8, False), (5, 7, True)])
def test_intake_resumes_when_a_quarter_of_the_failing_is_gone(make_desk, good, bad, resumed):
    """Of what the budget of failing records holds, however much more had come in."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=1.0)), limits=Limits(buffer_records=10))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=b"good")
    desk.poll(part, 1, key=b"bad")
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.poll(part, *range(2, 1 + good), key=b"good")
    desk.poll(part, *range(20, 19 + bad), key=b"bad")
    assert part.intake_paused
    assert part.lanes.blocked_records == good + bad
    desk.pass_time(2.0)
    desk.do("calls_ended", [work for work in desk.started() if work.record.key == b"good"])
    desk.do("tick")
    assert part.lanes.blocked_records == bad
    assert part.intake_paused != resumed


def test_blocked_lane_is_healthy_again_when_its_head_is_done(make_desk):
    """The charge of a lane moves back in one step."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert part.lanes.blocked_records == 3
    desk.pass_time(2.0)
    desk.do("calls_ended", desk.started())
    assert (part.lanes.blocked_records, part.lanes.blocked_bytes) == (0, 0)


def test_window_bounds_the_map(make_desk):
    """With the frontier stuck, no more starts than a map of the broker's size can tell."""
    spec = HandlerSpec("h", concurrency=100_000, ordering="unordered")
    desk = make_desk(spec, limits=Limits(map_chars=64))
    (part,) = desk.assign(0)
    desk.poll(part, *range(3_000))
    _stuck, *others = desk.started()
    for _ in range(20):
        desk.do("calls_ended", others[::2])  # every other one: the worst case for a map
        desk.do("tick")
        others = desk.started()
        if not others:
            break
    desk.pass_time(1.0)
    (item,) = desk.take(fx.CommitOffsets)[-1].items
    assert len(item.metadata) <= 64
    assert decode(item.frontier, item.metadata).highest_seen == part.offsets.top


@pytest.mark.parametrize("chars", [0, 4, 8, 64, 4096])
def test_record_at_the_frontier_may_always_start(make_desk, chars):
    """However small the map, the one record that makes room can start."""
    desk = make_desk(HandlerSpec("h", ordering="unordered"), limits=Limits(map_chars=chars))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    for expected in range(3):
        works = desk.started()
        assert expected in offsets(works)
        desk.do("calls_ended", works)
        desk.do("tick")
        if part.frontier == 3:
            break
    assert part.frontier == 3


def test_stuck_record_does_not_stop_what_is_past_the_window(make_desk):
    """One run of done records is a short map, however long the run is."""
    spec = HandlerSpec("h", concurrency=5_000, ordering="unordered")
    desk = make_desk(spec, limits=Limits(buffer_records=10**6, buffer_bytes=10**12))
    (part,) = desk.assign(0)
    reach = always_fits(4096)
    for first in range(0, 2 * reach, 1_000):
        desk.poll(part, *range(first, first + 1_000))
        works = [work for work in desk.started() if work.record.offset]
        while works:
            desk.do("calls_ended", works)
            works = desk.started()
    assert part.offsets.top > 1.9 * reach


def test_story_of_a_record_is_bounded(make_desk):
    """A record that fails for ever keeps the last events of its history."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=None, delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    for _ in range(100):
        (work,) = desk.started()
        desk.do("calls_ended", [], [Failed(work, ERROR)])
        desk.pass_time(0.01)
    story = work.story()
    assert len(story) == 32
    assert "attempt 100 failed" in "".join(event.what for event in story)


def test_schedule_forgets_ended_epochs(make_desk):
    """Records with long delays do not stay in memory after their partition has gone."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=30.0)))
    for _ in range(20):
        (part,) = desk.assign(0)
        desk.poll(part, *range(50), key=None)
        failed = [Failed(work, ERROR, delay_s=7 * 86400.0) for work in desk.started()]
        desk.do("calls_ended", [], failed)
        desk.do("closed", [part])
    assert len(desk.engine.state.retries) == 0


def test_budget_is_that_of_the_member(make_desk):
    """Whoever comes first, all partitions together hold no more than the budget and a poll."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=100))
    parts = desk.assign(0, 1, 2, 3)
    fetched = dict.fromkeys(parts, 0)
    for _ in range(100):
        for part in parts:
            if not part.intake_paused:
                desk.poll(part, fetched[part])
                fetched[part] += 1
    assert 95 <= sum(fetched.values()) <= 100 + len(parts)


def test_busy_partition_may_use_what_others_do_not_need(make_desk):
    """Half of the budget is kept for all equally, the other half is for whoever comes."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=100))
    busy, quiet = desk.assign(0, 1)
    desk.poll(busy, *range(74))
    assert not busy.intake_paused
    desk.poll(busy, 74)
    assert busy.intake_paused
    desk.poll(quiet, *range(24))
    assert not quiet.intake_paused
    desk.poll(quiet, 24)
    assert quiet.intake_paused


def test_busy_partition_resumes_at_half_of_what_it_held(make_desk):
    """It is fetched again long before it has run dry."""
    desk = make_desk(SLOW, limits=Limits(buffer_records=100))
    busy, *_ = desk.assign(*range(10))
    desk.poll(busy, *range(60))
    assert busy.intake_paused
    while busy.intake_paused:
        desk.do("calls_ended", desk.started())
        desk.do("tick")
    assert busy.buffered == 29
