"""`Park(dead_letter=)`: which parked records are given up, when, and what becomes of their lane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.conftest import ERROR
from tests.unit.core.test_memory import UNIX_S
from tests.unit.core.test_shelves import Parking

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core.endings import REFUSED_S
from perkey.core.events import EXACTLY_ONCE, Command, Decided, Failed, HandlerSpec, Target
from perkey.core.gates import OUTAGE
from perkey.core.retries import LOOK_S
from perkey.core.work import USED_UP, HeldBy
from perkey.policies import Hold, Park, Retry
from perkey.types import ErrorInfo

#: the span of the map in which records start without a count: 0.75 of its bits
NEAR = 18_396
REFUSED = ErrorInfo("TopicAuthorization", "no")


def spec(**when: float) -> HandlerSpec:
    """One attempt, then parked until this."""
    park = Park(None, "{topic}.dlq", **when)
    return HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=park)


class Relieved(Parking):
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

    def fetch(self) -> None:
        """What is asked for arrives, if anything is."""
        if [e for e in self.effects if isinstance(e, fx.Refetch)]:
            self.came(*self.asked())

    def finish(self) -> list[int]:
        """All letters are taken and all requests answered; the offsets in their order."""
        order = []
        for _ in range(100):
            self.fetch()
            found = self.letters()
            if not found:
                break
            assert len(found) == 1
            order += found
            self.answer_letters()
        return order

    @property
    def transaction(self) -> fx.Transact:
        """The last one that was requested."""
        return [e for e in self.effects if isinstance(e, fx.Transact)][-1]

    def transact(self) -> None:
        """It is committed."""
        sequence = self.transaction.sequence
        self.effects = [e for e in self.effects if not isinstance(e, fx.Transact)]
        self.do("transacted", sequence, committed=True)

    def park_lanes(self, *offsets: int) -> None:
        """Each in a lane of its own, without a key."""
        for offset in offsets:
            self.park(offset, key=None)

    def fill_to(self, span: int) -> None:
        """Records of another key are done, so that the map spans so many offsets."""
        self.poll(self.part, span - 1, key=b"other")
        self.do("calls_ended", self.started())


@pytest.mark.parametrize(("span", "given_up"), [(99, []), (100, [0]), (101, [0])])
def test_a_record_is_given_up_when_the_share_is_reached(span, given_up):
    """Not one offset before that."""
    desk = Relieved(spec(at_map=100 / NEAR))
    desk.park_lanes(0)
    desk.fill_to(span)
    desk.pass_time(LOOK_S)
    assert desk.finish() == given_up


def test_a_full_map_gives_up_one_after_another_the_oldest_first_until_there_is_room():
    """What is younger stays parked."""
    desk = Relieved(spec(at_map=100 / NEAR))
    desk.park_lanes(0, 20, 40, 80)
    desk.fill_to(130)
    desk.pass_time(LOOK_S)
    assert desk.finish() == [0, 20]
    assert desk.part.parked == 2


@pytest.mark.parametrize(("after", "given_up"), [(9.9, []), (10.0, [0]), (10.1, [0])])
def test_a_record_is_given_up_when_it_has_been_parked_for_after_s(after, given_up):
    """Not before."""
    desk = Relieved(spec(after_s=10.0))
    desk.park_lanes(0)
    desk.pass_time(after)
    assert desk.finish() == given_up


def test_of_those_whose_time_is_over_the_oldest_goes_first():
    """The next one when its letter is stored."""
    desk = Relieved(spec(after_s=1.0))
    desk.park_lanes(0, 1, 2)
    desk.pass_time(1.5)
    desk.fetch()
    assert desk.letters() == [0]
    sent = desk.sent
    desk.pass_time(5.0)
    assert desk.letters() == []
    desk.sent = sent
    desk.answer_letters()
    desk.fetch()
    assert desk.letters() == [1]


def test_the_lane_continues_with_the_next_record():
    """Only the parked record is given up, with its own error; those behind it are handled."""
    desk = Relieved(spec(after_s=10.0))
    desk.park(0, 1, 2)
    desk.pass_time(10.5)
    desk.fetch()
    assert desk.letters() == [0]
    assert desk.errors == [ERROR]
    assert desk.started() == []
    desk.answer_letters()
    handled = []
    while works := desk.started():
        handled += [work.record.offset for work in works]
        desk.do("calls_ended", works)
        desk.fetch()
    assert handled == [1, 2]
    assert desk.part.frontier == 3


def test_a_refused_letter_leaves_its_record_parked_and_is_tried_again_later():
    """Meanwhile the next oldest goes; its own lane waits."""
    desk = Relieved(spec(after_s=1.0))
    desk.park_lanes(0, 1)
    desk.pass_time(1.5)
    desk.fetch()
    assert desk.letters() == [0]
    desk.answer_letters(REFUSED)
    assert desk.finish() == []
    desk.pass_time(LOOK_S)
    assert desk.finish() == [1]
    desk.pass_time(REFUSED_S - 1.0)
    assert (desk.finish(), desk.part.parked) == ([], 1)
    desk.pass_time(1.0)
    assert desk.finish() == [0]


def test_a_refused_letter_does_not_wait_for_after_s_once_more():
    """It may be just less than the retention, which would delete the record meanwhile."""
    desk = Relieved(spec(after_s=1_000.0))
    desk.park_lanes(0)
    desk.pass_time(1_000.5)
    desk.fetch()
    assert desk.letters() == [0]
    desk.answer_letters(REFUSED)
    desk.pass_time(REFUSED_S - 1.0)
    assert desk.finish() == []
    desk.pass_time(1.5)
    assert desk.finish() == [0]


def test_a_letter_that_was_refused_for_the_map_keeps_the_time_of_its_record():
    """It is given up for the map again, or when it has been parked for so long."""
    desk = Relieved(spec(at_map=100 / NEAR, after_s=1_000.0))
    desk.park_lanes(0, 1)
    desk.fill_to(105)
    desk.pass_time(LOOK_S)
    desk.fetch()
    assert desk.letters() == [0]
    desk.answer_letters(REFUSED)
    (work,) = [work for work in desk.part.works() if work.offset == 0]
    assert work.failure.due == 1_000.0


def test_a_time_that_is_over_survives_a_restart():
    """Of a record that was paused, say: it is not parked for as long again."""
    desk = Relieved(spec(after_s=10.0))
    desk.park(0)
    desk.do("pause", "t", on=True)
    desk.pass_time(15.0)
    (known,) = desk.part.memory.entries(desk.part.position, (), desk.now, UNIX_S)
    assert (known.parked, known.until_s) == (True, int(UNIX_S) + 10)
    again = Relieved(spec(after_s=10.0), remembered=(known,), committed=0, unix_s=UNIX_S + desk.now)
    again.poll(again.part, 0)
    again.pass_time(LOOK_S)
    assert again.finish() == [0]


def test_what_was_released_after_a_refused_letter_is_handled_and_parked_again():
    """Its attempts start over, and so does its time."""
    desk = Relieved(spec(after_s=1.0))
    desk.park(0)
    desk.pass_time(1.5)
    desk.fetch()
    desk.letters()
    desk.answer_letters(REFUSED)
    assert desk.command("release", 0).outcome == "released"
    desk.fetch()
    works = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in works])
    assert (desk.letters(), desk.part.parked) == ([], 1)


def test_a_record_that_was_held_on_its_way_can_be_retried():
    """Its attempts start over and no letter is sent, although the next one went meanwhile."""
    desk = Relieved(spec(after_s=1.0))
    desk.park_lanes(0, 1)
    desk.pass_time(1.5)
    assert desk.asked() == [0]
    hold = Command("hold", Target("t", None, 0, 0), until_s=60.0, reason="test")
    desk.do("obey", [hold], 0.0)
    desk.came(0, key=None)
    desk.pass_time(LOOK_S)
    assert desk.finish() == [1]
    assert desk.command("retry", 0).outcome == "released"
    desk.fetch()
    assert [work.record.offset for work in desk.started()] == [0]
    assert desk.letters() == []


def test_a_record_on_its_way_to_the_topic_can_be_skipped():
    """It is done without a letter, and the next one goes."""
    desk = Relieved(spec(after_s=1.0))
    desk.park_lanes(0, 1)
    desk.pass_time(1.5)
    desk.asked()
    assert desk.command("skip", 0).outcome == "later"
    desk.came(0, key=None)
    desk.pass_time(LOOK_S)
    assert desk.finish() == [1]


@pytest.mark.parametrize("when", ["before", "while it is fetched"])
def test_a_held_record_is_not_given_up_before_its_hold_is_over(when):
    """A person decides about it until then."""
    desk = Relieved(spec(after_s=1.0))
    desk.park(0)
    hold = Command("hold", Target("t", b"k"), "1", UNIX_S + 20.0)
    if when != "before":
        desk.pass_time(1.5)
        desk.asked()
        desk.do("obey", [hold], UNIX_S + desk.engine.state.now)
    else:
        desk.part.set_hold(b"k", HeldBy(20.0))
    desk.pass_time(10.0)
    assert desk.finish() == []
    desk.pass_time(20.0)
    if when != "before":
        desk.came(0)
    assert desk.finish() == [0]


def test_the_time_survives_a_restart():
    """It is part of the commit, as that of a release; the letter has the error that is known."""
    remembered = (Remembered(0, 1, parked=True, exhausted_by="attempts", until_s=8),)
    desk = Relieved(spec(after_s=100.0), remembered=remembered, committed=0)
    desk.poll(desk.part, 0)
    desk.pass_time(7.5)
    assert desk.finish() == []
    desk.pass_time(1.0)
    desk.fetch()
    assert (desk.letters(), desk.errors) == ([0], [USED_UP])


def test_a_record_that_the_log_has_no_more_counts_as_skipped():
    """Its lane continues, and the next record is given up."""
    desk = Relieved(spec(after_s=1.0))
    desk.park_lanes(0, 1)
    desk.pass_time(1.5)
    desk.asked()
    desk.came()
    assert desk.part.handler.skipped == 1
    desk.pass_time(LOOK_S)
    assert desk.finish() == [1]


def test_a_function_may_return_such_a_park():
    """The record it returned that for is given up."""
    policy = Park(None, "{topic}.dlq", after_s=1.0)
    asks = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=lambda record, error: policy)
    desk = Relieved(asks)
    desk.park(0)
    (asked,) = [e for e in desk.effects if isinstance(e, fx.AskExhausted)]
    desk.do("decided", [Decided(asked.work, asked.number, policy)])
    desk.pass_time(1.5)
    assert desk.finish() == [0]


def test_a_record_that_came_parked_has_no_time_by_a_later_answer_of_the_function():
    """Which one it was parked with is not known; the map's share applies to it."""
    policy = Park(None, "{topic}.dlq", at_map=100 / NEAR, after_s=1.0)
    asks = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=lambda record, error: policy)
    came = (Remembered(0, 1, parked=True, exhausted_by="attempts"),)
    desk = Relieved(asks, remembered=came, committed=0)
    desk.poll(desk.part, 0, key=None)
    desk.park(1, key=None)
    (asked,) = [e for e in desk.effects if isinstance(e, fx.AskExhausted)]
    desk.do("decided", [Decided(asked.work, asked.number, policy)])
    desk.pass_time(1.5)
    assert desk.finish() == [1]
    desk.fill_to(100)
    desk.pass_time(LOOK_S)
    assert desk.finish() == [0]


def test_a_paused_partition_gives_nothing_up():
    """Until it is resumed."""
    desk = Relieved(spec(after_s=1.0))
    desk.park(0)
    desk.do("pause", "t", on=True)
    desk.pass_time(1.5)
    assert desk.finish() == []
    desk.do("pause", "t", on=False)
    desk.pass_time(LOOK_S)
    assert desk.finish() == [0]


def test_a_letter_waits_for_no_outage():
    """What the handler calls is away, and the dead-letter topic is not."""
    desk = Relieved(replace(spec(after_s=1.0), hold=Hold(on=(OSError,))))
    desk.park(0)
    desk.poll(desk.part, 1, key=b"another")
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR, None, away=True)])
    assert desk.engine.state.handlers[0].gate.reasons == {OUTAGE}
    desk.pass_time(1.5)
    assert desk.finish() == [0]


def test_with_exactly_once_the_letter_is_in_the_transaction():
    """The next record is given up when that is committed."""
    desk = Relieved(replace(spec(after_s=1.0), delivery=EXACTLY_ONCE))
    desk.park_lanes(0, 1)
    desk.pass_time(1.5)
    desk.transact()
    desk.fetch()
    desk.pass_time(2.0)
    (item,) = desk.transaction.items
    assert [(w.record.offset, type(w.outputs)) for w in item.claims] == [(0, fx.SendDeadLetter)]
    assert not [e for e in desk.effects if isinstance(e, fx.Refetch)]
    desk.transact()
    desk.pass_time(LOOK_S)
    assert desk.asked() == [1]


def test_without_a_topic_nothing_is_given_up():
    """However full the map is."""
    desk = Relieved(replace(spec(), on_exhausted=Park()))
    desk.park_lanes(0)
    desk.fill_to(NEAR)
    desk.pass_time(LOOK_S)
    assert (desk.finish(), desk.part.parked) == ([], 1)
