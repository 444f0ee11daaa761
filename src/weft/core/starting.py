"""Where a newly assigned partition starts, from what is committed and what the log holds."""

from __future__ import annotations

from dataclasses import dataclass

from weft.codec import OffsetMap, UnreadableMap, decode
from weft.types import OnLost


@dataclass(frozen=True, slots=True)
class Found:
    """What the broker says of a partition when it is assigned."""

    #: the group's committed offset; None when there is none
    committed: int | None
    metadata: str
    log_start: int
    log_end: int
    #: where auto.offset.reset points, for a partition without a committed offset; None: "error"
    reset_to: int | None
    #: more than the group has committed is known to be done: commit it
    untold: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin and what of it is done already."""

    offset: int
    restored_top: int | None = None
    restored_not_done: tuple[int, ...] = ()
    commit_start: bool = False
    #: what a person should know, empty when nothing
    warning: str = ""


@dataclass(frozen=True, slots=True)
class OffsetLost:
    """There is no offset to start from, and the policy is to stop."""

    reason: str


def resolve(found: Found, on_lost: OnLost) -> Start | OffsetLost:
    """Decide the start of one partition."""
    if found.committed is None:
        if found.reset_to is None:
            return OffsetLost(
                'the group has no committed offset and auto.offset.reset is "error": commit one '
                "with `weft offsets set`, or choose earliest or latest"
            )
        return Start(found.reset_to, commit_start=True)
    if found.committed > found.log_end:
        return _lost(found, found.committed, on_lost)
    known = ""
    try:
        restored = decode(found.committed, found.metadata, log_end=found.log_end)
    except UnreadableMap as error:
        known = f"commit metadata ignored, finished records past the offset repeat: {error}"
        restored = OffsetMap("none", found.committed, found.committed - 1, ())
    if found.committed < found.log_start:
        return _behind(found, restored, known)
    return Start(
        found.committed,
        restored.highest_seen,
        restored.not_done,
        commit_start=found.untold,
        warning=known,
    )


def _lost(found: Found, committed: int, on_lost: OnLost) -> Start | OffsetLost:
    if on_lost == "stop":
        return OffsetLost(
            f"committed offset {committed} is past the end of the log {found.log_end} (a topic "
            'made again, or a truncated log): set on_offset_lost="earliest" or "latest", or commit '
            "a valid offset with `weft offsets set`"
        )
    target = found.log_start if on_lost == "earliest" else found.log_end
    return Start(
        target,
        commit_start=True,
        warning=f"committed offset {committed} is past the end of the log {found.log_end}: "
        f"going on at {on_lost}, {target}",
    )


def _behind(found: Found, restored: OffsetMap, known: str) -> Start:
    """Retention deleted records that were not done; the rest of the map still holds."""
    start = found.log_start
    top = max(restored.highest_seen, start - 1)
    left = tuple(offset for offset in restored.not_done if offset >= start)
    gone = f"committed offset {found.committed} is before the start of the log {start}: "
    gone += "retention deleted what lay between"
    return Start(start, top, left, commit_start=True, warning=f"{gone}; {known}" if known else gone)
