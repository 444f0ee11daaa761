"""How far out records may start: the rules one by one, where test_window.py has them together."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest

from perkey.codec.limits import NOT_DONE_MAX
from perkey.core.commits import CommitState
from perkey.core.offsets import LOOK_EVERY, PRESSURE, Offsets, Reach, Window, always_fits, runs_fit
from perkey.types import Record

CHARS, NEAR = 200, 864  # what such a map tells without a count: 3/4 of 1,152 offsets
MOST, PRESSED = 18, 13  # runs that it tells, and three quarters of them


class Log:
    """Offsets 0 to so many received (or these), and some of them done."""

    def __init__(
        self, received: int | Sequence[int], done: Iterable[int] = (), chars: int = CHARS
    ) -> None:
        self.offsets = Offsets(0)
        self.commit = CommitState(self.offsets, map_limit=chars)
        self.waiting: set[int] = set()
        self.reach = Reach(self.offsets, self.commit, self.waiting)
        places = range(received) if isinstance(received, int) else received
        self.receive(*places)
        self.done(*done)

    def receive(self, *places: int) -> None:
        """Records come in."""
        records = [Record("t", 0, offset, 0, None, b"") for offset in places]
        self.offsets.receive(records, [1] * len(records), None)

    def done(self, *places: int) -> None:
        """Records are done."""
        for offset in places:
            self.offsets.done(offset)

    def look(self, under_way: int = 0, wanted: int = 0) -> Reach:
        """Looked at as things are."""
        self.reach.look(under_way, wanted)
        return self.reach

    def counted(self, under_way: int = 0, wanted: int = NEAR) -> Window:
        """The window once something asks from far out."""
        window = self.look(under_way, wanted).window
        assert window is not None
        return window


def runs_of(offsets: Iterable[int]) -> int:
    """Counted the slow way."""
    ordered = sorted(offsets)
    return sum(b - a > 1 for a, b in pairwise(ordered)) + bool(ordered)


def test_before_the_first_look_nothing_may_start():
    """And nothing is counted."""
    reach = Log(10).reach
    assert not reach.take_room(0)
    assert reach.farthest == -1


@pytest.mark.parametrize(("chars", "fits"), [(4096, 24_528), (64, 336), (8, 0), (3, 0)])
def test_offsets_that_a_bit_set_always_tells(chars, fits):
    """Six bytes are not bits."""
    assert always_fits(chars) == fits


@pytest.mark.parametrize(("chars", "fits"), [(4096, 383), (200, 18), (12, 1), (8, 0), (0, 0)])
def test_runs_that_a_map_tells(chars, fits):
    """Eight bytes each, and one for the kind of map."""
    assert runs_fit(chars) == fits


def test_what_is_near_starts_without_a_count():
    """Up to three quarters of what a bit set tells."""
    reach = Log(400, chars=64).look()
    near = int(336 * PRESSURE)
    assert reach.take_room(near - 1)
    assert reach.farthest == -1
    assert not reach.take_room(near)


def test_the_limit_follows_the_frontier():
    """Nothing is counted while no record asks from further out."""
    log = Log(2_000)
    log.look()
    log.done(0, 1)
    assert log.reach.worth_a_look(50)
    log.look()
    assert (log.reach.limit, log.reach.window) == (NEAR + 2, None)


# -- counted ---------------------------------------------------------------------------------------


def test_what_asks_from_further_out_has_starts_counted():
    """The window reaches as far as the record that asks."""
    log = Log(2_000)
    assert log.look(wanted=NEAR - 1).window is None
    window = log.counted()
    assert (window.end, window.runs, log.reach.budget) == (NEAR + 1, 1, MOST - 1)
    assert log.reach.limit == -1


@pytest.mark.parametrize(
    ("offset", "free"),
    [(0, True), (1, True), (2, False), (3, True), (5, True), (9, False), (NEAR, False)],
)
def test_beside_a_record_that_is_done_one_is_free(offset, free):
    """Before it or behind it; the frontier always; the end of the window is no neighbour."""
    log = Log(2_000, (4,))
    window = log.counted()
    log.done(2) if offset == 3 else None
    log.done(0) if offset == 1 else None
    assert window.free(offset) == free


def test_what_is_counted_takes_its_part_of_the_room():
    """One that is free takes none, and one that only asks takes nothing at all."""
    log = Log(2_000, (300,))
    log.counted()
    reach, before = log.reach, log.reach.budget
    assert reach.has_room(302)
    assert reach.budget == before
    assert reach.take_room(302)
    assert reach.budget == before - 1
    assert reach.take_room(299)
    assert (reach.budget, reach.farthest) == (before - 1, NEAR)


def test_without_room_only_what_is_free_may_start():
    """However far below the top the others lie."""
    log = Log(2_000, (300,))
    log.counted()
    log.reach.budget = 0
    assert not log.reach.take_room(200)
    assert log.reach.take_room(301)
    assert log.reach.take_room(0)  # the frontier: something can always start


def test_those_under_way_have_their_room_already():
    """They end in any order, so each may be a run more."""
    log = Log(2_000)
    log.counted(under_way=2)
    assert log.reach.budget == MOST - 1 - 2
    assert log.look(under_way=5).budget == MOST - 1 - 5


@pytest.mark.parametrize(("runs", "budget"), [(PRESSED, MOST - PRESSED), (PRESSED + 1, 0)])
def test_a_map_near_its_limit_lets_nothing_more_start(runs, budget):
    """Past three quarters of it only what is free."""
    log = Log(2_000)
    log.counted()
    log.done(*range(10, 10 + 2 * (runs - 1), 2))
    assert log.look().budget == budget


def test_a_claim_counts_as_done():
    """As the next commit will say: two side by side split a run once, one at its edge not at all."""
    log = Log(2_000)
    log.counted()
    for offset in (0, 10, 11, 20):
        work = log.offsets.incomplete[offset]
        assert work is not None
        log.commit.claims.append(work)
    assert log.look().budget == MOST - 3


def test_runs_are_exact_whatever_is_done():
    """Counted as they change, beside a count of all."""
    dice = random.Random(20)
    log = Log(sorted(dice.sample(range(3_000), 1_500)), chars=100_000)
    window = Window(log.offsets.incomplete, 900, set())
    log.offsets.replace(window)
    for step in range(400):
        below = [offset for offset in window if offset < window.end]
        offset = dice.choice(below)
        free, before = window.free(offset), window.runs
        log.done(offset)
        assert not (free and window.runs > before)
        if step % 3 == 0:
            window.grow(window.end + dice.randrange(10), 5)
        below = [offset for offset in window if offset < window.end]
        assert (window.runs, window.named) == (runs_of(below), len(below))
        claims = set(dice.sample(below, min(9, len(below))))
        assert window.runs_without(claims) == runs_of(set(below) - claims)


# -- the end of the window -------------------------------------------------------------------------


def test_the_window_grows_where_a_record_asks():
    """A log without gaps costs nothing; what comes in later is past the end."""
    log = Log(1_000)
    window = log.counted()
    before = log.reach.budget
    log.receive(*range(1_000, 1_100))
    assert window.end == NEAR + 1
    assert log.reach.has_room(1_050)
    assert (window.end, window.runs, log.reach.budget) == (1_051, 1, before)


def test_gaps_take_half_of_the_room_that_is_left():
    """Once something past them is done a map has to tell each of them."""
    log = Log([*range(900), *range(901, 1_000, 2)])
    window = log.counted(wanted=899)
    assert not log.reach.has_room(999)
    assert window.runs == 1 + (PRESSED - 1 + 1) // 2
    assert log.reach.budget == MOST - window.runs


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_no_more_is_left_behind_than_a_map_names(surplus):
    """The record that asks, and so many not done below it."""
    waiting = NOT_DONE_MAX + surplus
    log = Log(waiting + 1, chars=4096)
    log.look(wanted=waiting)
    assert log.reach.take_room(waiting) == (surplus <= 0)


def test_a_window_in_which_all_is_done_takes_the_next():
    """However small the map: the frontier may always start."""
    log = Log(20, chars=12)
    log.look()
    window = Window(log.offsets.incomplete, 2, set())
    log.offsets.replace(window)
    log.reach.limit = -1
    log.done(0, 1)
    assert log.reach.take_room(2)


def test_what_started_before_the_map_shrank_may_end_past_the_window():
    """The broker stores less than it did: the window is made again around what is done."""
    log = Log(2_000)
    log.counted()
    log.done(1_500)
    window = log.look(wanted=1_600).window
    assert window is not None
    assert window.end > 1_500
    assert window.runs == runs_of(offset for offset in window if offset < window.end)


# -- there and back --------------------------------------------------------------------------------


def test_what_asks_waits_while_the_near_ones_are_too_many_runs():
    """They go on without a count, and it asks again once enough of them are done."""
    log = Log(2_000, range(1, 2 * PRESSED + 3, 2))
    reach = log.look(wanted=NEAR)
    assert (reach.window, reach.limit) == (None, NEAR)
    assert not reach.worth_a_look(5)
    log.done(2)
    assert not reach.worth_a_look(5)
    assert reach.worth_a_look(0)  # nothing is under way: nothing else would ask again
    log.done(*range(4, 70, 2))
    assert reach.worth_a_look(5)


def test_what_asks_waits_while_too_many_near_ones_are_under_way():
    """Each of them may be a run of its own; fewer of them, and it is looked at again."""
    log = Log(2_000)
    reach = log.look(under_way=MOST - 1, wanted=NEAR)
    assert (reach.window, reach.fewer) == (None, MOST - 1)
    assert not reach.worth_a_look(MOST - 1)
    assert reach.worth_a_look(MOST - 2)
    assert log.look(MOST - 2, NEAR).window is not None


@pytest.mark.parametrize(("top", "counted"), [(NEAR - 1, False), (NEAR, True)])
def test_a_map_that_reaches_far_has_starts_counted_from_the_beginning(top, counted):
    """A restored one, with holes far below its top."""
    log = Log(2_000, (top,))
    assert (log.look().window is not None) == counted


def test_counting_ends_once_all_is_near_again():
    """What is done or started lies within three quarters of the near distance."""
    log = Log(4_000)
    log.counted()
    log.done(*range(NEAR - NEAR * 3 // 4))  # 216 and too few to look
    assert log.look().window is not None
    log.done(*range(NEAR - NEAR * 3 // 4, NEAR))
    log.reach.has_room(NEAR + LOOK_EVERY)
    log.done(*range(NEAR, LOOK_EVERY))
    reach = log.look()
    assert (reach.window, reach.limit) == (None, LOOK_EVERY + NEAR)
    assert type(log.offsets.incomplete) is dict


# -- heads of lanes that wait ----------------------------------------------------------------------


def test_a_head_that_became_free_is_found():
    """By the record beside it that is done, or by the gap that came into the window."""
    log = Log([*range(900), 905, 906])
    log.waiting |= {10, 20, 905}
    log.counted(wanted=899)
    assert log.reach.freed() == []
    log.done(9, 300)
    assert log.reach.freed() == [10]
    log.reach.has_room(906)
    assert log.reach.freed() == [905]
    assert log.reach.freed() == []


def test_heads_that_are_free_when_counting_starts_are_found():
    """They waited while nothing was counted."""
    log = Log(2_000, (300,))
    log.waiting |= {299, 500}
    log.counted()
    assert log.reach.freed() == [299]
