"""Calls that were requested and have not started: they wait for a worker process, or for prefetch.

The core does not know of it. Executors report it here, inside the door, and the account shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perkey.core.states import RUNNING
from perkey.core.work import Work


def waiting(works: Sequence[Work]) -> None:
    """The calls of these, of one handler, wait before it."""
    handler = works[0].partition.handler
    known = {work: attempt for work, attempt in handler.unbegun.items() if waits(work)}
    handler.unbegun = known | {work: work.record for work in works}


def begun(works: Sequence[Work], since: float) -> None:
    """The calls of these, of one handler, started at `since`, on the engine's clock."""
    handler = works[0].partition.handler
    handler.unbegun = {
        work: attempt for work, attempt in handler.unbegun.items() if work not in works
    }
    for work in works:
        if work.state == RUNNING:
            work.since = since


def waits(work: Work) -> bool:
    """Whether its call has not started, as far as known; an entry may outlive its attempt."""
    return work.state == RUNNING and work.partition.handler.unbegun.get(work) is work.record
