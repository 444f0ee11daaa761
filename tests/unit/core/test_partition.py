"""The ledger of one partition epoch."""

from __future__ import annotations

from perkey.core import states
from perkey.core.commits import CommitState
from perkey.core.events import HandlerSpec
from perkey.core.offsets import Offsets, Snapshot
from perkey.core.partition import Partition
from perkey.core.scheduling import Handler
from perkey.types import Record


def partition(**options) -> Partition:
    """An open epoch that starts at 0 and has received nothing."""
    return epoch(Offsets(0), **options)


def epoch(offsets: Offsets, **options) -> Partition:
    """An open epoch with these offsets."""
    handler = Handler(0, HandlerSpec("h", **options))
    return Partition("t", 0, 1, handler, offsets, CommitState(offsets))


def received(part: Partition, *offsets: int, key: bytes | None = None) -> None:
    """Admit records at these offsets, one poll."""
    records = [Record("t", 0, offset, 0, key, b"") for offset in offsets]
    part.admit(records, [100] * len(records))


def finish(part: Partition, *offsets: int) -> None:
    """These ran and are done."""
    for offset in offsets:
        work = part.offsets.incomplete[offset]
        work.state = states.RUNNING
        part.record_done(work)


def test_claim_at_the_top_does_not_hide_what_comes_after_it():
    """A claimed record counts as done in the snapshot; the queued one behind it does not."""
    part = partition()
    received(part, 5, 6)
    part.commit.claims.append(part.offsets.incomplete[5])
    assert part.snapshot() == Snapshot(6, 5, [])


def test_frontier_is_the_lowest_record_not_done():
    """Records that finish beyond an unfinished one leave the frontier where it is."""
    part = partition()
    received(part, 3, 4, 5)
    finish(part, 5)
    assert part.frontier == 3


def test_gap_is_never_waited_for():
    """Offsets that were never received do not hold the frontier."""
    part = partition()
    received(part, 3, 9, 12)
    finish(part, 3)
    assert part.frontier == 9


def test_frontier_rests_on_the_position_when_all_is_done():
    """With everything done the next offset to read is committed, markers included."""
    part = partition()
    received(part, 3)
    finish(part, 3)
    part.offsets.advance(7)
    assert part.frontier == 7


def test_snapshot_names_the_holes_below_the_top():
    """Frontier, top and what is not done between them come from one look."""
    part = partition()
    received(part, 0, 1, 2, 3, 4)
    finish(part, 1, 3)
    assert part.snapshot() == Snapshot(0, 3, [0, 2])


def test_record_fetched_twice_is_taken_once():
    """A poll after a pause brings records again; they are neither counted nor queued twice."""
    part = partition()
    received(part, 0, 1)
    received(part, 1, 2)
    assert (list(part.offsets.incomplete), len(part.lanes.ready)) == ([0, 1, 2], 3)


def test_restored_map_skips_what_was_done():
    """After a restart only the holes of the committed map are taken in again."""
    part = epoch(Offsets(5, 9, (5, 8)))
    received(part, 5, 6, 7, 8, 9, 10)
    assert [work.record.offset for work in part.lanes.ready] == [5, 8, 10]


def test_restored_hole_that_was_compacted_away_is_forgotten():
    """A hole that the log no longer has does not hold the frontier for ever."""
    part = epoch(Offsets(5, 9, (5, 8)))
    received(part, 8, 10)
    assert part.frontier == 8


def test_mark_that_is_taken_back_makes_its_record_undone():
    """at_most_once: a record given back before it began is a hole again, in offset order."""
    part = partition()
    received(part, 0, 1, 2)
    for offset in (0, 1):
        work = part.offsets.incomplete[offset]
        work.state = states.MARKING
        part.mark(work)
    part.unmark(part.commit.marked[0])
    assert part.snapshot() == Snapshot(0, 1, [0])


def test_the_end_of_the_log_is_the_one_heard_of_last():
    """It may be further on, or nearer: the log can be another one."""
    part = partition()
    for end in (7, 5):
        part.log_end = end
        assert part.log_end == end


def test_a_new_epoch_is_open_and_holds_nothing():
    """Its records may start; nothing is counted yet, nothing known of the end of the log."""
    part = partition()
    assert (part.state, part.gate.reasons) == (states.OPEN, frozenset())
    assert (part.listed, part.intake_paused, part.log_end) == (False, False, -1)
    counts = (part.in_flight, part.sending, part.retrying, part.parked, part.bytes)
    assert (counts, part.outputs_bytes) == ((0,) * 5, 0)
