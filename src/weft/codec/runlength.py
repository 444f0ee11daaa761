"""The run-length body: big-endian run lengths, not done and done in turn, not done first.

There is no count and no header; the first run may be 0. Version 1 has 16-bit runs,
version 2 has 32-bit runs, both signed.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from operator import sub

from weft.codec.limits import NOT_DONE_MAX, RANGE_MAX, UnreadableMap

#: Longest run of version 1 (16 bits, signed).
V1_RUN_MAX = 2**15 - 1

_TYPECODES = {2: "h", 4: "i"}


def runs(frontier: int, length: int, not_done: Sequence[int]) -> list[int]:
    """The run lengths of a map, in O(number of not-done offsets)."""
    if not not_done:
        return [0, length] if length else [0]
    gaps = map(sub, not_done[1:], not_done)
    breaks = [place for place, gap in enumerate(gaps, 1) if gap != 1]
    # edges: where a not-done run begins, where the done run after it begins, and so on.
    edges = [not_done[0]] * (2 * len(breaks) + 3)
    edges[2:-1:2] = [not_done[place] for place in breaks]
    edges[1:-2:2] = [not_done[place - 1] + 1 for place in breaks]
    edges[-2] = not_done[-1] + 1
    edges[-1] = frontier + length
    lengths = list(map(sub, edges[1:], edges))
    if lengths[-1] == 0:  # The last offset is not done: no done run follows.
        lengths.pop()
    if not_done[0] != frontier:
        lengths[:0] = [0, not_done[0] - frontier]
    return lengths


def pack(lengths: Sequence[int], width: int) -> bytes:
    """The body of these runs with ``width`` bytes (2 or 4) each."""
    packed = array(_TYPECODES[width], lengths)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


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
    return length, tuple(_not_done(frontier, lengths))


def _not_done(frontier: int, lengths: Sequence[int]) -> Iterator[int]:
    """The offsets in the not-done runs."""
    begin, waiting = frontier, True
    for run in lengths:
        if waiting and run:
            yield from range(begin, begin + run)
        begin += run
        waiting = not waiting
