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


def with_entries(chars: int) -> str:
    """A commit of this length with a rider."""
    carrier = Carrier(0, encode(0, 3_999, OFFSETS), 8_192)
    one = len(carrier.carry(ENTRIES[:1])[0])
    text = carrier.carry(ENTRIES[: 1 + (chars - one) // 4])[0]
    assert len(text) == chars
    return text


def bare(chars: int) -> str:
    """The same of a map alone, which cannot be compressed."""
    rng = random.Random(7)
    holes = [offset for offset in range(24_600) if rng.random() < 0.5]
    for top in range(23_700, 24_600, 24):  # three bytes, so four characters, each
        text = encode(0, top, [one for one in holes if one < top])
        if len(text) >= chars:
            assert len(text) == chars
            return text
    raise AssertionError(chars)


def is_full(text: str) -> bool:
    """Whether it is reported that the commit may have left something out."""
    return _part(("t", 0), 0, text, None).problem.startswith(NO_ROOM)


@pytest.mark.parametrize(("more", "full"), LIMITS)
def test_a_rider_that_left_something_out_is_known_by_its_length(more, full):
    """At the limit and four characters beside it."""
    assert is_full(with_entries(FULL_CHARS + more)) == full


@pytest.mark.parametrize(("more", "full"), LIMITS)
def test_so_is_a_map_that_left_no_room_for_any(more, full):
    """Where the map took the place of the rider."""
    assert is_full(bare(BARE_CHARS + more)) == full


def test_below_that_the_longest_entry_has_room():
    """What such a commit did not remember was not to be remembered."""
    assert Carrier(0, bare(BARE_CHARS - 4), 4096).carry([LONGEST])[1] == 1
