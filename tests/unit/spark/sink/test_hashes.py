"""The sums by which a repeated task is recognised: of the rows, in any order."""

from __future__ import annotations

import random
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest

from perkey.spark.sink.columns import LONG_BYTES, hashes_of
from perkey.spark.sink.options import SinkOptions
from perkey.spark.sink.transactions import Chunk

SEED = 20261123
ALL = 2**64 - 1
SIZES = [0, 1, 3, 4, 5, 7, 8, 9, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 5000]


def mixed(number: int) -> int:
    """Murmur3's finalizer."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor & ALL
    return number ^ number >> 33


def one_by_one(value: bytes, seed: int) -> int:
    """The same hash without arrays."""
    found = seed + len(value) * 0x9E3779B97F4A7C15
    if len(value) > LONG_BYTES:
        found += crc32(value)
    else:
        for number, at in enumerate(range(0, len(value), 4), 1):
            word = int.from_bytes(value[at : at + 4], "little")
            found += word * mixed(number * 0x9E3779B97F4A7C15 & ALL)
    return mixed(found & ALL)


def values(count: int) -> list[bytes]:
    """Of all sizes, in any order."""
    chance = random.Random(SEED)
    return [chance.randbytes(chance.choice([*SIZES, 100])) for _ in range(count)]


def hashes(column: pa.Array, first: int = 0) -> list[int]:
    """With the row's number as its seed."""
    return list(map(int, hashes_of(column, np.arange(first, first + len(column), dtype=np.uint64))))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_each_value_has_the_hash_of_its_bytes(kind: pa.DataType, count: int) -> None:
    """Whatever stands beside it; also in a part of a longer column."""
    given = values(count)
    expected = [one_by_one(value, seed) for seed, value in enumerate(given)]
    column = pa.array(given, kind)
    assert hashes(column) == expected, f"seed {SEED}"
    assert hashes(column.slice(count // 2), count // 2) == expected[count // 2 :], f"seed {SEED}"


@pytest.mark.parametrize("size", SIZES)
def test_a_size_alone(size: int) -> None:
    """At the limits of a word, and of what is hashed in words."""
    assert hashes(pa.array([b"x" * size], pa.binary())) == [one_by_one(b"x" * size, 0)]


def test_text_is_hashed_as_its_bytes_and_a_null_is_not_empty() -> None:
    """A null value deletes its key, an empty one does not: they are different rows."""
    given = ["a", None, "", "x" * LONG_BYTES]
    column = pa.array([None if text is None else text.encode() for text in given], pa.binary())
    assert hashes(pa.array(given)) == hashes(column)
    assert hashes(column)[:1] + hashes(column)[2:] == [
        one_by_one(text.encode(), seed) for seed, text in enumerate(given) if text is not None
    ]
    assert hashes(pa.array([None], pa.binary())) != hashes(pa.array([b""], pa.binary()))


def test_more_rows_than_are_hashed_at_a_time() -> None:
    """Each has its own seed."""
    given = values(17_000)
    expected = [one_by_one(value, seed) for seed, value in enumerate(given)]
    assert hashes(pa.array(given, pa.binary())) == expected, f"seed {SEED}"


def chunk(rows: list[tuple[bytes, bytes]]) -> Chunk:
    """The rows of a batch."""
    keys, values = zip(*rows, strict=True)
    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
    return Chunk(pa.RecordBatch.from_pydict(columns), SinkOptions({}, "t"))


def test_sums_do_not_depend_on_the_order() -> None:
    """Spark may bring the rows of a task in another one when it repeats it."""
    rows = [(b"k%d" % (number % 7), value) for number, value in enumerate(values(300))]
    other = random.Random(SEED).sample(rows, len(rows))
    assert chunk(rows).sums == chunk(other).sums


def test_values_that_changed_places_are_other_rows() -> None:
    """The keys are the same, and so are the values; not which belongs to which."""
    one, other = chunk([(b"a", b"1"), (b"b", b"2")]).sums, chunk([(b"a", b"2"), (b"b", b"1")]).sums
    assert (one.rows, one.keys) == (other.rows, other.keys)
    assert one.whole != other.whole


def test_no_rows_have_no_sums() -> None:
    """What is left of a batch whose rows are all known."""
    left = chunk([(b"a", b"1")]).without([True])
    assert tuple(left.sums) == (0, 0, 0)
