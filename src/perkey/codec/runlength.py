"""The run-length body: big-endian run lengths, not done and done in turn, not done first.

There is no count and no header; the first run may be 0. Version 1 has 16-bit runs,
version 2 has 32-bit runs, both signed.
"""

import sys
from array import array
from collections.abc import Sequence
from itertools import compress, pairwise
from operator import sub

from perkey.codec.limits import NOT_DONE_MAX, RANGE_MAX, UnreadableMap

#: Longest run of version 1 (16 bits, signed).
V1_RUN_MAX = 2**15 - 1

_TYPECODES = {2: "h", 4: "i"}

#: For each byte of bits, in which a 1 is the end of a run: offsets up to the first end, from each
#: end to the next, and after the last.
_ENDS = [
    (ends[0] + 1, tuple(map(sub, ends[1:], ends)), 7 - ends[-1])
    for byte in range(256)
    for ends in [[bit for bit in range(8) if byte >> bit & 1] or [-1]]
]


def runs(frontier: int, length: int, not_done: Sequence[int]) -> list[int]:
    """The run lengths of a map, in O(number of not-done offsets)."""
    if not not_done:
        return [0, length] if length else [0]
    # Done runs; 0 between neighbours. After one, a run that is not done starts.
    done = [after - before - 1 for before, after in pairwise(not_done)]
    begins = list(compress(range(1, len(not_done)), done))
    lengths = [0] * (2 * len(begins) + 1)
    lengths[::2] = map(sub, [*begins, len(not_done)], [0, *begins])
    lengths[1::2] = filter(None, done)
    if behind := frontier + length - 1 - not_done[-1]:
        lengths.append(behind)
    if not_done[0] != frontier:
        lengths[:0] = [0, not_done[0] - frontier]
    return lengths


def runs_of(number: int, length: int) -> list[int]:
    """The run lengths from the bits of the map, for a map with many undone offsets.

    A run ends where a bit differs from the one below it, and at the end of the map.
    """
    ends = number ^ number << 1 | 1 << length
    lengths: list[int] = []
    begun = -1  # offsets of the run that the previous byte has started; no run ends below bit 0
    for byte in ends.to_bytes((length + 8) // 8, "little"):
        if byte:
            first, whole_runs, behind = _ENDS[byte]
            lengths.append(begun + first)
            lengths += whole_runs
            begun = behind
        else:
            begun += 8
    return lengths


def pack(lengths: Sequence[int], width: int) -> bytes:
    """The body of these runs with ``width`` bytes (2 or 4) each."""
    try:  # short runs, the usual case if there are many: the last byte of each, three times faster
        low = bytes(lengths)
    except ValueError:
        packed = array(_TYPECODES[width], lengths)
        if sys.byteorder == "little":
            packed.byteswap()
        return packed.tobytes()
    body = bytearray(len(low) * width)
    body[width - 1 :: width] = low
    return bytes(body)


def read(frontier: int, body: bytes, width: int) -> tuple[int, tuple[int, ...]]:
    """The (length, not-done offsets) of a run-length body; UnreadableMap if it is corrupt."""
    if not body or len(body) % width:
        raise UnreadableMap(f"{len(body)} bytes are not a whole number of {width}-byte runs")
    lengths = array(_TYPECODES[width], body)
    if sys.byteorder == "little":
        lengths.byteswap()
    if min(lengths) < 0:
        raise UnreadableMap(f"a run has a negative length ({min(lengths)})")
    length, count = sum(lengths), sum(lengths[::2])
    if length > RANGE_MAX:
        raise UnreadableMap(f"the runs span {length} offsets, over {RANGE_MAX}")
    if count > NOT_DONE_MAX:
        raise UnreadableMap(f"the runs name {count} offsets as not done, over {NOT_DONE_MAX}")
    begin, waiting = frontier, True
    not_done: list[int] = []
    for run in lengths:
        if waiting:
            not_done += range(begin, begin + run)
        begin += run
        waiting = not waiting
    return length, tuple(not_done)
