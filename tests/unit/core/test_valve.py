"""The pressure valve of `Park(export=...)`: which parked lanes are dead-lettered, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.conftest import ERROR
from tests.unit.core.test_memory import UNIX_S
from tests.unit.core.test_shelves import LIMITS, Parking

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core.events import Command, Decided, Failed, HandlerSpec, Target
from perkey.core.valve import LANES_MAX, REFUSED_S
from perkey.core.work import HeldBy
from perkey.policies import Batch, Park, Retry
from perkey.types import ErrorInfo

#: the span of the map in which records start without a count: 0.75 of its bits
NEAR = 18_396


def spec(**valve: float) -> HandlerSpec:
    """One attempt, then parked with this valve."""
    return HandlerSpec(
        "h", retry=Retry(attempts=1), on_exhausted=Park(None, "{topic}.dlq", **valve)
    )


class Relief(Parking):
    """Letters are taken from the effects, and answered."""

    def letters(self) -> list[int]:
        """The offsets whose letters were sent since the last time."""
        sent = [e for e in self.effects if isinstance(e, fx.SendDeadLetter)]
        self.effects = [e for e in self.effects if not isinstance(e, fx.SendDeadLetter)]
        assert {effect.topic for effect in sent} <= {"t.dlq"}
        self.sent = [effect.work for effect in sent]
        self.errors = [effect.error for effect in sent]
        return [effect.work.record.offset for effect in sent]

    def answer_letters(self, error: ErrorInfo | None = None) -> None:
        """The broker has taken, or refused, the letters."""
        self.do("outputs_answered", [(work, (), error) for work in self.sent])

    def finish(self, *keys: bytes) -> list[int]:
        """All letters are taken and all requests answered; the offsets in their order."""
        order = []
        for _ in range(100):
            if found := self.letters():
                order += found
                self.answer_letters()
            elif [e for e in self.effects if isinstance(e, fx.Refetch)]:
                self.came(*self.asked())
            else:
                break
        return order


def full_to(desk: Relief, span: int) -> None:
    """Records of other keys are done, so that the map spans so many offsets."""
    desk.poll(desk.part, span - 1, key=b"other")
    desk.do("calls_ended", desk.started())


@pytest.mark.parametrize(("span", "opens"), [(99, False), (100, True), (101, True)])
def test_a_lane_is_exported_where_the_share_is_reached(span, opens):
    """Not one offset before that."""
    desk = Relief(spec(at_map=100 / NEAR))
    desk.park(0, 1)
    full_to(desk, span)
    desk.pass_time(1.0)
    assert desk.finish() == ([0, 1] if opens else [])


def test_only_as_many_lanes_as_it_takes_go_the_oldest_first():
    """What is younger stays parked, for without the oldest ones there is room."""
    desk = Relief(spec(at_map=100 / NEAR))
    for offset in (0, 40, 80):
        desk.park(offset, key=b"k%d" % offset)
    full_to(desk, 139)
    desk.pass_time(1.0)
    order = []
    while request := [e for e in desk.effects if isinstance(e, fx.Refetch)]:
        offsets = request[0].offsets
        desk.asked()
        desk.came(*offsets, key=b"k%d" % offsets[0])
        order += desk.letters()
        desk.answer_letters()
    assert order == [0]
    assert desk.part.parked == 2


def test_a_lane_goes_whole_and_in_order_and_what_comes_later_is_handled():
    """The letters of the records behind the parked one name it; the next record starts after."""
    desk = Relief(spec(after_s=10.0))
    desk.park(0, 1, 2)
    desk.pass_time(9.9)
    assert desk.finish() == []
    desk.pass_time(0.2)
    assert desk.letters() == []
    desk.poll(desk.part, 3)
    desk.came(*desk.asked())
    errors = []
    for offset in (0, 1, 2):
        assert desk.letters() == [offset]
        assert desk.started() == []
        errors += desk.errors
        desk.answer_letters()
    assert errors[0] == ERROR
    assert errors[1] == ErrorInfo("Parked", "offset 0 of its key was parked: exported with it")
    desk.came(*desk.asked())
    assert [work.record.offset for work in desk.started()] == [3]
    assert (desk.engine.state.counts["parked_records_exported"], desk.part.exports) == (3, {})


def test_no_commit_has_a_letter_done_without_the_next_record_parked():
    """Whoever has the partition next handles nothing of the lane."""
    desk = Relief(spec(after_s=1.0))
    desk.park(0, 1, 2)
    desk.pass_time(1.1)
    desk.came(*desk.asked())
    assert desk.letters() == [0]
    desk.answer_letters()
    memory = desk.part.memory.entries(3, (), desk.engine.state.now, 0.0)
    assert [(one.offset, one.parked or one.exhausted_by) for one in memory] == [
        (1, "policy"),
        (2, True),
    ]


def test_the_next_record_is_parked_where_the_log_has_no_more_what_was_to_go_next():
    """The record that was expected is gone: commits have the one behind it parked from then on."""
    desk = Relief(spec(after_s=1.0), replace(LIMITS, buffer_records=16))
    desk.park(0, 1, 2)
    desk.pass_time(1.1)
    desk.came(*desk.asked())
    assert desk.letters() == [0]
    desk.answer_letters()
    assert desk.asked() == [1]
    desk.came()
    memory = desk.part.memory.entries(3, (), desk.engine.state.now, 0.0, away=(2,))
    assert [(one.offset, one.parked) for one in memory] == [(2, True)]
    desk.came(*desk.asked())
    assert desk.letters() == [2]


def test_a_refused_letter_ends_the_export_and_the_lane_waits():
    """It is tried again after a while, not at once."""
    desk = Relief(spec(after_s=1.0))
    desk.park(0, 1)
    desk.pass_time(1.1)
    desk.came(*desk.asked())
    assert desk.letters() == [0]
    desk.answer_letters(ErrorInfo("TopicAuthorization", "no"))
    assert [type(e) for e in desk.effects if isinstance(e, fx.ExportEnded)] == [fx.ExportEnded]
    desk.pass_time(REFUSED_S - 1)
    assert desk.finish() == []
    assert (desk.part.parked, desk.part.exports, desk.started()) == (1, {}, [])
    desk.pass_time(3.0)
    assert desk.finish() == [0, 1]


def test_a_lane_that_is_exported_takes_no_command():
    """Neither its parked record nor what is behind it is released or skipped."""
    desk = Relief(spec(after_s=1.0))
    desk.park(0, 1)
    desk.pass_time(1.1)
    for offset in (0, 1):
        row = desk.command("release", offset)
        assert (row.outcome, "exported with its lane" in row.detail) == ("refused", True)


def test_a_refused_hold_of_an_exported_lane_is_not_for_the_next_epoch():
    """Nor does a refused release end the hold that an earlier command left for it."""
    desk = Relief(spec(after_s=1.0))
    place, by = ("t", None, b"k"), HeldBy(50.0)
    desk.park(0, 1)
    desk.pass_time(1.1)
    for action, left in (("hold", {}), ("release", {place: by})):
        desk.engine.state.holds.update(left)
        desk.do("obey", [Command(action, Target("t", b"k"), "1", UNIX_S + 50.0)], UNIX_S)
        (answered,) = (e for e in desk.effects if isinstance(e, fx.Answered))
        desk.effects.remove(answered)
        assert [row.outcome for row in answered.rows] == ["refused"]
        assert desk.engine.state.holds == left


def test_a_held_lane_is_not_exported():
    """A person decides about it, until the hold is over."""
    desk = Relief(spec(after_s=1.0))
    desk.part.set_hold(b"k", HeldBy(20.0))
    desk.part.end_hold(b"k")
    desk.park(0)
    desk.part.set_hold(b"k", HeldBy(20.0))
    desk.pass_time(5.0)
    assert desk.finish() == []
    desk.pass_time(16.0)
    assert desk.finish() == [0]


def test_the_time_survives_a_restart():
    """It is part of the commit, as that of a release."""
    remembered = (Remembered(0, 1, parked=True, exhausted_by="attempts", until_s=8),)
    desk = Relief(spec(after_s=100.0), remembered=remembered, committed=0)
    desk.poll(desk.part, 0)
    desk.pass_time(7.5)
    assert desk.finish() == []
    desk.pass_time(1.0)
    assert desk.finish() == [0]


def test_a_function_may_return_such_a_park():
    """The record it returned that for is exported."""
    policy = Park(None, "{topic}.dlq", after_s=1.0)
    asks = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=lambda record, error: policy)
    desk = Relief(asks)
    desk.park(0)
    (asked,) = [e for e in desk.effects if isinstance(e, fx.AskExhausted)]
    desk.do("decided", [Decided(asked.work, asked.number, policy)])
    desk.pass_time(1.1)
    assert desk.finish() == [0]


@pytest.mark.parametrize("count", [LANES_MAX - 1, LANES_MAX, LANES_MAX + 1])
def test_so_many_lanes_are_exported_at_a_time(count):
    """The others wait for their turn."""
    desk = Relief(spec(after_s=1.0), LIMITS)
    desk.poll(desk.part, *range(count), key=None)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    while works := desk.started():
        desk.do("calls_ended", [], [Failed(work, ERROR) for work in works])
    assert desk.part.parked == count
    desk.pass_time(1.1)
    assert len(desk.part.exports) == min(count, LANES_MAX)


def test_a_paused_partition_exports_nothing():
    """Until it is resumed."""
    desk = Relief(spec(after_s=1.0))
    desk.park(0)
    desk.do("pause", "t", on=True)
    desk.pass_time(1.5)
    assert desk.finish() == []
    desk.do("pause", "t", on=False)
    desk.pass_time(1.5)
    assert desk.finish() == [0]


def test_what_came_parked_is_given_up_in_every_commit_while_its_bytes_are_fetched():
    """Another client's rider need not tell by what: the next owner handles nothing of it."""
    known = (Remembered(0, 1, parked=True),)
    options = {"start": 0, "restored_top": 0, "restored_not_done": (0,), "remembered": known}
    desk = Relief(spec(after_s=1.0), **options)
    desk.poll(desk.part, 0)
    desk.pass_time(1.1)
    assert desk.asked() == [0]
    (one,) = desk.part.memory.entries(1, (), desk.engine.state.now, 0.0)
    assert (one.parked, one.exhausted_by) == (False, "policy")


def lane_with_one_that_waits(**known) -> Relief:
    """Behind a parked record one that came with this is back from the shelf, and next but one."""
    came = (Remembered(0, 1, parked=True, exhausted_by="attempts"), Remembered(2, 1, **known))
    options = {"start": 0, "restored_top": 0, "restored_not_done": (0,), "remembered": came}
    desk = Relief(spec(after_s=1.0), **options)
    desk.poll(desk.part, 0, 1, 2)
    desk.pass_time(1.1)
    desk.came(*desk.asked())
    assert desk.letters() == [0]
    desk.answer_letters()
    return desk


@pytest.mark.parametrize("known", [{"exhausted_by": "attempts"}, {"held": True, "until_s": 10**6}])
def test_what_came_back_and_waits_is_exported_with_its_lane(known):
    """Its attempts used up, or held: it goes in its turn all the same, parked before it."""
    desk = lane_with_one_that_waits(**known)
    assert desk.letters() == [1]
    (one,) = desk.part.memory.entries(3, (), desk.engine.state.now, 0.0)[-1:]
    assert (one.offset, one.parked, desk.part.retrying) == (2, True, 0)
    desk.answer_letters()
    assert desk.finish() == [2]


@pytest.mark.parametrize(
    ("known", "on_hold"), [({"exhausted_by": "attempts"}, 0), ({"held": True, "until_s": 10**6}, 1)]
)
def test_what_came_back_waits_as_it_came_after_a_refused_letter(known, on_hold):
    """Attempts, how they were used up, and the hold are as they were."""
    desk = lane_with_one_that_waits(**known)
    assert desk.letters() == [1]
    desk.answer_letters(ErrorInfo("TopicAuthorization", "no"))
    (one,) = desk.part.memory.entries(3, (), desk.engine.state.now, 0.0)[-1:]
    assert (one.offset, one.attempts, one.parked) == (2, 1, False)
    assert one.exhausted_by == known.get("exhausted_by", one.exhausted_by)
    assert (desk.part.retrying, desk.part.on_hold) == (1, on_hold)
    assert desk.part.exports == {}


def test_what_comes_back_goes_behind_what_is_in_its_lane():
    """The head is in the log no more, and one of its batch, kept whole, goes before the shelf."""
    batched = replace(spec(after_s=1.0), batch=Batch(2, 0.0))
    desk = Relief(batched)
    desk.poll(desk.part, 0, 1, 2)
    both = desk.started()
    failed = [Failed(work, ERROR) for work in both]
    desk.do("batch_ended", 0, (), failed, whole=True, call=both[0].call)
    desk.pass_time(10.0)
    (first,) = desk.started()
    desk.do("batch_ended", 0, (), [Failed(first, ERROR)], whole=True, call=first.call)
    desk.pass_time(1.1)
    assert desk.asked() == [0, 2]
    desk.came(2)
    assert desk.finish() == [1, 2]
