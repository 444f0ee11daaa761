"""The eight encodings of the Java Parallel Consumer: names, magic bytes, zstd, Base64.

The text is Base64 of one magic byte and a body; a compressed body is one zstd frame around the
plain body, and may have skippable frames before and after it (rider.py). Source: Java Parallel
Consumer 0.5.3, package ``offsets``.
"""

import binascii
from dataclasses import dataclass

from perkey.codec import rider, zstd
from perkey.codec.limits import BODY_BYTES_MAX, TEXT_CHARS_MAX, UnreadableMap


@dataclass(frozen=True, slots=True)
class Encoding:
    """One of the eight encodings of a map: its body's family, number width, compression."""

    name: str
    magic: int
    is_bitset: bool
    width: int
    is_compressed: bool


PLAIN = (
    Encoding("BitSet", 0x6C, True, 2, False),
    Encoding("RunLength", 0x6E, False, 2, False),
    Encoding("BitSetV2", 0x6F, True, 4, False),
    Encoding("RunLengthV2", 0x65, False, 4, False),
)
COMPRESSED = {
    "BitSet": Encoding("BitSetCompressed", 0x61, True, 2, True),
    "RunLength": Encoding("RunLengthCompressed", 0x4A, False, 2, True),
    "BitSetV2": Encoding("BitSetV2Compressed", 0x73, True, 4, True),
    "RunLengthV2": Encoding("RunLengthV2Compressed", 0x70, False, 4, True),
}
BY_MAGIC = {encoding.magic: encoding for encoding in (*PLAIN, *COMPRESSED.values())}

#: Magic bytes of other formats: named in the error, so that the warning helps.
FOREIGN = {
    0x01: "Kafka Streams' own metadata (version 1)",
    0x02: "Kafka Streams' own metadata (version 2)",
    0x4C: "a ByteArray map, which no reader supports",
    0xEE: "a compressed ByteArray map, which no reader supports",
}


def text_chars(body_bytes: int) -> int:
    """Length of the text for a body of this size."""
    return (body_bytes + 1 + 2) // 3 * 4


def to_text(encoding: Encoding, body: bytes) -> str:
    """The commit metadata that carries this body."""
    packed = bytes((encoding.magic,)) + body
    return binascii.b2a_base64(packed, newline=False).decode("ascii")


def from_text(text: str) -> tuple[Encoding, bytes, bytes]:
    """Encoding, plain body and skippable frames of (not empty) commit metadata.

    UnreadableMap if it is not a map.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise UnreadableMap(f"{len(text)} characters are more than {TEXT_CHARS_MAX}")
    try:
        packed = binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:  # binascii.Error, or a character outside ASCII
        raise UnreadableMap("not Base64 text") from None
    encoding = BY_MAGIC.get(packed[0])
    if encoding is None:
        origin = FOREIGN.get(packed[0], "not an offset map")
        raise UnreadableMap(f"magic byte 0x{packed[0]:02x}: {origin}")
    body = packed[1:]
    return (encoding, *decompress(body)) if encoding.is_compressed else (encoding, body, b"")


def decompress(frames: bytes) -> tuple[bytes, bytes]:
    """The content of exactly one zstd frame, and the skippable ones around it.

    The last one behind it may be cut off: that costs what it has (`rider.decode`), not the map.
    """
    try:
        begin = rider.frames_end(frames)
        body, behind = zstd.decompress(frames[begin:], BODY_BYTES_MAX)
    except ValueError as error:
        raise UnreadableMap(str(error)) from None
    try:
        whole = rider.frames_end(behind) == len(behind)
    except ValueError:
        whole = True  # the map is
    if not whole:
        raise UnreadableMap("data after the zstd frame")
    return body, frames[:begin] + behind
