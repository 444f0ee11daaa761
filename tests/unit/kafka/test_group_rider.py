"""Which commits may have left out what they were to remember, seen from their text alone."""

from __future__ import annotations

import random

import pytest

from perkey.codec import Remembered, encode
from perkey.codec.maps import Carrier
from perkey.kafka.group_rider import BARE_CHARS, FULL_CHARS, _part

OFFSETS = range(0, 4_000, 2)
ENTRIES = [Remembered(one, 1) for one in OFFSETS]  # three bytes, so four characters, each
LONGEST = Remembered(20_000, 2**31 - 1, error=7, until_s=1_700_000_000)
NO_ROOM = "its commit has no room"
LIMITS = [(-4, False), (0, True), (4, True)]


def with_entries(chars: int, *, mark: bool) -> str:
    """A commit of this length with a rider, behind the mark of a redo if it has one."""
    carrier = Carrier(0, encode(0, 3_999, OFFSETS), 8_192)
    assert not mark or carrier.mark("a redo")
    one = len(carrier.carry(ENTRIES[:1])[0])
    text = carrier.carry(ENTRIES[: 1 + (chars - one) // 4])[0]
    assert len(text) == chars
    return text


def bare(chars: int, *, mark: bool) -> tuple[str, Carrier]:
    """The same of a map alone, which cannot be compressed; and what a rider would go behind."""
    rng = random.Random(7)
    holes = [offset for offset in range(24_600) if rng.random() < 0.5]
    for top in range(23_700, 24_600, 24):  # three bytes, so four characters, each
        text = encode(0, top, [one for one in holes if one < top])
        carrier = Carrier(0, text, 4096)
        if mark:
            assert carrier.mark("a redo")
            text = carrier.carry(())[0]
        if len(text) >= chars:
            assert len(text) == chars
            return text, carrier
    raise AssertionError(chars)


def is_full(text: str) -> bool:
    """Whether it is reported that the commit may have left something out."""
    return _part(("t", 0), 0, text, None).problem.startswith(NO_ROOM)


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize(("more", "full"), LIMITS)
def test_a_rider_that_left_something_out_is_known_by_its_length(more, full, mark):
    """At the limit and four characters beside it, with the mark of a redo too."""
    assert is_full(with_entries(FULL_CHARS + more, mark=mark)) == full


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize(("more", "full"), LIMITS)
def test_so_is_a_map_that_left_no_room_for_any(more, full, mark):
    """Also where the mark took the place of the rider."""
    assert is_full(bare(BARE_CHARS + more, mark=mark)[0]) == full


@pytest.mark.parametrize("mark", [False, True])
def test_below_that_the_longest_entry_has_room(mark):
    """What such a commit did not remember was not to be remembered."""
    _, carrier = bare(BARE_CHARS - 4, mark=mark)
    assert carrier.carry([LONGEST])[1] == 1
