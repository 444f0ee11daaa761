"""Writing maps: the smallest that holds, in time that follows what is not done."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, combinations

import pytest
import zstandard

from perkey.codec import (
    MapTooLarge,
    bitset,
    decode,
    encode,
    encode_fitting,
    limits,
    maps,
    measure,
    runlength,
    zstd,
)

SEED = 20260


def scattered(length: int, share: float) -> list[int]:
    """Offsets below length - 1 that are not done, at random."""
    chance = random.Random(SEED)
    return [offset for offset in range(length - 1) if chance.random() < share]


def test_nothing_done_beyond_the_frontier():
    """A top below the frontier is the map of nothing, whatever is not done."""
    assert encode(50, 49, []) == encode(50, 40, [50, 51]) == "bgAA"
    assert measure(50, 49, []) == 4


def test_not_done_offsets_past_the_top_are_left_out():
    """What lies past the top is not part of the map."""
    assert encode(100, 109, [100, 101, 105, 110, 4000]) == encode(100, 109, [100, 101, 105])


def test_a_not_done_offset_below_the_frontier_is_a_bug():
    """The snapshot is inconsistent: that must never be encoded."""
    with pytest.raises(AssertionError):
        encode(100, 109, [99])


@pytest.mark.parametrize(("length", "encoding"), [(1600, "RunLengthV2"), (1601, "RunLengthV2")])
def test_v1_runs_drop_out_where_a_run_is_too_long(length: int, encoding: str):
    """A run over 32,767 offsets is written with 32 bits."""
    assert decode(0, encode(0, 32_767 + length, [0])).encoding == encoding
    assert decode(0, encode(0, 32_767, [0])).encoding == "RunLength"
    assert decode(0, encode(0, 32_768, [0])).encoding == "RunLengthV2"


@pytest.mark.parametrize(("size", "compressed"), [(199, False), (200, True), (201, True)])
def test_compression_is_tried_from_200_bytes_on(size: int, compressed: bool):
    """As in Java: compressed encodings compete only where every plain body has 200 bytes."""
    bits = (size - 3) * 8
    not_done = list(range(0, bits - 1, 2))
    found = decode(0, encode(0, bits - 1, not_done))
    assert found.encoding.endswith("Compressed") is compressed
    assert found.not_done == tuple(not_done)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("length", [2, 63, 64, 65, 32_767, 32_768, 50_000])
def test_measure_is_never_too_small(share: float, length: int):
    """The quick size is an upper bound, exact unless compression helped."""
    not_done = scattered(length, share)
    text = encode(7, length + 6, [offset + 7 for offset in not_done])
    bound = measure(7, length + 6, [offset + 7 for offset in not_done])
    if decode(7, text).encoding.endswith("Compressed"):
        assert len(text) <= bound
    else:
        assert len(text) == bound


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_cap_of_the_range(surplus: int):
    """A map spans up to 2^31 - 1 offsets; a longer one is written in part."""
    top = 9 + limits.RANGE_MAX + surplus - 1
    if surplus > 0:
        with pytest.raises(MapTooLarge, match="too many"):
            encode(9, top, [9])
        assert encode_fitting(9, top, [9]) == (encode(9, top - 1, [9]), top - 1)
    else:
        assert decode(9, encode(9, top, [9])).highest_seen == top
        assert encode_fitting(9, top, [9])[1] == top


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_cap_of_not_done_offsets(surplus: int):
    """A map names up to 100,000 offsets, as many as are read; more are written in part."""
    count = limits.NOT_DONE_MAX + surplus
    not_done = range(1, count + 1)
    if surplus > 0:
        with pytest.raises(MapTooLarge, match="too many"):
            encode(0, count + 5, not_done)
        assert encode_fitting(0, count + 5, not_done) == (encode(0, 0, ()), 0)
    else:
        assert len(decode(0, encode(0, count + 5, not_done)).not_done) == count


def test_a_map_whose_text_no_one_reads_is_refused():
    """What would be longer than any reader takes is an error, not a text."""
    chance = random.Random(SEED)
    not_done = list(accumulate(chance.randint(2, 20_000) for _ in range(limits.NOT_DONE_MAX)))
    top = not_done[-1] + 1
    with pytest.raises(MapTooLarge, match="too long a text"):
        encode(0, top, not_done)
    text, covered = encode_fitting(0, top, not_done)
    assert decode(0, text).highest_seen == covered >= 24_500


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_limit_of_a_commit(surplus: int):
    """A map of exactly 4,096 characters is whole; one bit longer it is cut, never dropped."""
    length = 24_544 + surplus
    not_done = scattered(length, 0.5)
    text, covered = encode_fitting(0, length - 1, not_done)
    assert len(text) <= 4096
    assert (covered == length - 1) is (surplus <= 0)
    assert covered >= 24_500


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_a_map_that_does_not_fit_covers_a_prefix(share: float):
    """The prefix is true: it ends at a done offset, and lists what is not done up to there."""
    length = int(120_000 / share**0.5)
    not_done = scattered(length, share)
    text, covered = encode_fitting(0, length - 1, not_done)
    found = decode(0, text)
    assert 4000 < len(text) <= limits.BROKER_CHARS_MAX
    assert found.highest_seen == covered
    assert covered not in found.not_done
    assert found.not_done == tuple(offset for offset in not_done if offset <= covered)


@pytest.mark.parametrize(
    ("limit_chars", "expected"), [(0, ("", 9)), (3, ("", 9)), (4, ("bgAA", 9))]
)
def test_a_limit_that_nothing_fits(limit_chars: int, expected: tuple[str, int]):
    """Whatever the limit, there is a text to commit with the frontier."""
    assert encode_fitting(10, 30, list(range(10, 30)), limit_chars) == expected


def test_a_tail_that_is_not_done_is_not_covered():
    """A top that is itself not done is moved down to the last done offset."""
    assert encode_fitting(10, 20, [10, 15, 16, 17, 18, 19, 20]) == (encode(10, 14, [10]), 14)
    assert encode_fitting(10, 12, [10, 11, 12]) == ("bgAA", 9)


def test_a_top_far_below_the_frontier_covers_nothing():
    """What is covered ends right before the frontier, however far below it the top is."""
    assert encode_fitting(50, 40, []) == ("bgAA", 49)


def test_a_long_run_that_is_not_done_is_stepped_over():
    """40,000 waiting records between what fits and what does not cost no search."""
    not_done = [*range(40_000), *range(40_001, 60_000, 2)]
    began = time.process_time()
    text, covered = encode_fitting(0, 60_000, not_done, 12)
    assert covered >= 40_000
    assert decode(0, text).highest_seen == covered
    assert time.process_time() - began < 2.0


def best_s(rounds: int, frontier: int, top: int, not_done: list[int]) -> float:
    """Least CPU time of some rounds of encode: other processes share this machine."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        encode(frontier, top, not_done)
        times.append(time.process_time() - began)
    return min(times)


def test_one_record_stuck_costs_nothing():
    """With a million and with a billion records done beyond one, a map takes microseconds."""
    assert best_s(20, 5, 1_000_005, [5]) < 0.001
    assert best_s(20, 5, 2_000_000_000, [5]) < 0.001


def test_25_000_records_at_random():
    """The densest map that comes up is written in about 10 ms."""
    assert best_s(10, 0, 49_999, scattered(50_000, 0.5)) < 0.03


def test_the_last_done_offset_of_every_small_map():
    """The highest offset up to the top that is done; one below the frontier where none is."""
    frontier, offsets = 10, range(10, 16)
    for count in range(len(offsets) + 1):
        for not_done in combinations(offsets, count):
            for top in range(9, 16):
                done = [o for o in range(frontier, top + 1) if o not in not_done]
                found = maps._last_done(frontier, top, not_done)
                assert found == max(done, default=frontier - 1)


def test_the_longest_prefix_that_fits_is_taken():
    """Of a regular map, the next done offset past what is covered would be too much."""
    not_done = list(range(0, 400, 2))
    for limit in range(8, 72, 4):
        _, covered = encode_fitting(0, 399, not_done, limit)
        assert covered < 0 or len(encode(0, covered, not_done)) <= limit
        assert covered == 399 or len(encode(0, covered + 2, not_done)) > limit


@pytest.mark.parametrize("top", range(180, 200))
def test_no_longer_prefix_fits(top: int):
    """Not one done offset more, wherever the search has come from."""
    not_done = [55, 63, 87, 91, 92, 101, 124, 143]
    for limit in range(20, 36, 4):
        _, covered = encode_fitting(0, top, not_done, limit)
        longer = (o for o in range(covered + 1, top + 1) if o not in not_done)
        assert all(len(encode(0, o, not_done)) > limit for o in longer)


def test_a_range_that_the_wire_cannot_hold_is_cut_by_one():
    """The length is a signed 32-bit number: one offset more is left out, and done again."""
    for top in (limits.RANGE_MAX - 2, limits.RANGE_MAX - 1, limits.RANGE_MAX):
        text, covered = encode_fitting(0, top, [0])
        assert covered == min(top, limits.RANGE_MAX - 1) == decode(0, text).highest_seen


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_no_more_not_done_offsets_are_named_than_a_reader_takes(over: int):
    """One more ends the map just before it."""
    count = limits.NOT_DONE_MAX + over
    not_done = list(range(0, 2 * count, 2))
    text, covered = encode_fitting(0, 2 * count, not_done, limits.TEXT_CHARS_MAX)
    held = decode(0, text).not_done
    assert len(held) == min(count, limits.NOT_DONE_MAX)
    assert covered == (2 * count if over <= 0 else not_done[limits.NOT_DONE_MAX] - 1)


@pytest.mark.parametrize("length", [0, 1, 2, 8, 9, 300])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_runs_from_bits_are_runs_from_offsets(length, share):
    """Both ways to find them agree, whichever a map of that density takes."""
    dice = random.Random(f"{length} {share}")
    for _ in range(20):
        not_done = [7 + place for place in range(length) if dice.random() < share]
        number = bitset.number_of(7, length, not_done)
        assert runlength.runs_of(number, length) == runlength.runs(7, length, not_done)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_map_is_the_same_at_the_density_from_which_bits_are_used(more, monkeypatch):
    """One in four offsets that is not done, and one beside that."""
    dice = random.Random(3)
    not_done = sorted(dice.sample(range(2_000), 500 + more))
    texts = {encode(0, 1_999, not_done)}
    for density in (0, 1_000_000):
        monkeypatch.setattr(maps, "_DENSE_FROM", density)
        texts.add(encode(0, 1_999, not_done))
    assert len(texts) == 1


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("longest", [0, 1, 255, 256, 2**15 - 1])
def test_runs_are_big_endian_numbers_of_their_width(width, longest):
    """However long the longest of them is."""
    lengths = [0, longest, 1, 255, 2, longest]
    body = b"".join(length.to_bytes(width, "big") for length in lengths)
    assert runlength.pack(lengths, width) == body


def test_a_frame_does_not_depend_on_frames_compressed_before():
    """The kept context writes the bytes of a new one, after any other content and size."""
    dice = random.Random(SEED)
    for _ in range(300):
        few = dice.choice([b"\0\1", b"\0\0\0\0\1\2\3\4", bytes(range(256))])
        body = bytes(dice.choices(few, k=dice.choice([0, 1, 200, 2_500, 18_000])))
        frame = zstd.compress(body)
        zstd._idle.clear()
        assert zstd.compress(body) == frame


def test_threads_that_compress_at_the_same_time_share_no_context(monkeypatch):
    """A context that is in use is not there for the next call; one is kept at the end."""
    made, meet = [], threading.Barrier(2, timeout=30)

    def context(**settings):
        compressor = zstandard.ZstdCompressor(**settings)
        made.append(compressor)
        meet.wait()
        return compressor

    monkeypatch.setattr(zstd, "ZstdCompressor", context)
    monkeypatch.setattr(zstd, "_idle", [])
    with ThreadPoolExecutor(2) as pool:
        frames = set(pool.map(zstd.compress, [b"same" * 99] * 2))
    assert len(frames) == 1
    assert len(made) == 2
    assert len(zstd._idle) == 1
