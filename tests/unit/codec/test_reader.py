"""Metadata that is foreign, corrupt or hostile: a result or UnreadableMap, nothing else."""

import base64
import time
import tracemalloc

import pytest
import zstandard

from perkey.codec import OffsetMap, UnreadableMap, decode, limits, zstd
from perkey.codec.bitset import size_bytes


def text_of(*parts: bytes) -> str:
    """Base64 of the parts, as in a commit."""
    return base64.b64encode(b"".join(parts)).decode()


def runs_body(*lengths: int) -> bytes:
    """The body of a RunLengthV2 map."""
    return b"".join(length.to_bytes(4, "big", signed=True) for length in lengths)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("bH//", "claims 32767 offsets", id="bits without a body"),
        pytest.param("bgAB//8=", "negative length", id="negative run"),
        pytest.param("b//////+ZQ==", "negative length", id="negative range"),
        pytest.param("bgABAA==", "whole number of 2-byte runs", id="odd byte"),
        pytest.param("AQ==", "Kafka Streams", id="Kafka Streams 1"),
        pytest.param("Ag==", "Kafka Streams", id="Kafka Streams 2"),
        pytest.param("eyJhIjoxfQ==", "0x7b: not an offset map", id="JSON"),
        pytest.param('{"a":1}', "not Base64", id="plain JSON"),
        pytest.param("bAAK\n3AMA", "not Base64", id="a line break"),
        pytest.param("bAAK3AMA ", "not Base64", id="a blank"),
        pytest.param("bAAK3", "not Base64", id="length no Base64 has"),
        pytest.param("====", "not Base64", id="padding alone"),
        pytest.param("ÿþ", "not Base64", id="outside ASCII"),
        pytest.param("\x00\x00", "not Base64", id="two NULs"),
        pytest.param("bA==", "ends within its length", id="magic alone, bitset"),
        pytest.param("bg==", "whole number", id="magic alone, runs"),
        pytest.param("YQ==", "cut off", id="magic alone, compressed"),
        pytest.param("TAABAA==", "ByteArray", id="byte array"),
        pytest.param(text_of(b"\xee"), "ByteArray", id="compressed byte array"),
        pytest.param(text_of(b"X\x00\x00"), "0x58: not an offset map", id="a fork's envelope"),
        pytest.param("bAAK3AcA", "past its own end", id="bits past the end"),
        pytest.param("bAAK3AMB", "past its own end", id="no closing zero"),
        pytest.param("bAAK3AMAAA==", "claims 10 offsets", id="a byte too many"),
        pytest.param("bAAK3AM=", "claims 10 offsets", id="a byte too few"),
        pytest.param("YSi1L/0AWCkAAAAK3AM=", "cut off", id="cut frame"),
        pytest.param("YSi1L/0AWCkAAAAK3AMAAA==", "data after the zstd frame", id="bytes behind"),
        pytest.param("YSi1L/0AWA==", "cut off", id="frame header alone"),
        pytest.param(text_of(b"a", b"zstd" * 9), "not a valid zstd", id="no frame"),
    ],
)
def test_what_is_no_map_is_unreadable(text: str, reason: str):
    """Every robustness case of the format is refused with a one-line reason."""
    with pytest.raises(UnreadableMap, match=reason) as caught:
        decode(100, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("frontier", [-1, -1001, 2**63])
def test_a_committed_offset_that_is_none(frontier: int):
    """A frontier outside Kafka's offsets is refused."""
    with pytest.raises(UnreadableMap, match="is not an offset"):
        decode(frontier, "bgAA")


def test_the_largest_offset_may_be_committed():
    """Kafka's offsets are signed numbers of 64 bits."""
    assert decode(2**63 - 1, "bgAA").highest_seen == 2**63 - 2


@pytest.mark.parametrize(("log_end", "readable"), [(109, False), (110, True), (111, True)])
def test_a_map_past_the_end_of_the_log_is_refused(log_end: int, readable: bool):
    """The map of 100..109 fits a log that ends at 110 and is refused by a shorter one."""
    if readable:
        assert decode(100, "bAAK3AMA", log_end=log_end).highest_seen == 109
    else:
        with pytest.raises(UnreadableMap, match="the log ends at 109"):
            decode(100, "bAAK3AMA", log_end=log_end)


def test_a_map_of_nothing_claims_nothing_of_the_log():
    """A map that covers no offset is readable at the very end of the log."""
    assert decode(100, "bgAA", log_end=100).highest_seen == 99


@pytest.mark.parametrize("surplus", [-4, 0, 4])
def test_the_cap_of_the_text(surplus: int):
    """Text is looked at up to 64 KiB and refused one Base64 group longer."""
    chars = 65_536 + surplus
    runs = [0] * (chars // 4 * 3 // 4)
    body = runs_body(*runs)[: chars // 4 * 3 - 1]
    body = body[: len(body) // 4 * 4]
    text = text_of(b"e", body).ljust(chars, "=")
    if surplus > 0:
        with pytest.raises(UnreadableMap, match="characters are more than"):
            decode(0, text)
    else:
        assert len(text_of(b"e", body)) <= chars
        assert decode(0, text_of(b"e", body)).highest_seen == -1


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_cap_of_the_decompressed_body(surplus: int):
    """A body decompresses up to its limit, and a byte more is refused."""
    length = (limits.BODY_BYTES_MAX + surplus - 5) * 8
    body = length.to_bytes(4, "big") + b"\xff" * (length // 8) + b"\x00"
    assert len(body) == limits.BODY_BYTES_MAX + surplus == size_bytes(length, 4)
    text = text_of(b"s", zstd.compress(body))
    if surplus > 0:
        with pytest.raises(UnreadableMap, match="more than 1048576 bytes decompressed"):
            decode(0, text)
    else:
        assert decode(0, text).highest_seen == length - 1


@pytest.mark.parametrize("surplus", [-1, 0, 1])
@pytest.mark.parametrize("family", ["runs", "bits"])
def test_the_cap_of_not_done_offsets(family: str, surplus: int):
    """A map names offsets as not done up to the limit; one more is refused."""
    count = limits.NOT_DONE_MAX + surplus
    if family == "runs":
        text = text_of(b"e", runs_body(count, 1))
    else:
        bits = (1 << count).to_bytes(count // 8 + 2, "little")
        body = (count + 1).to_bytes(4, "big") + bits[: (count + 8) // 8] + b"\x00"
        text = text_of(b"s", zstd.compress(body))
    if surplus > 0:
        with pytest.raises(UnreadableMap, match="offsets as not done, over 100000"):
            decode(0, text)
    else:
        assert len(decode(0, text).not_done) == count


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_the_cap_of_the_range(surplus: int):
    """Runs may span as many offsets as a signed 32-bit number counts, and no more."""
    text = text_of(b"e", runs_body(1, limits.RANGE_MAX - 1 + surplus - 2, 0, 2))
    if surplus > 0:
        with pytest.raises(UnreadableMap, match="span 2147483648 offsets"):
            decode(5, text)
    else:
        assert decode(5, text).highest_seen == 5 + limits.RANGE_MAX + surplus - 1


@pytest.mark.parametrize("exponent", [23, 24])
def test_the_cap_of_the_window(exponent: int):
    """A frame may ask for a window of 8 MiB; one that asks for more is refused."""
    parameters = zstandard.ZstdCompressionParameters(window_log=exponent, write_content_size=False)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(runs_body(1, 1)) + writer.flush()
    if exponent > 23:
        with pytest.raises(UnreadableMap, match="not a valid zstd frame"):
            decode(0, text_of(b"p", frame))
    else:
        assert decode(0, text_of(b"p", frame)).not_done == (0,)


def test_a_compression_bomb_costs_little():
    """4,096 characters that would grow to gigabytes are refused in bounded time and memory."""
    writer = zstandard.ZstdCompressor(level=19).compressobj()
    frame = b"".join(writer.compress(bytes(2**20)) for _ in range(64)) + writer.flush()
    text = text_of(b"p", frame)
    assert len(text) < limits.TEXT_CHARS_MAX
    tracemalloc.start()
    began = time.thread_time()
    with pytest.raises(UnreadableMap, match="decompressed"):
        decode(0, text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert time.thread_time() - began < 1.0


@pytest.mark.parametrize("runs", [(10**6, 1), (limits.NOT_DONE_MAX + 1, 1), (2**31 - 2, 1)])
def test_twelve_characters_cannot_name_millions(runs: tuple[int, int]):
    """What names more than a member would hold is refused before any of it is made.

    A million of them cost 97 MiB a partition, here and in what keeps them.
    """
    text = text_of(b"e", runs_body(*runs))
    assert len(text) == 12
    peak, found = peak_bytes(text)
    assert isinstance(found, UnreadableMap)
    assert peak < 64 * 2**10


@pytest.mark.parametrize("dense", [False, True])
def test_what_few_characters_may_cost(dense: bool):
    """The largest map that 12 characters name takes less than 5 MiB, 4,096 of them less than 7."""
    count = limits.NOT_DONE_MAX
    body = runs_body(1, 1) * count if dense else runs_body(count, 1)
    text = text_of(b"p", zstd.compress(body)) if dense else text_of(b"e", body)
    peak, found = peak_bytes(text)
    assert isinstance(found, OffsetMap)
    assert len(found.not_done) == count
    assert peak < (7 if dense else 5) * 2**20


def peak_bytes(text: str) -> tuple[int, OffsetMap | UnreadableMap]:
    """The most that was held while it was read, and what came of it; offsets of 41 bits."""
    tracemalloc.start()
    try:
        found: OffsetMap | UnreadableMap = decode(2**40, text)
    except UnreadableMap as error:
        found = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, found


def test_a_frame_within_a_frame_is_not_opened():
    """Only one layer is decompressed: an inner frame is no run lengths."""
    inner = zstd.compress(runs_body(1, 1))
    with pytest.raises(UnreadableMap, match=r"whole number|negative"):
        decode(0, text_of(b"p", zstd.compress(inner + b"\x00" * (3 - len(inner) % 4))))


def test_empty_runs_inside_are_taken_as_they_are():
    """Runs of nothing change nothing, however many there are."""
    assert decode(10, text_of(b"e", runs_body(1, 0, 1, 0, 0, 2))).not_done == (10, 11)


def test_4096_characters_are_read_quickly():
    """The densest maps that fit a commit read in a few milliseconds."""
    bits = text_of(b"l", (24_000).to_bytes(2, "big"), b"\x55" * 3000, b"\x00")
    runs = text_of(b"n", b"\x00\x01" * 1500)
    began = time.thread_time()
    for text in (bits, runs):
        assert decode(0, text).not_done
    assert time.thread_time() - began < 0.1
