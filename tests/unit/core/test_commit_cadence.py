"""The default commit: after 1,000 records or the interval, 50 ms apart, one in flight."""

from __future__ import annotations

import pytest

from perkey.core import effects as fx
from perkey.core.events import HandlerSpec, Limits
from perkey.policies import Commit

WIDE = HandlerSpec("h", ordering="unordered", concurrency=10_000)
LIMITS = Limits(commit=Commit(interval_s=1.0), commit_after=1_000, commit_answer_s=60.0)


@pytest.fixture
def desk(make_desk):
    """One partition with 5,000 running records, half a second after its start."""
    desk = make_desk(WIDE, limits=LIMITS)
    (part,) = desk.assign(0)
    desk.poll(part, *range(5_000))
    desk.running = desk.started()
    desk.pass_time(0.5)
    desk.take(object)
    return desk


def end(desk, count: int) -> list[int]:
    """So many calls end; the frontiers that are committed because of it."""
    ended, desk.running = desk.running[:count], desk.running[count:]
    desk.do("calls_ended", ended)
    return frontiers(desk)


def frontiers(desk) -> list[int]:
    """What was committed since the last look; `desk.sent` is the last request."""
    sent = desk.take(fx.CommitOffsets)
    desk.sent = sent[-1] if sent else None
    return [item.frontier for effect in sent for item in effect.items]


@pytest.mark.parametrize(("count", "committed"), [(999, []), (1_000, [1_000]), (1_001, [1_001])])
def test_a_thousand_records_are_committed_before_the_interval_ends(desk, count, committed):
    """999 wait for it."""
    assert end(desk, count) == committed


def test_it_is_a_thousand_since_the_last_commit_whatever_caused_that(desk):
    """A commit because of the interval counts from zero too."""
    assert end(desk, 999) == []
    desk.pass_time(0.5)
    assert frontiers(desk) == [999]
    desk.answer(desk.sent)
    desk.now += 0.1
    assert end(desk, 999) == []
    assert end(desk, 1) == [1_999]


@pytest.mark.parametrize(
    ("apart_s", "committed"), [(0.049, []), (0.050, [2_000]), (0.051, [2_000])]
)
def test_a_commit_is_not_within_50_ms_of_the_last(desk, apart_s, committed):
    """A thousand more are done earlier, and wait for that time."""
    end(desk, 1_000)
    desk.answer(desk.sent)
    desk.now = 0.5 + apart_s
    assert end(desk, 1_000) == committed


def test_the_end_of_the_50_ms_is_timed(desk):
    """The engine asks to be woken then, and at no time before: nothing is polled."""
    end(desk, 1_000)
    desk.answer(desk.sent)
    began = desk.now
    assert desk.engine.next_deadline() == began + 1.0
    desk.now += 0.01
    assert end(desk, 1_000) == []
    assert desk.engine.next_deadline() == desk.engine.commit_at == began + 0.05
    assert end(desk, 500) == []
    desk.pass_time(0.04)
    assert frontiers(desk) == [2_500]
    assert desk.engine.next_deadline() == desk.now + 1.0


def test_records_past_a_slow_commit_go_with_its_answer(desk):
    """One commit is in flight: until its answer nothing is sent, nothing is looked at."""
    end(desk, 1_000)
    slow = desk.sent
    desk.now += 0.06
    assert end(desk, 1_000) == []
    assert desk.engine.next_deadline() == desk.now + 1.0
    assert desk.engine.state.finished_since_commit < desk.engine._commits.enough
    desk.now += 0.2
    assert end(desk, 1) == []
    desk.answer(slow)
    assert frontiers(desk) == [2_001]


def test_an_answer_within_the_50_ms_sends_nothing_before_their_end(desk):
    """The commit that waited for it is timed as any other."""
    end(desk, 1_000)
    first = desk.sent
    desk.now += 0.02
    assert end(desk, 1_000) == []
    desk.now += 0.02
    desk.answer(first)
    assert frontiers(desk) == []
    desk.pass_time(0.01)
    assert frontiers(desk) == [2_000]


def test_a_commit_in_doubt_is_read_back_before_the_next(desk):
    """What is done meanwhile goes with what was read, not with the interval."""
    end(desk, 1_000)
    (item,) = desk.sent.items
    desk.now += 60.0
    desk.do("tick")
    end(desk, 1_000)
    desk.now += 0.5
    desk.take(object)
    desk.do("committed_read", [(item.partition, item.frontier, item.metadata)])
    assert frontiers(desk) == [2_000]


def test_a_given_number_is_not_held_back(make_desk):
    """`max_records` of another handler: as often as they are done."""
    limits = Limits(commit=Commit(interval_s=60.0, max_records=2), commit_after=1_000)
    desk = make_desk(WIDE, limits=limits)
    (part,) = desk.assign(0)
    desk.poll(part, *range(4))
    desk.running = desk.started()
    assert end(desk, 2) == [2]
    desk.answer(desk.sent)
    assert end(desk, 2) == [4]


def test_given_numbers_that_are_larger_leave_the_default_of_others(make_desk):
    """1,000 wait for their 50 ms, 1,500 do not."""
    limits = Limits(commit=Commit(interval_s=60.0, max_records=1_500), commit_after=1_000)
    desk = make_desk(WIDE, limits=limits)
    (part,) = desk.assign(0)
    desk.poll(part, *range(5_000))
    desk.running = desk.started()
    assert end(desk, 1_000) == [1_000]
    desk.answer(desk.sent)
    assert end(desk, 1_499) == []
    assert end(desk, 1) == [2_500]


def test_the_interval_alone_is_never_cut_short(make_desk):
    """`interval_s` given: 5,000 wait for it, also past a commit in flight."""
    desk = make_desk(WIDE, limits=Limits(commit=Commit(interval_s=1.0), commit_answer_s=60.0))
    (part,) = desk.assign(0)
    desk.poll(part, *range(5_000))
    desk.running = desk.started()
    desk.pass_time(1.0)
    assert end(desk, 1_500) == []
    desk.pass_time(1.0)
    assert frontiers(desk) == [1_500]
    slow = desk.sent
    assert end(desk, 1_500) == []
    desk.pass_time(1.0)
    desk.answer(slow)
    assert frontiers(desk) == []
    desk.pass_time(1.0)
    assert frontiers(desk) == [3_000]
