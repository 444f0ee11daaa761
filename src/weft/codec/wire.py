"""The eight encodings of the Java Parallel Consumer: names, magic bytes, zstd, Base64.

The text is Base64 of one magic byte and a body; a compressed body is one zstd frame around
the plain body. Source: Java Parallel Consumer 0.5.3, package ``offsets``.
"""

import binascii
from dataclasses import dataclass

import zstandard

from weft.codec.errors import UnreadableMap
from weft.codec.limits import BODY_BYTES_MAX, TEXT_CHARS_MAX, WINDOW_BYTES_MAX

#: Level of Java's writer. Only the streaming compressor writes the same bytes as Java does.
_ZSTD_LEVEL = 3

#: Input handed to the decompressor at once. A four-byte block can grow to 128 KiB, so this
#: bounds what is held beyond BODY_BYTES_MAX to 1 MiB.
_ZSTD_STEP_BYTES = 32


@dataclass(frozen=True, slots=True)
class Encoding:
    """One of the eight ways to write a map: its body's family, number width, compression."""

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

#: Magic bytes that belong to somebody else: refused by name, so that the warning helps.
FOREIGN = {
    0x01: "Kafka Streams' own metadata (version 1)",
    0x02: "Kafka Streams' own metadata (version 2)",
    0x4C: "a ByteArray map, which nothing reads",
    0xEE: "a compressed ByteArray map, which nothing reads",
}


def text_chars(body_bytes: int) -> int:
    """Length of the text that carries a body of this size."""
    return (body_bytes + 1 + 2) // 3 * 4


def to_text(encoding: Encoding, body: bytes) -> str:
    """The commit metadata that carries this body."""
    packed = bytes((encoding.magic,)) + body
    return binascii.b2a_base64(packed, newline=False).decode("ascii")


def from_text(text: str) -> tuple[Encoding, bytes]:
    """The encoding and plain body of (not empty) commit metadata; UnreadableMap if it has none."""
    if len(text) > TEXT_CHARS_MAX:
        raise UnreadableMap(f"{len(text)} characters are more than {TEXT_CHARS_MAX}")
    try:
        packed = binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:  # binascii.Error, or a character outside ASCII
        raise UnreadableMap("not Base64 text") from None
    encoding = BY_MAGIC.get(packed[0])
    if encoding is None:
        known = FOREIGN.get(packed[0], "not an offset map")
        raise UnreadableMap(f"magic byte 0x{packed[0]:02x}: {known}")
    body = packed[1:]
    return encoding, decompress(body) if encoding.is_compressed else body


def compress(body: bytes) -> bytes:
    """One zstd frame, byte for byte what Java's streaming writer makes of this body."""
    writer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
    return writer.compress(body) + writer.flush()


def decompress(frame: bytes) -> bytes:
    """The content of exactly one zstd frame, never more than BODY_BYTES_MAX (and 1 MiB) held."""
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    body = bytearray()
    try:
        for begin in range(0, len(frame), _ZSTD_STEP_BYTES):
            body += reader.decompress(frame[begin : begin + _ZSTD_STEP_BYTES])
            if len(body) > BODY_BYTES_MAX:
                raise UnreadableMap(f"grows to more than {BODY_BYTES_MAX} bytes decompressed")
            if reader.eof:
                _refuse_trailing(reader.unused_data, frame, begin + _ZSTD_STEP_BYTES)
                return bytes(body)
    except zstandard.ZstdError:
        raise UnreadableMap("not a valid zstd frame") from None
    raise UnreadableMap("the zstd frame is cut off")


def _refuse_trailing(unused: bytes, frame: bytes, read_bytes: int) -> None:
    """Raise when something follows the frame: Java writes one frame and nothing else."""
    if unused or read_bytes < len(frame):
        raise UnreadableMap("something follows the zstd frame")
