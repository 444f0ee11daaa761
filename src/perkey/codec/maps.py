"""Read and write an offset map; written as the smallest of the eight encodings, as Java does.

A map that is read is untrusted: any client that may commit can have written it. All functions that
write take one snapshot: the committed offset (``frontier``), the highest done offset
(``top``; below frontier when nothing beyond it is done) and the ascending offsets between
them that are not done. Offsets that do not exist count as done.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perkey.codec import bitset, runlength, wire, zstd
from perkey.codec import rider as riders
from perkey.codec.limits import (
    BROKER_CHARS_MAX,
    NOT_DONE_MAX,
    OFFSET_MAX,
    RANGE_MAX,
    TEXT_CHARS_MAX,
    WRITTEN_BODY_BYTES_MAX,
    MapTooLarge,
    UnreadableMap,
)
from perkey.codec.wire import Encoding

#: from this share of undone offsets on, runs are counted from the bits of the map
_DENSE_FROM = 4

#: Java tries compression only where every plain body has at least this many bytes.
_COMPRESS_FROM_BYTES = 200


def encode(frontier: int, top: int, not_done: Sequence[int]) -> str:
    """The smallest text for this map; ties go to the first of wire.PLAIN, plain first.

    O(len(not_done)) except for bodies that could fit. decode reads every result; if nothing within
    the limits of limits.py can hold the map it raises MapTooLarge.
    """
    not_done, length = _clip(frontier, top, not_done)
    if length > RANGE_MAX or len(not_done) > NOT_DONE_MAX:
        raise MapTooLarge(f"{length} offsets with {len(not_done)} not done are too many for a map")
    number, runs = _shape(frontier, length, not_done)
    run_max = length if length <= runlength.V1_RUN_MAX else max(runs)
    sizes = _plain_sizes(length, len(runs), run_max)
    smallest = min(sizes, key=lambda encoding: sizes[encoding])
    if sizes[smallest] < _COMPRESS_FROM_BYTES:
        return wire.to_text(smallest, _body(smallest, frontier, length, not_done, runs, number))
    candidates = _bodies(sizes, frontier, length, not_done, runs, number)
    encoding, body = min(candidates, key=lambda pair: len(pair[1]), default=(smallest, None))
    if body is None or wire.text_chars(len(body)) > TEXT_CHARS_MAX:
        raise MapTooLarge(f"{length} offsets with {len(not_done)} not done need too long a text")
    return wire.to_text(encoding, body)


def encode_fitting(
    frontier: int, top: int, not_done: Sequence[int], limit_chars: int = BROKER_CHARS_MAX
) -> tuple[str, int]:
    """The map that fits ``limit_chars``, and the last offset it covers.

    If the whole map is too long the text covers a prefix, found by a binary search over offsets (at
    most 31 encodings): the covered offset is done, and what is done beyond it is repeated after a
    restart. If nothing fits: ``("", frontier - 1)``.
    """
    not_done, _ = _clip(frontier, top, not_done)
    top = min(top, frontier + RANGE_MAX - 1)
    if len(not_done) > NOT_DONE_MAX:
        top = min(top, not_done[NOT_DONE_MAX] - 1)
    top = _last_done(frontier, top, not_done)
    text = _encode_within(frontier, top, not_done, limit_chars)
    if text is not None:
        return text, top
    best, best_top = "", frontier - 1
    low, high = frontier - 1, top - 1
    while low <= high:
        middle = _last_done(frontier, (low + high + 1) // 2, not_done)
        if middle < low:  # Only undone offsets between: nothing to gain below.
            low = (low + high + 1) // 2 + 1
            continue
        text = _encode_within(frontier, middle, not_done, limit_chars)
        if text is None:
            high = middle - 1
        else:
            best, best_top = text, middle
            low = max(middle, (low + high + 1) // 2) + 1
    return best, best_top


def with_rider(
    frontier: int,
    text: str,
    entries: Sequence[riders.Remembered],
    limit_chars: int = BROKER_CHARS_MAX,
) -> tuple[str, int]:
    """The text of a map (`encode_fitting`'s) with a rider after it, and the rider's entry count.

    The entries are ascending, of offsets that are not done in the map, or of the frontier. If both
    do not fit ``limit_chars`` the rider loses its highest offsets, never the map.
    """
    if not entries:
        return text, 0
    return Carrier(frontier, text, limit_chars).carry(entries)


class Carrier:
    """The text of a map that gets a rider, and the room for it."""

    __slots__ = ("_encoding", "_frame", "_frontier", "_text", "room_bytes")

    def __init__(self, frontier: int, text: str, limit_chars: int) -> None:
        self._frontier, self._text = frontier, text
        # An empty map has no frame to follow: use one of the frontier alone.
        encoding, body, _ = wire.from_text(text or encode(frontier, frontier, (frontier,)))
        self._encoding = wire.COMPRESSED.get(encoding.name, encoding)
        self._frame = zstd.compress(body)
        #: bytes for the rider
        self.room_bytes = limit_chars // 4 * 3 - 1 - len(self._frame)

    def carry(self, entries: Sequence[riders.Remembered]) -> tuple[str, int]:
        """The text with as many of the entries as fit, and their number."""
        ridden, count = riders.encode(self._frontier, entries, self.room_bytes)
        if not count:
            return self._text, 0
        return wire.to_text(self._encoding, self._frame + ridden), count


def measure(frontier: int, top: int, not_done: Sequence[int]) -> int:
    """An upper bound of the length of ``encode``'s text, without encoding.

    It is exact unless compression shortens the text. O(len(not_done)).
    """
    not_done, length = _clip(frontier, top, not_done)
    runs = runlength.runs(frontier, length, not_done)
    return wire.text_chars(min(_plain_sizes(length, len(runs), max(runs)).values()))


def _clip(frontier: int, top: int, not_done: Sequence[int]) -> tuple[Sequence[int], int]:
    """The not-done offsets up to top, and the number of offsets the map covers."""
    assert not not_done or not_done[0] >= frontier, "a not-done offset lies below the frontier"
    if top < frontier:
        return (), 0
    if not_done and not_done[-1] > top:
        not_done = not_done[: bisect_right(not_done, top)]
    return not_done, top - frontier + 1


def _plain_sizes(length: int, runs_count: int, run_max: int) -> dict[Encoding, int]:
    """Body sizes of the uncompressed encodings that can hold this map, best tie first."""
    sizes: dict[Encoding, int] = {}
    short = run_max <= runlength.V1_RUN_MAX
    for encoding in wire.PLAIN:
        is_v1 = encoding.width == 2
        if encoding.is_bitset:
            if not is_v1 or length <= bitset.V1_RANGE_MAX:
                sizes[encoding] = bitset.size_bytes(length, encoding.width)
        elif is_v1 == short:  # version 2 is version 1 with zeros between: never shorter
            sizes[encoding] = runs_count * encoding.width
    return sizes


def _body(
    encoding: Encoding,
    frontier: int,
    length: int,
    not_done: Sequence[int],
    runs: Sequence[int],
    number: int | None = None,
) -> bytes:
    """The plain body of this map in this encoding."""
    if not encoding.is_bitset:
        return runlength.pack(runs, encoding.width)
    return length.to_bytes(encoding.width, "big") + _bits(frontier, length, not_done, number)


def _bits(frontier: int, length: int, not_done: Sequence[int], number: int | None) -> bytes:
    """The bits of a bitset, from `_shape`'s number if that was computed."""
    if number is None:
        number = bitset.number_of(frontier, length, not_done)
    return bitset.bits(number, length)


def _shape(frontier: int, length: int, not_done: Sequence[int]) -> tuple[int | None, list[int]]:
    """The runs of the map, and its bits if these were needed for them."""
    if len(not_done) * _DENSE_FROM < length:
        return None, runlength.runs(frontier, length, not_done)
    number = bitset.number_of(frontier, length, not_done)
    return number, runlength.runs_of(number, length)


def _bodies(
    sizes: dict[Encoding, int],
    frontier: int,
    length: int,
    not_done: Sequence[int],
    runs: Sequence[int],
    number: int | None,
) -> Iterator[tuple[Encoding, bytes]]:
    """Every body worth comparing, plain and compressed; the huge ones are never built."""
    plain: list[tuple[Encoding, bytes]] = []
    bits = b""  # the same after either length: built once
    for encoding, size in sizes.items():
        if size > WRITTEN_BODY_BYTES_MAX:
            continue
        if encoding.is_bitset:
            bits = bits or _bits(frontier, length, not_done, number)
            plain.append((encoding, length.to_bytes(encoding.width, "big") + bits))
        else:
            plain.append((encoding, runlength.pack(runs, encoding.width)))
    yield from plain
    for encoding, body in plain:
        yield wire.COMPRESSED[encoding.name], zstd.compress(body)


def _last_done(frontier: int, top: int, not_done: Sequence[int]) -> int:
    """The highest offset up to top that is not among not_done; frontier - 1 if there is none."""
    last = bisect_right(not_done, top) - 1
    if last >= 0 and not_done[last] == top:
        # Offset minus index is constant in a run without holes, and smaller before it.
        places = range(last + 1)
        first = bisect_left(places, top - last, key=lambda place: not_done[place] - place)
        top = not_done[first] - 1
    return max(top, frontier - 1)


def _encode_within(
    frontier: int, top: int, not_done: Sequence[int], limit_chars: int
) -> str | None:
    """The text of the map up to top, or None if it is longer than the limit."""
    try:
        text = encode(frontier, top, not_done)
    except MapTooLarge:
        return None
    return text if len(text) <= limit_chars else None


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """The content of a commit: everything from frontier to highest_seen is done but not_done."""

    #: Name of the encoding as in the vectors file; "none" for empty metadata.
    encoding: str
    #: The committed offset.
    frontier: int
    #: Last offset in the map; frontier - 1 if it has none.
    highest_seen: int
    #: Ascending offsets between frontier and highest_seen that are not done.
    not_done: tuple[int, ...]
    #: What is remembered of some of these, and of some offsets past highest_seen.
    rider: riders.Rider = riders.NONE


def decode(frontier: int, text: str | None, *, log_end: int | None = None) -> OffsetMap:
    """The map that was committed with offset ``frontier`` as metadata ``text``.

    ``log_end`` is the offset of the partition's next record: a map that contains it or later ones
    would skip records that do not exist yet, and is refused.
    Linear in time, bounded in memory (limits.py). Raises only UnreadableMap.
    """
    if not 0 <= frontier <= OFFSET_MAX:
        raise UnreadableMap(f"the committed offset {frontier} is not an offset")
    # A writer that uses confluent-kafka's public calls leaves a NUL after its text.
    text = (text or "").removesuffix("\x00")
    if not text:
        return OffsetMap("none", frontier, frontier - 1, ())
    encoding, body, frames = wire.from_text(text)
    family = bitset if encoding.is_bitset else runlength
    length, not_done = family.read(frontier, body, encoding.width)
    highest_seen = frontier + length - 1
    if highest_seen > OFFSET_MAX:
        raise UnreadableMap("the map reaches past the largest offset there can be")
    if length and log_end is not None and highest_seen >= log_end:
        raise UnreadableMap(f"the map reaches offset {highest_seen}, the log ends at {log_end}")
    remembered = riders.decode(frontier, frames, not_done, highest_seen, log_end)
    return OffsetMap(encoding.name, frontier, highest_seen, not_done, remembered)
