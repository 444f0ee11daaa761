"""Properties of the offset map: what is written is read, and reading never does anything else."""

import base64
import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perkey.codec import (
    OffsetMap,
    Remembered,
    UnreadableMap,
    decode,
    encode,
    encode_fitting,
    measure,
    with_rider,
)
from perkey.codec.rider import EXHAUSTED_BY
from perkey.codec.wire import BY_MAGIC
from perkey.codec.zstd import compress

TEXTS = [
    text
    for vector in json.loads(
        (Path(__file__).parents[1] / "data" / "offset-map-vectors.json").read_text()
    )["vectors"]
    for text in vector["encodings"].values()
]

frontiers = st.integers(0, 2**62)


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A (frontier, top, not_done) as a partition may have it: runs of all lengths."""
    frontier = draw(frontiers)
    not_done: list[int] = []
    place = frontier
    lengths = st.one_of(st.integers(0, 5), st.integers(0, 300), st.integers(32_000, 40_000))
    for waiting, done in draw(st.lists(st.tuples(st.integers(0, 40), lengths), max_size=30)):
        not_done += range(place, place + waiting)
        place += waiting + done
    return frontier, place - 1, not_done


@given(snapshots())
def test_what_is_written_is_read(snapshot: tuple[int, int, list[int]]):
    """Encode and decode restore the same frontier, top and not-done offsets."""
    frontier, top, not_done = snapshot
    text = encode(frontier, top, not_done)
    found = decode(frontier, text, log_end=top + 1)
    assert (found.frontier, found.highest_seen) == (frontier, top)
    assert found.not_done == tuple(not_done)
    assert len(text) <= measure(frontier, top, not_done)


@given(snapshots(), st.data(), st.integers(0, 5000))
@pytest.mark.push
def test_a_rider_is_read_as_far_as_it_fits(
    snapshot: tuple[int, int, list[int]], data: st.DataObject, limit_chars: int
):
    """Its lowest offsets, whole; the map beside it says the same as without."""
    frontier, top, not_done = snapshot
    text, covered = encode_fitting(frontier, top, not_done, limit_chars)
    open_offsets = [offset for offset in not_done if offset <= covered]
    entries = [
        Remembered(
            offset,
            data.draw(st.integers(0, 2**31 - 1)),
            data.draw(st.booleans()),
            data.draw(st.booleans()),
            data.draw(st.sampled_from(EXHAUSTED_BY)),
            data.draw(st.none() | st.integers(0, 2**40)),
            data.draw(st.none() | st.integers(0, 2**32 - 1)),
        )
        for offset in sorted(data.draw(st.sets(st.sampled_from(open_offsets), max_size=20)))
    ] if open_offsets else []  # fmt: skip
    both, count = with_rider(frontier, text, entries, limit_chars)
    found, plain = decode(frontier, both), decode(frontier, text)
    assert found.rider == (tuple(entries[:count]), "")
    assert (found.highest_seen, found.not_done) == (plain.highest_seen, plain.not_done)
    assert len(both) <= max(len(text), limit_chars)


@given(st.lists(st.booleans(), max_size=4000), frontiers)
def test_dense_maps_are_read_too(done: list[bool], frontier: int):
    """The same for any pattern of single offsets."""
    not_done = [frontier + place for place, is_done in enumerate(done) if not is_done]
    top = frontier + len(done) - 1
    found = decode(frontier, encode(frontier, top, not_done))
    assert (found.highest_seen, found.not_done) == (top, tuple(not_done))


@given(snapshots(), st.integers(0, 200))
def test_a_map_in_part_is_a_true_prefix(snapshot: tuple[int, int, list[int]], limit_chars: int):
    """Within any limit: ends at a done offset, and tells the truth up to there."""
    frontier, top, not_done = snapshot
    text, covered = encode_fitting(frontier, top, not_done, limit_chars)
    found = decode(frontier, text)
    assert len(text) <= limit_chars
    assert frontier - 1 <= covered <= max(top, frontier - 1)
    assert found.highest_seen == covered
    assert covered not in not_done
    assert found.not_done == tuple(offset for offset in not_done if offset <= covered)
    assert encode_fitting(frontier, top, not_done, limit_chars) == (text, covered)


def outcome(frontier: int, text: str) -> OffsetMap | UnreadableMap:
    """What reading gives, within a second; anything but a map or UnreadableMap is raised."""
    began = time.thread_time()
    try:
        found: OffsetMap | UnreadableMap = decode(frontier, text)
    except UnreadableMap as refused:
        found = refused
    assert "\n" not in str(found)
    assert time.thread_time() - began < 1.0
    return found


def check(frontier: int, text: str) -> None:
    """Whatever was read is a map that could be: ascending offsets within its own range."""
    found = outcome(frontier, text)
    if isinstance(found, OffsetMap) and found.not_done:
        assert found.not_done[0] >= frontier
        assert found.not_done[-1] <= found.highest_seen
        assert all(a < b for a, b in zip(found.not_done, found.not_done[1:], strict=False))


@given(frontiers, st.text(max_size=300))
@pytest.mark.push
def test_any_text(frontier: int, text: str):
    """Any text is a map or UnreadableMap."""
    check(frontier, text)


@settings(deadline=1000)
@given(frontiers, st.sampled_from(sorted(BY_MAGIC)), st.binary(max_size=300), st.booleans())
def test_any_body(frontier: int, magic: int, body: bytes, is_framed: bool):
    """Any bytes behind each magic byte, framed or not, are a map or UnreadableMap."""
    packed = bytes((magic,)) + (compress(body) if is_framed else body)
    check(frontier, base64.b64encode(packed).decode())


@settings(deadline=1000)
@given(
    frontiers,
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 60),
)
def test_a_mutated_map(frontier: int, text: str, changes: list[tuple[int, int]], cut: int):
    """Java's maps with bytes changed and the end cut off are a map or UnreadableMap."""
    packed = bytearray(base64.b64decode(text))
    for place, value in changes:
        packed[place % len(packed)] = value
    check(frontier, base64.b64encode(packed[: len(packed) - cut % len(packed)]).decode())
