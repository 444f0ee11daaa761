"""The offset map: which offsets at and beyond the frontier are done, as commit metadata.

Pure (no I/O, no clock) and byte-compatible with the Java Parallel Consumer, so that a group's
progress moves between the two in both directions.
"""

from perkey.codec.limits import MapTooLarge, UnreadableMap
from perkey.codec.maps import (
    Carrier,
    OffsetMap,
    decode,
    encode,
    encode_fitting,
    measure,
    with_rider,
)
from perkey.codec.rider import NONE, Remembered, Rider

__all__ = [
    "NONE",
    "Carrier",
    "MapTooLarge",
    "OffsetMap",
    "Remembered",
    "Rider",
    "UnreadableMap",
    "decode",
    "encode",
    "encode_fitting",
    "measure",
    "with_rider",
]
