"""The bitset body: a length, one bit per offset (1 = done), and one closing zero byte.

Bit k belongs to offset ``frontier + k`` and lives in byte k >> 3 at position k & 7, which is
the little-endian number Java's ``BitSet`` writes. The length in front is big-endian.
"""

from collections.abc import Iterator, Sequence
from itertools import compress

from perkey.codec.limits import NOT_DONE_MAX, UnreadableMap

#: Longest map whose length fits the signed 16 bits of version 1.
V1_RANGE_MAX = 2**15 - 1

#: bits processed together
_PIECE_BITS = 2**15

_FLIP = bytes.maketrans(b"01", b"\x01\x00")


def size_bytes(length: int, width: int) -> int:
    """Size of the body of a bitset over ``length`` offsets with a ``width``-byte length."""
    return width + (length + 7) // 8 + 1


def number_of(frontier: int, length: int, not_done: Sequence[int]) -> int:
    """The bits of a map as one number: bit k is 1 where offset ``frontier + k`` is done."""
    marks = bytearray(b"1") * length
    zero = ord("0")
    last = frontier + length - 1
    for offset in not_done:
        marks[last - offset] = zero
    return int(marks, 2) if length else 0


def bits(number: int, length: int) -> bytes:
    """The bits of a map and the closing zero, without the length in front."""
    return number.to_bytes((length + 7) // 8 + 1, "little")


def read(frontier: int, body: bytes, width: int) -> tuple[int, tuple[int, ...]]:
    """The (length, not-done offsets) of a bitset body; UnreadableMap if Java did not write it."""
    if len(body) < width:
        raise UnreadableMap("the bitset ends within its length")
    length = int.from_bytes(body[:width], "big", signed=True)
    if length < 0:
        raise UnreadableMap(f"the bitset has a negative length ({length})")
    if len(body) != size_bytes(length, width):
        raise UnreadableMap(
            f"the bitset claims {length} offsets but has {len(body) - width} bytes for them"
        )
    end = width + (length >> 3)
    if int.from_bytes(body[end:], "little") >> (length & 7):
        raise UnreadableMap("the bitset has bits set past its own end")
    number = int.from_bytes(memoryview(body)[width:], "little")
    count = length - number.bit_count()
    if count > NOT_DONE_MAX:
        raise UnreadableMap(f"the bitset names {count} offsets as not done, over {NOT_DONE_MAX}")
    return length, tuple(_zeros(frontier, length, memoryview(body)[width:])) if count else ()


def _zeros(frontier: int, length: int, flags: memoryview) -> Iterator[int]:
    """The offsets whose bit is 0; in pieces, as a text of bits is eight times as long."""
    for begin in range(0, length, _PIECE_BITS):
        bits = min(_PIECE_BITS, length - begin)
        number = int.from_bytes(flags[begin >> 3 : (begin + bits + 7) >> 3], "little")
        if number.bit_count() < bits:
            # A leading one keeps the zeros in front; the text is reversed so that bit 0 comes
            # first.
            text = bin(number | 1 << bits)[:2:-1].encode().translate(_FLIP)
            yield from compress(range(frontier + begin, frontier + begin + bits), text)
