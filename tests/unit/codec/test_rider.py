"""The rider of a commit: its bytes, what gives way where there is no room, and hostile ones."""

from __future__ import annotations

import base64

import pytest

from perkey.codec import (
    OffsetMap,
    Remembered,
    decode,
    encode,
    limits,
    rider,
    with_rider,
    zstd,
)
from perkey.codec.limits import UnreadableMap
from perkey.codec.rider import EXHAUSTED_BY, MAGIC, error_hash

FAILING = Remembered(100, 2, until_s=1_790_000_060, error=0x01020304)
PARKED = Remembered(103, 5, parked=True, exhausted_by="attempts", error=0xFFFFFFFF)
HELD = Remembered(104, 0, held=True, until_s=1_790_003_600)
MAP = (100, 109, [100, 103, 104])


def frame(content: bytes, magic: int = MAGIC) -> bytes:
    """A skippable frame."""
    return magic.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content


def text_of(behind: bytes, before: bytes = b"") -> str:
    """The metadata of MAP with these frames around its own."""
    body = base64.b64decode(encode(*MAP))[1:]
    return base64.b64encode(b"a" + before + zstd.compress(body) + behind).decode()


def test_its_bytes():
    """They are a wire format: docs/architecture.md."""
    framed, count = rider.encode(100, [FAILING, PARKED, HELD], 1000)
    assert count == 3
    content = bytes.fromhex(
        "01" "bcf7c4d506"               # version 1, base 1,790,000,060
        "00" "0c" "02" "00" "04030201"  # offset 100, until and error, 2 attempts, base + 0 s
        "02" "19" "05" "ffffffff"       # offset 103, parked after its attempts, 5 of them
        "00" "06" "00" "d41b"           # offset 104, held until 3,540 s after base
    )  # fmt: skip
    assert framed == bytes.fromhex("572a4d18") + len(content).to_bytes(4, "little") + content


@pytest.mark.parametrize(
    ("after_s", "bytes_of_it"),
    [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (30 * 86_400, 4)],
)
def test_a_later_time_takes_more_bytes(after_s, bytes_of_it):
    """An entry with an error and a time: 8 bytes, 10 from 4.5 h after the first time on."""
    first, later = FAILING, PARKED._replace(held=True, until_s=FAILING.until_s + after_s)
    one, _ = rider.encode(100, [first], 1000)
    both, _ = rider.encode(100, [first, later], 1000)
    assert len(both) - len(one) == 7 + bytes_of_it
    assert rider.decode(100, both, [100, 103], 109).entries == (first, later)


@pytest.mark.parametrize(
    ("distance", "attempts", "size"),
    [(0, 0, 3), (127, 127, 3), (128, 127, 4), (127, 128, 4), (128, 128, 5)],
)
def test_an_entry_takes_three_bytes_at_least(distance, attempts, size):
    """One more for a distance from 128 on, and for so many attempts."""
    empty = 8 + 1 + 1  # the frame's head, the version, a base of 0 s
    offset = 100 + distance
    framed, _ = rider.encode(100, [Remembered(offset, attempts)], 1000)
    assert len(framed) - empty == size
    assert rider.decode(100, framed, [offset], offset).entries == (Remembered(offset, attempts),)


@pytest.mark.parametrize("room", [9, 10, 11])
def test_a_long_entry_gives_way_whole(room):
    """Of ten bytes: at nine it is left out, never cut."""
    later = PARKED._replace(until_s=FAILING.until_s + 16_384)
    one, _ = rider.encode(100, [FAILING], 1000)
    framed, count = rider.encode(100, [FAILING, later], len(one) + room)
    assert count == (1 if room < 10 else 2)
    assert len(rider.decode(100, framed, [100, 103], 109).entries) == count


def test_it_rides_behind_the_map():
    """Both are read back from one text; the map is the same with it and without."""
    text, count = with_rider(100, encode(*MAP), [FAILING, PARKED, HELD])
    found = decode(100, text, log_end=110)
    assert (count, found.rider) == (3, ((FAILING, PARKED, HELD), ""))
    assert (found.encoding, found.highest_seen, list(found.not_done)) == (
        "BitSetCompressed", 109, MAP[2],
    )  # fmt: skip


def test_without_entries_the_text_stays_as_it_is():
    """An app without failures commits byte for byte what it did."""
    assert with_rider(100, encode(*MAP), []) == (encode(*MAP), 0)
    assert with_rider(100, "", []) == ("", 0)


def test_a_map_of_nothing_names_the_frontier():
    """Nothing beyond it is done, and its record is parked: a map of one offset carries that."""
    text, count = with_rider(100, "", [PARKED._replace(offset=100)])
    found = decode(100, text, log_end=101)
    assert (count, found.highest_seen, found.not_done) == (1, 100, (100,))
    assert found.rider.entries == (PARKED._replace(offset=100),)


@pytest.mark.parametrize("short", [0, 1])
def test_its_highest_offsets_give_way(short):
    """Never the map: at the limit all fits, at one character group less the last does not."""
    full, _ = with_rider(100, encode(*MAP), [FAILING, PARKED, HELD])
    text, count = with_rider(100, encode(*MAP), [FAILING, PARKED, HELD], len(full) - 4 * short)
    assert len(text) <= len(full) - 4 * short
    assert count == 3 - short
    assert decode(100, text).rider.entries == (FAILING, PARKED, HELD)[:count]
    assert with_rider(100, encode(*MAP), [FAILING], 20) == (encode(*MAP), 0)


@pytest.mark.parametrize(
    ("behind", "entries"),
    [
        pytest.param(
            frame(b"other", MAGIC - 1) + frame(b"\x01\x00\x00\x01\x05"), 1, id="another's"
        ),
        pytest.param(frame(b"other", MAGIC - 7), 0, id="another's alone"),
        pytest.param(frame(b"\x01\x00\x01\x01\x05"), 0, id="of a record that is done"),
        pytest.param(b"", 0, id="none"),
    ],
)
def test_what_is_not_ours_is_passed_over(behind, entries):
    """Frames of other programs, before and behind the map, and records that are done."""
    assert len(decode(100, text_of(behind)).rider.entries) == entries
    assert decode(100, text_of(b"", before=behind)).not_done == (100, 103, 104)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "version missing"),
        (b"\x02\x00", "version 2 is not known"),
        (b"\x01", "cut off"),
        (b"\x01\x00\x00", "cut off"),
        (b"\x01\x00\x00\x04\x01", "cut off"),
        (b"\x01\x00\x00\x08\x01\x01\x02\x03", "entry 1 makes no sense"),
        (b"\x01\x00\x00\x80\x01", "entry 1 makes no sense"),
        (b"\x01" + b"\xff" * 8 + b"\x01\x00", "cut off"),
        (b"\x01" + b"\xff" * 9 + b"\x01", "too long"),
        (b"\x01\x00" + b"\xff" * 8 + b"\x7f\x00\x00", "entry 1 makes no sense"),
    ],
)
def test_what_cannot_be_read_costs_the_rider_alone(content, problem):
    """Another version, cut in the middle, or hostile: the map beside it holds."""
    found = decode(100, text_of(frame(content)))
    assert problem in found.rider.problem
    assert (found.rider.entries, found.not_done) == ((), (100, 103, 104))


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_frame_that_is_cut_costs_the_rider_alone(cut):
    """The map before it is whole: what is done would be handled again without it."""
    found = decode(100, text_of(frame(b"\x01")[:-cut]))
    assert found.rider.problem == "rider ignored: a skippable frame is cut off"
    assert found.not_done == (100, 103, 104)


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_frame_that_is_cut_before_the_map_is_no_map(cut):
    """It may have swallowed a part of it; other data behind it is none either."""
    with pytest.raises(UnreadableMap):
        decode(100, text_of(b"", before=frame(b"\x01")[:-cut]))
    with pytest.raises(UnreadableMap, match="data after the zstd frame"):
        decode(100, text_of(b"\x01" * cut))


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_so_many_entries_are_read(more):
    """As many as a map may name as not done."""
    count = limits.NOT_DONE_MAX + more
    content = b"\x01\x00" + b"\x00\x00\x01" * count
    read = rider.decode(0, frame(content), range(count), count)
    assert len(read.entries) == (count if more <= 0 else 0)
    assert ("more than" in read.problem) == (more > 0)


def test_every_way_to_be_exhausted_has_a_number():
    """Three bits hold them; an unknown word is a bug and no number."""
    assert len(EXHAUSTED_BY) <= 8
    for by in EXHAUSTED_BY:
        text, _ = with_rider(100, "", [Remembered(100, 1, exhausted_by=by)])
        assert decode(100, text).rider.entries[0].exhausted_by == by


def test_kinds_of_errors_have_hashes_of_their_own():
    """By type and place."""
    kinds = {error_hash(kind, place) for kind in ("A", "B") for place in ("m:1", "m:2")}
    assert len(kinds) == 4


def test_a_map_has_no_rider_by_default():
    """As all were before."""
    assert OffsetMap("none", 0, -1, ()).rider == ((), "")


@pytest.mark.parametrize(
    ("text", "top", "not_done", "entries"),
    [
        ("YSi1L/0AWCkAAAAK5gMAWCpNGAgAAAAJw+rFQyE7DA==", 109, (100, 103, 104), ()),
        (
            "YSi1L/0AWCkAAAAK5gMAWCpNGAgAAAAJw+rFQyE7DFcqTRgVAAAAAbz3xNUGAAwCAAQDAgECGQX/////",
            109,
            (100, 103, 104),
            (FAILING, PARKED),
        ),
        ("cyi1L/0AWCkAAAAAAAAAWCpNGAgAAAAJw+rFQyE7DA==", 99, (), ()),
        (
            "cyi1L/0AWCkAAAAAAAAAWCpNGAgAAAAJw+rFQyE7DFcqTRgOAAAAAbz3xNUGAAwCAAQDAgE=",
            99,
            (),
            (FAILING,),
        ),
    ],
    ids=["map", "map-rider", "none", "none-rider"],
)
def test_a_commit_with_the_mark_of_an_earlier_release_is_read(text, top, not_done, entries):
    """Earlier builds wrote a frame 58 2A 4D 18 before the rider: passed over like any other."""
    assert bytes.fromhex("582a4d1808000000") in base64.b64decode(text)
    told = decode(100, text, log_end=top + 2)
    assert (told.frontier, told.highest_seen, told.not_done) == (100, top, not_done)
    assert told.rider == (entries, "")
