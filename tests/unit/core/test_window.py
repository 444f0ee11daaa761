"""What was allowed to start fits the map once it is done."""

from __future__ import annotations

import random

import pytest
from tests.unit.core.conftest import ERROR

from perkey.codec import decode
from perkey.codec.limits import NOT_DONE_MAX
from perkey.core.events import Failed, HandlerSpec, Limits
from perkey.core.offsets import runs_fit
from perkey.policies import Retry
from perkey.types import Record

LANES, BLOCK, POLL = 1_000, 200, 1_000
#: records of a lane; half of all have no key
DEEP = pytest.mark.parametrize("deep", [20, pytest.param(50, marks=pytest.mark.long)])


def keys(deep: int) -> list[bytes | None]:
    """Blocks of lanes, in no order that a compressor could learn, and blocks without a key."""
    numbers = [b"%d" % number for number in range(LANES) for _ in range(deep)]
    random.Random(8).shuffle(numbers)
    mixed: list[bytes | None] = []
    for at in range(0, len(numbers), BLOCK):
        mixed += [*numbers[at : at + BLOCK], *[None] * BLOCK]
    return mixed


def do(desk, event: str, *arguments) -> None:
    """An event without the recount, which walks over all records."""
    desk.do_unchecked(event, *arguments)


def standing(desk, step: int, deep: int):
    """Every lane stands at its failed head; what has no key goes on as far as it may."""
    (part,) = desk.assign(0)
    lanes = keys(deep)
    for first in range(0, len(lanes), POLL):
        offsets = range(first, first + POLL)
        records = [Record("t", 0, step * o, 0, lanes[o], b"v") for o in offsets]
        do(desk, "polled", [(part, records, [100] * POLL)])
        while works := desk.started():
            failed = [Failed(work, ERROR) for work in works if work.record.key]
            do(desk, "calls_ended", [work for work in works if not work.record.key], failed)
    desk.now += 61.0
    return part


@pytest.fixture
def desk(make_desk):
    """A desk with buffers that hold all of it."""
    retry = Retry(attempts=None, delay_s=60.0, jitter=0.0)
    spec = HandlerSpec("h", concurrency=2_000, retry=retry)
    return make_desk(spec, limits=Limits(buffer_records=10**6, buffer_bytes=10**12))


@DEEP
def test_holes_far_below_the_top_fit_once_done(desk, deep):
    """Lanes that stood while others went far past them: every second of them goes on.

    Holes below the top were started without a count: the map needed 6,760 characters, and 6,949
    finished records were handled again after a clean stop.
    """
    part = standing(desk, 1, deep)
    assert part.offsets.top > 30_000  # a bit set of 4,096 characters tells 24,528
    for _ in range(200):
        do(desk, "tick")
        works = desk.started()
        do(desk, "calls_ended", [w for w in works if not w.record.key or int(w.record.key) % 2])
        desk.now += 0.1
    (item,) = desk.engine.last_commit(desk.now, [part]).items
    assert len(item.metadata) <= 4096
    assert decode(item.frontier, item.metadata).highest_seen == part.offsets.top


@DEEP
@pytest.mark.parametrize("step", [1, 2])
def test_room_that_comes_back_is_used(desk, step, deep):
    """Once the standing lanes go on all is finished; `step` 2: a log with a gap at every record."""
    part = standing(desk, step, deep)
    for _ in range(2_000):
        do(desk, "tick")
        works = desk.started()
        if not works:
            break
        do(desk, "calls_ended", works)
    assert part.offsets.frontier == step * (2 * LANES * deep - 1) + 1


def standing_lane(desk, part, offsets: range) -> None:
    """Records of one key, of which the first fails and waits."""
    records = [Record("t", 0, o, 0, b"a", b"v") for o in offsets]
    for first in range(0, len(records), POLL):
        some = records[first : first + POLL]
        do(desk, "polled", [(part, some, [100] * len(some))])
    failed = [Failed(work, ERROR) for work in desk.started()]
    do(desk, "calls_ended", [], failed)


def free_ones(desk, part, offsets: range) -> list[int]:
    """Records without a key come in; which of them are called, in as many turns as there are."""
    records = [Record("t", 0, o, 0, None, b"v") for o in offsets]
    do(desk, "polled", [(part, records, [100] * len(records))])
    called = []
    while works := desk.started():
        called += [work.record.offset for work in works]
        do(desk, "calls_ended", works)
    return called


def kept(desk, part) -> int:
    """The last offset that a clean stop would keep as done."""
    (item,) = desk.engine.last_commit(desk.now, [part]).items
    assert len(item.metadata) <= 4096
    return decode(item.frontier, item.metadata).highest_seen


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_no_more_is_left_behind_than_a_map_names(desk, surplus):
    """One lane stands with as many records as a map may name, or one more, and free ones follow.

    Were they done, a map could not say so, and they would be handled again after a clean stop.
    """
    (part,) = desk.assign(0)
    waiting = NOT_DONE_MAX + surplus
    standing_lane(desk, part, range(waiting))
    called = free_ones(desk, part, range(waiting, waiting + 5))
    assert called == (list(range(waiting, waiting + 5)) if surplus <= 0 else [])
    if called:
        assert kept(desk, part) == called[-1]


@pytest.mark.parametrize("waiting", [18_395, 18_396, 18_397, 30_000])
def test_a_long_lane_that_stands_holds_nothing_back(desk, waiting):
    """Nothing past the lane is done yet: what follows it starts all the same.

    A long run of what is not done is four bytes, but room was looked for only once the top was far
    enough: behind 18,396 waiting records of one key nothing started, for as long as its head stood.
    """
    (part,) = desk.assign(0)
    standing_lane(desk, part, range(waiting))
    offsets = range(waiting, waiting + 3_000)
    assert free_ones(desk, part, offsets) == list(offsets)
    assert kept(desk, part) == offsets[-1]


def test_a_second_long_lane_past_the_top_holds_nothing_back(desk):
    """The same far from the frontier, where starts are counted already."""
    (part,) = desk.assign(0)
    standing_lane(desk, part, range(20_000))
    free_ones(desk, part, range(20_000, 20_010))
    standing_lane(desk, part, range(20_010, 40_000))
    assert free_ones(desk, part, range(40_000, 40_010)) == list(range(40_000, 40_010))
    assert kept(desk, part) == 40_009


def test_what_is_behind_more_gaps_than_a_map_reports_waits(desk):
    """A compacted log: each gap between records of the lane that stands is a run of its own."""
    (part,) = desk.assign(0)
    standing_lane(desk, part, range(0, 20_000, 2))
    assert free_ones(desk, part, range(20_000, 20_010)) == []
    desk.now += 61.0
    do(desk, "tick")
    while works := desk.started():  # the lane goes on: all behind it follows
        do(desk, "calls_ended", works)
    assert part.offsets.frontier == 20_010


def test_many_near_ones_under_way_keep_a_far_one_waiting(make_desk):
    """More run than the map has runs for: they end first, then what is far away starts."""
    desk = make_desk(
        HandlerSpec("h", concurrency=1_000),
        limits=Limits(buffer_records=10**6, buffer_bytes=10**12),
    )
    (part,) = desk.assign(0)
    records = [Record("t", 0, o, 0, None, b"v") for o in range(900)]
    do(desk, "polled", [(part, records, [100] * 900)])
    running = desk.started()
    lane = [Record("t", 0, o, 0, b"a", b"v") for o in range(900, 20_000)]
    do(desk, "polled", [(part, lane, [100] * len(lane))])
    running += desk.started()
    far = [Record("t", 0, 20_000, 0, None, b"v")]
    do(desk, "polled", [(part, far, [100])])
    assert desk.started() == []
    do(desk, "calls_ended", [work for work in running if 300 < work.record.offset < 900])
    assert [work.record.offset for work in desk.started()] == [20_000]


def test_records_of_one_share_take_room_from_the_first_on(make_desk):
    """What starts in one turn is under way when the map is measured in its middle."""
    desk = make_desk(
        HandlerSpec("h", concurrency=60, ordering="unordered"), limits=Limits(map_chars=64)
    )
    (part,) = desk.assign(0)
    desk.poll(part, *range(1000), key=None)
    others = desk.started()[1:]  # the first one stays: soon the map cannot tell what follows it
    while part.reach.window is None:
        desk.do("calls_ended", others)
        others = desk.started()
    window = part.reach.window
    splits = sum(not window.free(work.record.offset) for work in others)
    assert 0 < window.runs + splits + part.reach.budget <= runs_fit(64)
