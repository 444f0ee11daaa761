"""How far out records may start: the rules one by one, where test_window.py has them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from weft.core.commit_state import CommitState
from weft.core.offsets import Offsets
from weft.core.reach import PRESSURE, Reach, always_fits
from weft.types import Record


class Log:
    """Offsets 0 to so many received (or these), and some of them done."""

    def __init__(
        self, received: int | Sequence[int], done: Iterable[int], chars: int = 4096
    ) -> None:
        self.offsets = Offsets(0)
        self.commit = CommitState(self.offsets, map_limit=chars)
        self.reach = Reach(self.offsets, self.commit)
        places = range(received) if isinstance(received, int) else received
        records = [Record("t", 0, offset, 0, None, b"") for offset in places]
        self.offsets.receive(records, [1] * len(records), None)
        for offset in done:
            self.offsets.done(offset)

    def measure(self, under_way: int = 0, wanted: int = 0) -> Reach:
        """Measured as things are."""
        self.reach.measure(self.offsets.snapshot(), under_way, wanted)
        return self.reach


def test_before_the_first_measurement_nothing_past_the_start_may_start():
    """And nothing is counted."""
    reach = Log(10, ()).reach
    assert not reach.has_room(0, count=True)
    assert reach.opened == 0


@pytest.mark.parametrize(("chars", "fits"), [(4096, 24_528), (64, 336), (8, 0), (3, 0)])
def test_offsets_that_a_bit_set_always_tells(chars, fits):
    """Six bytes are not bits."""
    assert always_fits(chars) == fits


def test_what_is_near_starts_without_a_count():
    """Up to three quarters of what a bit set tells; past that nothing."""
    reach = Log(400, (), chars=64).measure(wanted=0)
    near = int(336 * PRESSURE)
    assert reach.has_room(near - 1, count=True)
    assert not reach.has_room(near, count=True)
    assert reach.may_always(near - 1)
    assert not reach.may_always(near)


@pytest.mark.parametrize(
    ("offset", "free"), [(1, True), (2, False), (3, True), (5, True), (7, True), (9, False)]
)
def test_beside_a_record_that_is_done_one_is_free(offset, free):
    """Below the top, with a neighbour that is done: before it or behind it."""
    log = Log(12, (0, 4, 8))
    assert log.offsets.top == 8
    assert log.reach.may_always(offset) == free


def test_what_is_counted_takes_its_part_of_the_room():
    """One that is free takes none, and one that only asks takes nothing at all."""
    log = Log(400, range(300, 301), chars=64)
    reach = log.measure()
    assert reach.counted
    assert reach.budget > 1
    before = reach.budget
    assert reach.has_room(302, count=False)
    assert reach.budget == before
    assert reach.has_room(302, count=True)
    assert (reach.budget, reach.opened, reach.farthest) == (before - 1, 1, 302)
    assert reach.has_room(299, count=True)
    assert (reach.budget, reach.opened, reach.farthest) == (before - 1, 2, 302)


def test_nothing_starts_past_the_end_of_what_was_looked_at():
    """However much room there is."""
    reach = Log(400, range(300, 301), chars=64).measure()
    assert reach.has_room(reach.end - 1, count=False)
    assert not reach.has_room(reach.end, count=False)


def test_those_under_way_have_their_room_already():
    """What has started may end, in any order: it is taken off."""
    free = Log(400, range(300, 301), chars=64).measure().budget
    assert Log(400, range(300, 301), chars=64).measure(under_way=2).budget == free - 2


def test_a_map_near_its_limit_lets_nothing_more_start():
    """Past three quarters of it only what makes it no longer."""
    reach = Log(400, tuple(range(1, 305, 2)), chars=64).measure()
    assert reach.counted
    assert reach.budget == 0


def test_it_is_worth_measuring_once_the_frontier_has_moved():
    """Or the position; and not for nothing."""
    log = Log(400, (), chars=64)
    reach = log.measure()
    assert not reach.worth_measuring(50, 0)
    log.offsets.done(0)
    assert reach.worth_measuring(50, 0)
    log.measure()
    assert not reach.worth_measuring(50, 0)
    log.offsets.advance(500)
    assert reach.worth_measuring(50, 0)


def test_it_is_worth_measuring_once_enough_have_ended():
    """Where starts are counted: so many of those that were under way."""
    reach = Log(400, range(300, 301), chars=64).measure(under_way=2)
    assert reach.after == 1
    assert not reach.worth_measuring(2, 0)
    assert reach.worth_measuring(1, 0)


CHARS, NEAR = 200, 864  # what such a map tells without a count: 3/4 of 1,152 offsets


def with_gaps(gaps: int, chars: int = CHARS) -> Log:
    """One record is done far from the frontier, and past it are so many gaps."""
    past = [901 + 2 * number for number in range(gaps + 1)]
    return Log([*range(901), *past, *range(past[-1] + 1, past[-1] + 40)], [900], chars)


@pytest.mark.parametrize("gaps", [1, 2, 5])
def test_a_gap_past_the_top_takes_the_room_of_a_record(gaps):
    """Once something past it is done the map has to tell it."""
    assert with_gaps(gaps).measure().budget == with_gaps(0).measure().budget - gaps


def test_starts_end_at_one_gap_too_many():
    """Half of the room is for gaps; what stands behind more of them waits."""
    most = with_gaps(0).measure().budget // 2
    few, many = with_gaps(most), with_gaps(most + 3)
    assert few.measure(wanted=990).end == few.offsets.position
    assert many.measure(wanted=990).end == 901 + 2 * (most + 1)
    many.reach.farthest = 901 + 2 * (most + 1)  # behind one more of them something has started
    assert many.measure(wanted=990).end == 901 + 2 * (most + 2)


def test_a_gap_at_the_end_of_the_log_is_no_end():
    """What comes next may start, up to where the log was read."""
    log = Log(1_000, [900], CHARS)
    log.offsets.advance(1_010)
    assert log.measure(wanted=999).end == 1_010
    assert log.reach.looked == 1_010


def test_of_a_long_backlog_no_more_is_looked_at_than_may_start():
    """What lies behind is looked at when it asks."""
    log = Log(3_000, [900], CHARS)
    reach = log.measure()
    assert 901 + reach.budget <= reach.end == reach.looked < 950
    assert reach.worth_measuring(0, reach.looked)
    assert log.measure(wanted=2_900).end == 3_000


@pytest.mark.parametrize(("top", "counted"), [(646, False), (647, True), (648, True)])
def test_starts_are_counted_once_the_top_is_three_quarters_there(top, counted):
    """Early enough that the room does not run out before it is measured."""
    reach = Log(1_000, [top], CHARS).measure()
    assert reach.counted == counted
    assert reach.limit == (1 if counted else NEAR)
    assert reach.at_top == 647


def test_what_has_started_counts_as_the_top():
    """It may be done at any time."""
    log = Log(1_000, [], CHARS)
    log.reach.farthest = 700
    assert log.measure().counted


def test_it_is_worth_measuring_where_the_top_says_so():
    """Not counted so far: once something that far out is done."""
    log = Log(1_000, [], CHARS)
    reach = log.measure()
    log.offsets.done(646)
    assert not reach.worth_measuring(5, 0)
    log.offsets.done(647)
    assert reach.worth_measuring(5, 0)


def test_what_asks_from_behind_a_long_lane_is_counted():
    """Nothing far out is done; the record that asks lies past what starts without a count."""
    reach = Log(2_000, [], CHARS).measure(wanted=NEAR)
    assert (reach.counted, reach.limit, reach.end) == (True, 1, 2_000)
    assert Log(2_000, [], CHARS).measure(wanted=NEAR - 1).counted is False


def test_what_asks_waits_while_too_many_near_ones_are_under_way():
    """Each of them may be a run of its own; fewer of them, and it is looked at again."""
    free = Log(2_000, [], CHARS).measure(wanted=NEAR).budget
    reach = Log(2_000, [], CHARS).measure(under_way=free - 1, wanted=NEAR)
    assert (reach.counted, reach.budget) == (True, 1)
    reach = Log(2_000, [], CHARS).measure(under_way=free, wanted=NEAR)
    assert (reach.counted, reach.fewer, reach.looked) == (False, free, 2_000)
    assert not reach.worth_measuring(free, NEAR)
    assert reach.worth_measuring(free - 1, NEAR)


def test_what_asks_from_behind_too_many_gaps_is_looked_at_again_further_on():
    """Once a part of what lies before it is done, and not with each record of that."""
    log = Log([*range(0, 1_000, 2), *range(1_000, 1_100)], [], CHARS)
    reach = log.measure(wanted=1_090)
    assert (reach.counted, reach.again, reach.fewer) == (False, 1_090 // 64, 0)
    assert reach.limit == NEAR
    log.offsets.done(0)
    reach = log.measure(wanted=1_090)
    assert (reach.frontier, reach.again) == (2, 17)
    log.offsets.done(2)
    reach = log.measure(wanted=1_090)
    assert (reach.frontier, reach.again, reach.looked) == (4, 17, NEAR + 4)  # not looked for


def test_claims_are_among_what_is_looked_at():
    """They are held still, and count as done: as many more are looked through."""
    log = Log(3_000, [900], CHARS)
    for offset in range(1, 500):
        work = log.offsets.incomplete[offset]
        assert work is not None
        log.commit.claim(work)
    claimed = {work.record.offset for work in log.commit.claims}
    log.reach.measure(log.offsets.snapshot(claimed), 0, 0)
    assert 901 + log.reach.budget <= log.reach.end < 950


def test_measuring_again_waits_for_an_eighth_of_the_room():
    """A measurement walks over what is not done: not for each record that ends."""
    reach = Log(6_000, [5_000], 1_000).measure()
    under_way, after = reach.opened + 50, reach.after
    assert after == (reach.budget + 0) // 8 > 5
    reach.opened = under_way
    assert not reach.worth_measuring(under_way - after + 1, 0)
    assert reach.worth_measuring(under_way - after, 0)
    reach.opened = 1
    assert reach.worth_measuring(0, 0)
    reach.opened = 0
    assert not reach.worth_measuring(0, 0)
