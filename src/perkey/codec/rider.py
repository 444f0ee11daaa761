"""The rider: what a commit remembers of single records, behind the offset map in the same text.

The map contains which offsets are done. The rider contains, for the first others, what would
otherwise be lost at a restart: how often each was tried, whether it is parked or held, and until
when. It is a zstd *skippable frame* behind the compressed map, which every zstd reader skips (RFC
8878, section 3.1.2), also the Java Parallel Consumer's, so both are stored in one write.

    frame    0x184D2A57 (little-endian), size (4 bytes, little-endian), content
    content  version (1 byte, 1), base (varint, UNIX seconds), entries, ascending by offset
    entry    offset (varint: distance from the end of the one before, the first from the frontier)
             flags (1 byte): 1 parked, 2 held, 4 has `until`, 8 has `error`, 16 to 64 exhausted by
             attempts (varint)
             until (varint, seconds after base), where flagged
             error (4 bytes, little-endian), where flagged

An entry takes 3 bytes and, where flagged, 4 for the error and 1 to 3 for the time (2 from 128 s
after base, 3 from 16,384 s, 4.5 h): 10 with all. A distance or number of attempts from 128 on takes
one more. A varint has seven bits per byte, the lowest first (LEB128). Readers skip frames with
other magic numbers and contents of another version.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perkey.codec.limits import NOT_DONE_MAX, OFFSET_MAX

#: One of the sixteen magic numbers that zstd reserves: the last digit pair is a `W`.
MAGIC = 0x184D2A57
_MAGIC = MAGIC.to_bytes(4, "little")
_SKIPPABLE = 0x184D2A50
_HEAD_BYTES = 8
VERSION = 1

#: How a record's attempts were used up; the index in this tuple is the number in the flags.
EXHAUSTED_BY = ("", "attempts", "rejected", "undecodable", "command", "hold", "policy", "other")

_PARKED, _HELD, _UNTIL, _ERROR, _UNKNOWN = 1, 2, 4, 8, 128
_VARINT_BYTES_MAX = 9
_ATTEMPTS_MAX = 2**31 - 1


class Remembered(NamedTuple):
    """What is remembered of one record that is not done."""

    offset: int
    #: attempts that have ended in a failure
    attempts: int
    parked: bool = False
    held: bool = False
    #: one of EXHAUSTED_BY
    exhausted_by: str = ""
    #: held, or not tried again, until this time: UNIX seconds; None: no time is set
    until_s: int | None = None
    #: `error_hash` of its last failure; None: not known
    error: int | None = None

    def without_wait(self) -> Remembered:
        """The same, without a hold or a delay."""
        return self._replace(held=False, until_s=None)


class Rider(NamedTuple):
    """The content of a commit's rider; without entries and with a `problem` if unreadable."""

    entries: tuple[Remembered, ...] = ()
    problem: str = ""


NONE = Rider()


def least_bytes(entry: Remembered) -> int:
    """The least size of an entry."""
    return 3 + (entry[5] is not None) + (0 if entry[6] is None else 4)


def error_hash(kind: str, place: str) -> int:
    """Four bytes that distinguish kinds of failures: the error's type and where it was raised."""
    return binascii.crc32(f"{kind}@{place}".encode())


def encode(frontier: int, entries: Sequence[Remembered], bytes_max: int) -> tuple[bytes, int]:
    """The frame with as many of the entries (ascending) as fit, the lowest offsets first.

    Returns it and the number of entries; `(b"", 0)` if not one fits.
    """
    base_s = min((entry.until_s for entry in entries if entry.until_s is not None), default=0)
    content = bytearray((VERSION,))
    _put(content, max(0, base_s))
    count, end, begin = 0, frontier, len(content)
    for entry in entries:
        _put_entry(content, entry, end, max(0, base_s))
        if _HEAD_BYTES + len(content) > bytes_max:
            del content[begin:]
            break
        count, end, begin = count + 1, entry[0] + 1, len(content)
    if not count:
        return b"", 0
    head = _MAGIC + len(content).to_bytes(4, "little")
    return head + bytes(content), count


def _put_entry(content: bytearray, entry: Remembered, end: int, base_s: int) -> None:
    # Called for each entry of each commit: no function call for values of one byte.
    offset, attempts, parked, held, by, until_s, error = entry
    assert offset >= end, "entries are ascending, from the frontier on"
    flags = (_PARKED if parked else 0) | (_HELD if held else 0)
    if by:
        flags |= EXHAUSTED_BY.index(by) << 4
    if until_s is not None:
        flags |= _UNTIL
    if error is not None:
        flags |= _ERROR
    if offset - end < 0x80 and attempts < 0x80:
        content += bytes((offset - end, flags, attempts))
    else:
        _put(content, offset - end)
        content.append(flags)
        _put(content, min(attempts, _ATTEMPTS_MAX))
    if until_s is not None:
        _put(content, max(0, until_s - base_s))
    if error is not None:
        content += error.to_bytes(4, "little")


def _put(content: bytearray, number: int) -> None:
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)


def frames_end(data: bytes, begin: int = 0) -> int:
    """The end of the skippable frames from `begin` on; ValueError if the last is cut off."""
    while (end := _frame_end(data, begin)) > begin:
        begin = end
    return begin


def _frame_end(data: bytes, begin: int) -> int:
    magic = data[begin : begin + 4]
    if magic and len(magic) < 4 and _MAGIC.startswith(magic):
        raise ValueError("a skippable frame is cut off")
    if len(magic) < 4 or int.from_bytes(magic, "little") & ~0xF != _SKIPPABLE:
        return begin
    content = begin + _HEAD_BYTES
    end = content + int.from_bytes(data[begin + 4 : content], "little")
    if len(data) < max(content, end):
        raise ValueError("a skippable frame is cut off")
    return end


def decode(
    frontier: int,
    frames: bytes,
    not_done: Iterable[int],
    highest_seen: int,
    log_end: int | None = None,
) -> Rider:
    """The rider in these skippable frames, limited to offsets that are not done.

    Offsets past the map (`highest_seen`) are not done either; entries from `log_end` on belong to
    another log. Its input is untrusted: an invalid rider is ignored, and `problem` has the reason.
    The map in front of it is still valid.
    """
    begin = 0
    try:
        while not frames.startswith(_MAGIC, begin):
            if (end := _frame_end(frames, begin)) == begin:
                return NONE
            begin = end
        content = frames[begin + _HEAD_BYTES : _frame_end(frames, begin)]
    except ValueError as error:
        return Rider((), f"rider ignored: {error}")
    if not content or content[0] != VERSION:
        return Rider((), f"rider version {content[0] if content else 'missing'} is not known")
    try:
        entries = _entries(frontier, content)
    except (IndexError, ValueError) as error:
        return Rider((), f"rider ignored: {error if isinstance(error, ValueError) else 'cut off'}")
    open_offsets = frozenset(not_done)
    return Rider(
        tuple(
            entry
            for entry in entries
            if (entry.offset in open_offsets or entry.offset > highest_seen)
            and (log_end is None or entry.offset < log_end)
        )
    )


def _entries(frontier: int, content: bytes) -> list[Remembered]:
    base_s, at = _take(content, 1)
    entries: list[Remembered] = []
    end = frontier
    while at < len(content):
        if len(entries) == NOT_DONE_MAX:
            raise ValueError(f"more than {NOT_DONE_MAX} entries")
        distance, at = _take(content, at)
        flags = content[at]
        attempts, at = _take(content, at + 1)
        until_s = error = None
        if flags & _UNTIL:
            after_s, at = _take(content, at)
            until_s = base_s + after_s
        if flags & _ERROR:
            error, at = int.from_bytes(content[at : at + 4], "little"), at + 4
        offset = end + distance
        if flags & _UNKNOWN or at > len(content) or offset > OFFSET_MAX:
            raise ValueError(f"entry {len(entries) + 1} makes no sense")
        by = EXHAUSTED_BY[flags >> 4 & 7]
        entries.append(
            Remembered(
                offset, min(attempts, _ATTEMPTS_MAX), bool(flags & _PARKED), bool(flags & _HELD),
                by, until_s, error,
            )
        )  # fmt: skip
        end = offset + 1
    return entries


def _take(content: bytes, at: int) -> tuple[int, int]:
    """The varint at this position, and the position after it."""
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number is too long")
