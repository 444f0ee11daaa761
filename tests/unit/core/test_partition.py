"""The ledger of one partition epoch."""

from __future__ import annotations

from weft.core import states
from weft.core.handler import Handler
from weft.core.partition import Partition, Snapshot
from weft.core.spec import HandlerSpec
from weft.types import Record


def partition(**options) -> Partition:
    """An open epoch that starts at 0 and has received nothing."""
    return Partition("t", 0, 1, Handler(0, HandlerSpec("h", **options)), 0)


def received(part: Partition, *offsets: int, key: bytes | None = None) -> None:
    """Admit records at these offsets, one poll."""
    records = [Record("t", 0, offset, 0, key, b"") for offset in offsets]
    part.admit(records, [100] * len(records))


def finish(part: Partition, *offsets: int) -> None:
    """These ran and are done."""
    for offset in offsets:
        work = part.incomplete[offset]
        work.state = states.RUNNING
        part.finish(work)


def test_claim_at_the_top_does_not_hide_what_comes_after_it():
    """A claimed record counts as done in the snapshot; the queued one behind it does not."""
    part = partition()
    received(part, 5, 6)
    part.claims.append(part.incomplete[5])
    assert part.snapshot() == Snapshot(6, 5, [])
