"""What can go wrong with an offset map.

ValueError
 +-- UnreadableMap   the metadata is not a map we can trust: ignore it, start at the frontier
 +-- MapTooLarge     no encoding can hold this map: write a part of it (encode_fitting)
"""


class UnreadableMap(ValueError):
    """The metadata is no offset map, or a corrupt one; the message is one line that says why."""


class MapTooLarge(ValueError):
    """The map spans or names more offsets than any encoding may hold."""
