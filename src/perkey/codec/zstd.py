"""Zstandard: from the standard library since Python 3.14, else from the package `zstandard`."""

import sys
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdCompressor, ZstdDecompressor, ZstdError
else:
    from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError

#: Level of Java's writer. Only the streaming compressor writes the same bytes as Java does.
_LEVEL = 3

#: Input per call of the decompressor. A four-byte block can grow to 128 KiB, so this bounds the
#: memory beyond the limit to 1 MiB.
_STEP_BYTES = 32

#: Largest window accepted; Java's writer declares 2 MiB.
WINDOW_BYTES_MAX = 8 * 2**20


#: an unused compressor; at most one
_idle: list[ZstdCompressor] = []


class _Reader(Protocol):
    """Decompresses one frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def compress(data: bytes) -> bytes:
    """One frame, byte for byte the same as from Java's streaming writer."""
    # Creating a context takes 20 times as long as compressing 100 bytes, so one is kept. It is
    # removed while in use: a context serves one thread. Earlier frames change no byte.
    try:
        context = _idle.pop()
    except IndexError:
        context = ZstdCompressor(level=_LEVEL)
    if sys.version_info >= (3, 14):
        frame = context.compress(data) + context.flush()
    else:
        writer = context.compressobj()
        frame = writer.compress(data) + writer.flush()
    _idle[:] = [context]
    return frame


def decompress(frame: bytes, bytes_max: int) -> tuple[bytes, bytes]:
    """The content of the first frame, and what follows it; ValueError with the reason.

    Never more than `bytes_max` (and 1 MiB) are in memory, whatever size the frame claims.
    """
    reader: _Reader
    if sys.version_info >= (3, 14):
        window_log = WINDOW_BYTES_MAX.bit_length() - 1
        reader = ZstdDecompressor(options={DecompressionParameter.window_log_max: window_log})
    else:
        reader = ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    content = bytearray()
    try:
        for begin in range(0, len(frame), _STEP_BYTES):
            content += reader.decompress(frame[begin : begin + _STEP_BYTES])
            if len(content) > bytes_max:
                raise ValueError(f"grows to more than {bytes_max} bytes decompressed")
            if reader.eof:
                return bytes(content), reader.unused_data + frame[begin + _STEP_BYTES :]
    except ZstdError:
        raise ValueError("not a valid zstd frame") from None
    raise ValueError("the zstd frame is cut off")
