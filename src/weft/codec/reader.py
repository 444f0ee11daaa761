"""Read an offset map. Its input is untrusted: any client that may commit can have written it."""

from dataclasses import dataclass

from weft.codec import bitset, runlength, wire
from weft.codec import rider as riders
from weft.codec.limits import OFFSET_MAX, UnreadableMap


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
