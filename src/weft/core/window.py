"""How far past the frontier records may start, so that the offset map keeps fitting.

The broker stores 4,096 characters of metadata. A map over a range of offsets never takes more
than one bit for each of them (a bit set), so within `ALWAYS_FITS` offsets of the frontier nothing
needs to be measured. Further out the map is measured, and each record that is done after that
splits at most one run in two: eight bytes, which base64 writes as `CHARS_PER_DONE` characters.
"""

from __future__ import annotations

from heapq import heappop

from weft.codec import measure as measure_map
from weft.core.partition import Partition

PRESSURE = 0.75  # of the limit: past it nothing further out starts (as in the Java library)
CHARS_PER_DONE = 11


def always_fits(limit_chars: int) -> int:
    """Offsets whose bit set takes at most `limit_chars` characters of base64."""
    body_bytes = limit_chars // 4 * 3
    return max(0, (body_bytes - 6) * 8)  # magic byte, 32-bit length, trailing zero byte


def measure(partition: Partition) -> None:
    """Set `start_limit` from the map as it is now."""
    limit = partition.map_limit
    shot = partition.snapshot()
    # The frontier itself may always start: only its end makes room again.
    near = shot.frontier + max(1, int(always_fits(limit) * PRESSURE))
    partition.measured_frontier = shot.frontier
    # Early enough that the room does not run out before it is measured.
    needless = near - 1 - (near - shot.frontier) // 4
    if shot.top < needless:
        partition.map_chars = 0
        partition.start_limit, partition.measure_at_top = near, needless
        return
    partition.map_chars = measure_map(shot.frontier, shot.top, shot.not_done)
    room = int(limit * PRESSURE) - partition.map_chars
    allowed = max(0, room // CHARS_PER_DONE)
    partition.start_limit = max(near, shot.top + 1 + allowed if allowed else shot.top)
    # Not at every step: a measurement walks over what is not done.
    partition.measure_at_top = shot.top + max(1, allowed // 2)


def reopen(partition: Partition) -> None:
    """Records that waited for room are looked at again, the nearest first."""
    far = partition.far
    if far:
        measure(partition)
        if far[0][0] < partition.start_limit:
            while far and far[0][0] < partition.start_limit:
                partition.ready.append(heappop(far)[1])
            partition.handler.enlist(partition)
    if not far:
        partition.handler.crowded.pop(partition, None)
