"""One partition as a picture: the offsets from its frontier as cells, and its worst records.

Computed from an account, outside the door.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from perkey.account.account import Account, Part
from perkey.account.begun import waits
from perkey.account.blockers import blocker_row, blockers
from perkey.account.snapshot import frontier_of, partition_row
from perkey.core import states

CELLS_MAX = 600
RECORDS_MAX = 50
#: most partitions whose map is part of a report
MAPS_MAX = 200

#: What a cell shows; a cell of many offsets shows the last of these that occurs.
CELLS = {
    "d": "done, or a gap in the log",
    "u": "not done, not fetched again since the restart",
    "q": "waits",
    "b": "handled, its outputs or its commit are not acknowledged",
    "r": "running",
    "f": "failed, waits for its next attempt",
    "p": "parked",
}
_RANK = {letter: rank for rank, letter in enumerate(CELLS)}
_LETTERS = {
    states.MARKING: "q",
    states.RUNNING: "r",
    states.SENDING: "b",
    states.COMMITTING: "b",
    states.PENDING: "b",
    states.RETRYING: "f",
    states.PARKED: "p",
    states.HELD: "f",
    states.ASKED: "f",
    **dict.fromkeys(states.UNSTARTED, "q"),
}

#: per cell of a partition that has not been read
NO_PICTURE: dict[str, Any] = {"from": 0, "to": 0, "per_cell": 1, "cells": "", "records": []}


def picture(account: Account, part: Part, epoch_s: float = 0.0) -> dict[str, Any]:
    """The row of a snapshot, its offset map as cells, and the records that block it."""
    worst = blockers(account, [part], RECORDS_MAX)
    return {
        "partition": partition_row(part, account.at, epoch_s),
        **_drawn(part, max(part.position, part.top + 1)),
        "edge": part.map_edge if part.map_edge >= 0 else None,
        "records": [blocker_row(blocker, account.at, epoch_s) for blocker in worst],
    }


def maps(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The longest non-empty offset maps, for reports to other members.

    Without records, and only up to the highest offset that is done: most of what a member holds
    waits beyond it, and holes there block nothing.
    """
    holed = [part for part in parts if part.works and part.top > frontier_of(part)]
    furthest = nlargest(MAPS_MAX, holed, key=lambda part: part.top - frontier_of(part))
    return [
        {"topic": part.topic, "partition": part.number, **_drawn(part, part.top + 1)}
        for part in furthest
    ]


def _drawn(part: Part, end: int) -> dict[str, Any]:
    start = frontier_of(part)
    per_cell = max(1, -(-(end - start) // CELLS_MAX))
    # One letter per `per_cell` offsets, and one digit: the share not done in tenths
    letters = ["d"] * -(-(end - start) // per_cell)
    counts = [0] * len(letters)
    # Offsets that are not fetched again yet lie before the end, however far out that is.
    upto = bisect_left(part.works, end, key=lambda work: -1 if work is None else work.record.offset)
    held = part.works[:upto]
    not_done = [
        # "d": done since the account was taken
        (
            work.record.offset,
            "q" if waits(work) else _LETTERS.get(work.state, "d"),
        )
        for work in held
        if work is not None
    ]
    for offset, letter in [(offset, "u") for offset in part.unfetched] + not_done:
        at = (offset - start) // per_cell
        if 0 <= at < len(letters):
            counts[at] += letter != "d"
            if _RANK[letter] > _RANK[letters[at]]:
                letters[at] = letter
    shares = "".join(str(min(9, 10 * count // per_cell)) for count in counts)
    shared = {"shares": shares} if per_cell > 1 else {}
    return {"from": start, "to": end, "per_cell": per_cell, "cells": "".join(letters), **shared}
