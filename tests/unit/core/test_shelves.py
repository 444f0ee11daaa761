"""Parked lanes keep offsets, not bytes, and are fetched again when they are released."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, Desk, offsets

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import UNORDERED, Command, Failed, HandlerSpec, Limits, Target
from perkey.core.memory import SHELVED_BYTES
from perkey.policies import Commit, DeadLetter, Park, Retry
from perkey.types import Record

ONCE = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=Park())
SIZE = 10_000
LIMITS = Limits(forget_parked=True, commit=Commit(interval_s=1.0))


class Parking(Desk):
    """One partition, whose records can be parked, released and fetched again."""

    def __init__(self, spec: HandlerSpec = ONCE, limits: Limits = LIMITS, **options) -> None:
        super().__init__(spec, limits=limits)
        (self.part,) = self.assign(0, **options)

    def park(self, *offsets_: int, key: bytes | None = b"k") -> None:
        """These come in, and the first of their lane fails."""
        self.poll(self.part, *offsets_, key=key, size=SIZE)
        works = self.started()
        self.do("calls_ended", [], [Failed(work, ERROR) for work in works])

    def command(self, action, offset: int) -> fx.Obeyed:
        """A person's command to one record."""
        order = Command(action, Target("t", None, 0, offset), reason="test")
        self.take(fx.Answered)
        self.do("obey", [order], 0.0)
        answers = [e for e in self.effects if isinstance(e, fx.Answered)]
        return answers[0].rows[0] if answers else fx.Obeyed("t", 0, offset, "later", "")

    def asked(self) -> list[int]:
        """The offsets that are to be read again; the request is the last one."""
        (self.request,) = [e for e in self.effects if isinstance(e, fx.Refetch)]
        self.effects = [e for e in self.effects if e is not self.request]
        return self.request.offsets

    def came(self, *there: int, key: bytes | None = b"k") -> None:
        """The request is answered with these."""
        records = [Record("t", 0, offset, 0, key, b"v") for offset in there]
        self.do("refetched", self.part, self.request.number, records, [SIZE] * len(there))


def test_a_parked_lane_keeps_no_bytes() -> None:
    """Neither the parked record's nor those of the records behind it, or that come later."""
    desk = Parking()
    desk.park(0, 1, 2)
    desk.poll(desk.part, 3, 4, size=SIZE)
    (head,) = desk.part.works()
    assert (head.record.offset, head.record.value, head.state) == (0, None, states.PARKED)
    assert desk.part.bytes < 4 * SHELVED_BYTES + 2_000 < SIZE
    assert (desk.part.buffered, desk.part.offsets.shelved, desk.part.frontier) == (1, 4, 0)


def test_a_released_lane_is_fetched_and_handled_in_order() -> None:
    """Each record once, with its value, the released one first."""
    desk = Parking()
    desk.park(0, 1, 2)
    assert desk.command("release", 0).outcome == "released"
    assert desk.asked() == [0, 1, 2]
    assert desk.started() == []
    desk.poll(desk.part, 3, size=SIZE)  # comes while the others are on their way
    desk.came(0, 1, 2)
    handled = []
    while works := desk.started():
        handled += [(work.record.offset, work.record.value, work.record.attempt) for work in works]
        desk.do("calls_ended", works)
        requests = [e for e in desk.effects if isinstance(e, fx.Refetch)]
        if requests:
            assert desk.asked() == [3]
            desk.came(3)
    assert handled == [(offset, b"v", 1) for offset in range(4)]
    assert (desk.part.frontier, desk.part.bytes, bool(desk.part.shelves)) == (4, 0, False)


def test_a_lane_that_was_taken_back_is_as_any_other() -> None:
    """What comes for it later is not put away."""
    desk = Parking()
    desk.park(0, 1)
    desk.command("release", 0)
    desk.asked()
    desk.came(0, 1)
    desk.poll(desk.part, 2, size=SIZE)
    assert (desk.part.offsets.shelved, desk.part.buffered) == (0, 3)


def test_other_lanes_go_on() -> None:
    """A parked lane is no record of the buffers, whatever is behind its head."""
    limits = Limits(forget_parked=True, buffer_records=8, buffer_bytes=20 * SIZE)
    desk = Parking(limits=limits)
    desk.park(*range(100))
    desk.pass_time(1.0)
    assert not desk.part.intake_paused
    desk.poll(desk.part, 100, key=b"other", size=SIZE)
    assert offsets(desk.started()) == [100]


def test_parked_again_it_is_put_away_again() -> None:
    """In front of what stayed on the shelf."""
    desk = Parking()
    desk.park(0, 1, 2)
    desk.command("release", 0)
    desk.asked()
    desk.came(0, 1, 2)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    assert (desk.part.buffered, desk.part.offsets.shelved) == (1, 2)
    desk.command("release", 0)
    assert desk.asked() == [0, 1, 2]


def test_what_the_log_has_no_more_is_not_waited_for() -> None:
    """Retention took the parked record and one behind it: the next one starts."""
    desk = Parking()
    desk.park(0, 1, 2)
    desk.command("release", 0)
    desk.asked()
    desk.came(2)
    assert offsets(desk.started()) == [2]
    assert desk.part.frontier == 2
    assert desk.engine.state.counts["parked_records_gone"] == 2
    assert desk.part.handler.skipped == 1


def test_a_late_answer_is_dropped() -> None:
    """Of a request that was answered, and of an epoch that has ended."""
    desk = Parking()
    desk.park(0, 1)
    desk.command("release", 0)
    desk.asked()
    desk.came(0, 1)
    desk.came(0, 1)
    desk.do("closed", [desk.part])
    desk.came(0, 1)
    assert desk.engine.state.counts["late_refetches"] == 2


def test_a_skipped_head_needs_no_bytes() -> None:
    """It is done without being read again; the next one of its lane is fetched."""
    desk = Parking()
    desk.park(0, 1)
    desk.command("skip", 0)
    assert desk.asked() == [1]
    desk.came(1)
    assert offsets(desk.started()) == [1]


def test_records_on_a_shelf_are_named_in_answers() -> None:
    """A command to one is refused with the offset that comes first."""
    desk = Parking()
    desk.park(0, 1)
    for action in ("hold", "skip", "release"):
        row = desk.command(action, 1)
        assert (row.outcome, row.detail) == ("refused", "offset 0 of its lane comes first")


def test_held_while_it_is_fetched() -> None:
    """Neither it nor what is behind it is taken in; when the hold is over they are fetched again."""
    desk = Parking()
    desk.park(0, 1)
    desk.command("release", 0)
    assert desk.asked() == [0, 1]
    order = Command("hold", Target("t", None, 0, 0), until_s=5.0, reason="test")
    desk.do("obey", [order], 0.0)
    desk.came(0, 1)
    assert desk.started() == []
    assert (desk.part.buffered, desk.part.offsets.shelved) == (1, 1)
    desk.pass_time(6.0)
    assert desk.asked() == [0, 1]
    desk.came(0, 1)
    assert [(work.record.offset, work.record.value) for work in desk.started()] == [(0, b"v")]


@pytest.mark.parametrize("target", [Target("t", b"k"), Target("t", None, 0, 0)])
def test_a_held_lane_keeps_no_bytes(target: Target) -> None:
    """Of one that a person holds, or whose first record is held; over, it is read in order."""
    desk = Parking()
    desk.do("halt", "test", on=True)
    desk.poll(desk.part, 0, 1, 2, key=b"k", size=SIZE)
    desk.do("obey", [Command("hold", target, until_s=5.0, reason="test")], 0.0)
    desk.do("halt", "test", on=False)
    desk.poll(desk.part, 3, key=b"k", size=SIZE)
    (head,) = desk.part.works()
    assert (head.record.value, desk.part.offsets.shelved) == (None, 3)
    assert desk.part.bytes < SIZE
    assert desk.started() == []
    desk.pass_time(6.0)
    assert desk.asked() == [0, 1, 2, 3]
    desk.came(0, 1, 2, 3)
    handled = []
    while works := desk.started():
        handled += [(work.record.offset, work.record.value) for work in works]
        desk.do("calls_ended", works, [])
    assert handled == [(offset, b"v") for offset in range(4)]
    assert not desk.part.lanes.shelves


def test_what_comes_of_a_held_lane_is_put_away_at_once() -> None:
    """Of a lane that had nothing here when it was held one record is kept, without its bytes."""
    desk = Parking()
    desk.do("obey", [Command("hold", Target("t", b"k"), until_s=5.0, reason="test")], 0.0)
    desk.poll(desk.part, 0, 1, key=b"k", size=SIZE)
    desk.poll(desk.part, 2, key=b"k", size=SIZE)
    (head,) = desk.part.works()
    assert (head.record.offset, head.record.value) == (0, None)
    assert desk.part.offsets.shelved == 2
    assert desk.command("skip", 2).detail == "offset 0 of its lane comes first"


def test_behind_a_call_that_runs_a_held_lane_is_put_away_in_its_turn() -> None:
    """When the call has ended: until then its chain may still change."""
    desk = Parking()
    desk.poll(desk.part, 0, 1, 2, key=b"k", size=SIZE)
    (first,) = desk.started()
    desk.do("obey", [Command("hold", Target("t", b"k"), until_s=5.0, reason="test")], 0.0)
    assert (desk.part.buffered, desk.part.offsets.shelved) == (3, 0)
    desk.do("calls_ended", [first], [])
    assert (desk.part.buffered, desk.part.offsets.shelved) == (1, 1)
    assert desk.started() == []


def test_what_comes_back_is_given_up_with_its_bytes() -> None:
    """A record that came held with its attempts used up: its dead letter has its value."""
    known = (Remembered(0, 1, held=True, exhausted_by="attempts", until_s=5),)
    spec = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=DeadLetter("dead"))
    desk = Parking(spec, start=0, restored_top=0, restored_not_done=(0,), remembered=known)
    desk.poll(desk.part, 0, key=b"k", size=SIZE)
    (head,) = desk.part.works()
    assert head.record.value is None
    desk.pass_time(6.0)
    assert desk.asked() == [0]
    assert not [e for e in desk.effects if isinstance(e, fx.SendDeadLetter)]
    desk.came(0)
    (letter,) = [e for e in desk.effects if isinstance(e, fx.SendDeadLetter)]
    assert letter.work.record.value == b"v"


def test_lanes_of_their_own_are_put_away_one_by_one() -> None:
    """Without an order each record is a head."""
    desk = Parking(HandlerSpec("h", ordering=UNORDERED, retry=Retry(attempts=1)))
    desk.park(0, 1, 2)
    assert [work.record.value for work in desk.part.works()] == [None] * 3
    desk.command("release", 1)
    assert desk.asked() == [1]
    desk.came(1)
    assert offsets(desk.started()) == [1]


def test_what_came_parked_is_put_away_at_once() -> None:
    """A commit remembers it; nothing behind it is kept either, with what is known of that."""
    known = (Remembered(0, 1, parked=True), Remembered(2, 1))
    spec = HandlerSpec("h", retry=Retry(attempts=3))
    desk = Parking(spec, start=0, restored_top=3, restored_not_done=(0, 1, 2), remembered=known)
    desk.poll(desk.part, 0, 1, 2, 3, 4, size=SIZE)
    assert (desk.part.buffered, desk.part.offsets.shelved) == (1, 3)
    desk.command("release", 0)
    assert desk.asked() == [0, 1, 2, 4]
    desk.came(0, 1, 2, 4)
    handled = []
    while works := desk.started():
        handled += [(work.record.offset, work.record.attempt) for work in works]
        desk.do("calls_ended", works)
    assert handled == [(0, 1), (1, 1), (2, 2), (4, 1)]


def test_the_rider_says_what_is_on_a_shelf_too() -> None:
    """What a commit knew of a record stays in the next one, though the record is not here."""
    known = (Remembered(0, 1, parked=True), Remembered(1, 3, parked=True))
    desk = Parking(start=0, restored_top=2, restored_not_done=(0, 1), remembered=known)
    desk.poll(desk.part, 0, 1, 2, 3, size=SIZE)
    entries = desk.part.memory.entries(
        desk.part.position, (), desk.now, 0.0, desk.part.offsets.incomplete
    )
    assert [(one.offset, one.attempts, one.parked) for one in entries] == [
        (0, 1, True), (1, 3, True),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [99, 100, 101])
def test_no_more_comes_back_than_there_is_room_for(count: int) -> None:
    """A sixteenth of the buffers in one request, the rest of the lane when that is handled."""
    desk = Parking(limits=Limits(forget_parked=True, buffer_records=1_600))
    desk.park(*range(count))
    desk.command("release", 0)
    assert desk.asked() == list(range(min(count, 100)))


def test_the_frontier_is_fetched_without_room() -> None:
    """Everything may wait for it: the buffers are full of what the map has no room for."""
    limits = Limits(forget_parked=True, buffer_records=4, map_chars=4)
    desk = Parking(limits=limits)
    desk.park(0)
    for offset in range(1, 40):
        desk.poll(desk.part, offset, key=b"%d" % offset, size=100)
        desk.do("calls_ended", desk.started())
    assert desk.engine.state.flow.room([desk.part]).share <= 0
    desk.command("release", 0)
    assert desk.asked() == [0]


def test_of_what_is_not_fetched_again_bytes_are_kept() -> None:
    """Where nothing can be read again, as in a Spark task, a parked lane stays whole."""
    desk = Parking(limits=Limits())
    desk.park(0, 1)
    assert [work.record.value for work in desk.part.works()] == [b"v", b"v"]


def test_what_came_parked_and_is_gone_is_skipped() -> None:
    """Its last error was not kept: the engine fell over it (found by a seed)."""
    desk = Parking(remembered=(Remembered(0, 1, parked=True),))
    desk.poll(desk.part, 0, 1, size=SIZE)
    desk.command("release", 0)
    desk.asked()
    desk.came(1)
    assert offsets(desk.started()) == [1]
    assert (desk.part.frontier, desk.part.handler.skipped) == (1, 1)
