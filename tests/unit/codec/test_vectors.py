"""What the Java library's codec wrote, read and written again byte for byte."""

import json
from pathlib import Path
from typing import Any

import pytest

from perkey import codec
from perkey.codec import maps, wire, zstd
from perkey.codec.limits import OFFSET_MAX
from perkey.codec.runlength import runs

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "offset-map-vectors.json").read_text()
)["vectors"]
EACH_ENCODING = [
    pytest.param(vector, name, id=f"{vector['name']}-{name}")
    for vector in VECTORS
    for name in vector["encodings"]
]
PLAIN = {encoding.name: encoding for encoding in wire.PLAIN}


def write_as(name: str, vector: dict[str, Any]) -> str:
    """The vector's map in the named encoding, whichever encoding would be chosen."""
    frontier, top = vector["committed_offset"], vector["highest_succeeded"]
    not_done, length = maps._clip(frontier, top, vector["incompletes"])
    plain = PLAIN[name.removesuffix("Compressed")]
    body = maps._body(plain, frontier, length, not_done, runs(frontier, length, not_done))
    if name in PLAIN:
        return wire.to_text(plain, body)
    return wire.to_text(wire.COMPRESSED[plain.name], zstd.compress(body))


def test_all_eight_encodings_are_in_the_vectors():
    """The vectors visit every encoding, so the tests below do."""
    names = {name for vector in VECTORS for name in vector["encodings"]}
    assert names == {encoding.name for encoding in wire.BY_MAGIC.values()}
    assert len(names) == 8


@pytest.mark.parametrize(("vector", "name"), EACH_ENCODING)
def test_what_java_wrote_is_read(vector: dict[str, Any], name: str):
    """Each vector restores to the offsets that Java restores from it."""
    found = codec.decode(vector["committed_offset"], vector["encodings"][name])
    assert found == codec.OffsetMap(
        encoding=name,
        frontier=vector["committed_offset"],
        highest_seen=vector["restored_highest_seen"],
        not_done=tuple(vector["restored_incompletes"]),
    )


@pytest.mark.parametrize(("vector", "name"), EACH_ENCODING)
def test_what_java_wrote_is_written(vector: dict[str, Any], name: str):
    """Each encoding of each vector is written byte for byte as Java does, compressed or not."""
    assert write_as(name, vector) == vector["encodings"][name]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_smallest_encoding_is_chosen(vector: dict[str, Any]):
    """The text written is the one of Java's smallest candidates that comes first in wire.PLAIN."""
    text = codec.encode(
        vector["committed_offset"], vector["highest_succeeded"], vector["incompletes"]
    )
    chosen = min(vector["smallest_candidates"], key=list(PLAIN).index)
    assert text == vector["encodings"][chosen]


@pytest.mark.parametrize("text", ["", None, "\x00"])
def test_no_metadata_is_an_empty_map(text: str | None):
    """An empty, absent or NUL-only text says that nothing beyond the frontier is done."""
    assert codec.decode(7, text) == codec.OffsetMap("none", 7, 6, ())


def test_missing_padding_is_accepted_as_java_does():
    """Base64 without its padding reads the same."""
    assert codec.decode(100, "bwAAAArcAwA") == codec.decode(100, "bwAAAArcAwA=")


def test_a_nul_behind_the_text_is_ignored():
    """A Perkey without direct access to librdkafka leaves a NUL; its maps stay readable."""
    assert codec.decode(100, "bAAK3AMA\x00") == codec.decode(100, "bAAK3AMA")


def test_the_largest_offset_there_can_be():
    """A map may end at the largest offset of Kafka, and not one later."""
    assert codec.decode(OFFSET_MAX - 9, "bAAK3AMA").highest_seen == OFFSET_MAX
    with pytest.raises(codec.UnreadableMap, match="largest offset"):
        codec.decode(OFFSET_MAX - 8, "bAAK3AMA")


def test_what_java_0_5_3_3_committed_on_a_real_broker():
    """A Java program that failed offsets 3, 23, 43 ... of 200 left this commit."""
    found = codec.decode(3, "bADF/v/v///+/+////7/7////v/v///+/+//HwA=")
    assert found.not_done == tuple(range(3, 200, 20))
    assert found.highest_seen == 199
