"""Every limit of the offset map in one place, and the errors for exceeding them.

ValueError
 +-- UnreadableMap   the metadata is not a valid map: ignore it, start at the frontier
 +-- MapTooLarge     no encoding can hold this map: write a part of it (encode_fitting)
"""

#: What a broker stores of one partition's metadata by default (offset.metadata.max.bytes).
BROKER_CHARS_MAX = 4096

#: Longest text that is parsed; a broker may be configured to store more than its default.
TEXT_CHARS_MAX = 64 * 2**10

#: Longest body after decompression. Java's own buffers stay far below it.
BODY_BYTES_MAX = 2**20

#: Bodies longer than this are not built when writing: they could not fit 4,096 characters
#: except for a strictly regular pattern over millions of offsets.
WRITTEN_BODY_BYTES_MAX = 256 * 2**10

#: Most offsets a map may name as not done, read or written: twice as many as a member buffers by
#: default, because a parked lane takes no buffer. Twelve characters can name any number of them,
#: and each costs its reader 40 bytes.
NOT_DONE_MAX = 100_000

#: Most offsets a map may span: the length is a signed 32-bit number on the wire.
RANGE_MAX = 2**31 - 1

#: Kafka's own largest offset.
OFFSET_MAX = 2**63 - 1


class UnreadableMap(ValueError):
    """The metadata is not an offset map, or a corrupt one; the message is the reason."""


class MapTooLarge(ValueError):
    """The map spans or names more offsets than any encoding may hold."""
