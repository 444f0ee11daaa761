"""Which budget pays for a lane, whatever becomes of its records."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, in_batches, offsets

from perkey.core import effects as fx
from perkey.core.events import Command, Decided, Failed, HandlerSpec, Returned, Target
from perkey.core.work import Failure
from perkey.policies import DeadLetter, Park, Retry, Skip
from perkey.runtime.run.drain import passed

EXACT = HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=5, delay_s=1.0, jitter=0.0))


@pytest.fixture(autouse=True)
def _records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of failures is charged, too (test_failing_memory.py): here it is nothing."""
    monkeypatch.setattr(Failure, "uncharged", lambda _failure: 0)


def decide(record, error):
    """The core never calls it."""
    raise AssertionError


def charged(part) -> tuple[int, int]:
    """Records and bytes that the budget of failing lanes pays for."""
    return (part.lanes.blocked_records, part.lanes.blocked_bytes)


def test_failing_head_moves_its_whole_lane(make_desk):
    """What waits behind it, and what joins later, is charged with it; other lanes are not."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, size=10)
    desk.poll(part, 2, key=b"other", size=1000)
    first, _ = desk.started()
    desk.do("calls_ended", [], [Failed(first, ERROR)])
    assert charged(part) == (2, 20)
    desk.poll(part, 3, size=5)
    assert charged(part) == (3, 25)


def test_lane_is_healthy_again_when_its_head_is_done(make_desk):
    """The rest of the lane goes back to the other budget, and can fail once more."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=1.0, jitter=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, size=10)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.pass_time(1.0)
    assert charged(part) == (3, 30)  # until it is done
    desk.do("calls_ended", desk.started())
    assert charged(part) == (0, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert charged(part) == (2, 20)


def test_skipped_head_frees_its_lane(make_desk):
    """Given up by its policy it is charged no more."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=2, delay_s=0.0), on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, size=10)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.pass_time(0.0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert (charged(part), offsets(desk.started())) == ((0, 0), [1])


def refused(desk, part, *works) -> None:
    """These return outputs that the broker does not take."""
    desk.take(object)
    desk.do("calls_ended", [], [Returned(work, ["out"]) for work in works])
    (sent,) = [one for one in desk.effects if isinstance(one, fx.Transact)]
    desk.do("transacted", sent.sequence, committed=False, refused=[(w, ERROR) for w in works])


def test_refused_record_is_charged_alone(make_desk):
    """exactly_once: its lane has gone on past it, and is as healthy as before."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, size=10)
    refused(desk, part, *desk.started())
    assert charged(part) == (1, 10)


def test_refused_record_is_charged_no_more_once_it_rejoins_its_lane(make_desk):
    """At the lane's end it waits like any other, until it fails again."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, size=10)
    first = desk.started()[0]
    refused(desk, part, first)
    desk.pass_time(1.0)
    assert (charged(part), first.charge) == ((0, 0), None)
    (second,) = desk.started()
    desk.do("calls_ended", [], [Failed(second, ERROR)])  # with 2 and 0 behind it
    assert charged(part) == (3, 30)


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
def test_refused_record_that_rejoins_runs_again(make_desk, ordering):
    """Behind what its lane holds, or at once where it holds nothing; and it is done in the end."""
    spec = HandlerSpec("h", ordering=ordering, delivery="exactly_once", retry=EXACT.retry)
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first = desk.started()[0]
    refused(desk, part, first)
    others = desk.started()
    desk.pass_time(1.0)
    if ordering != "unordered":
        assert desk.started() == []
        desk.do("calls_ended", others)
    (again,) = desk.started()
    assert (again, again.record.attempt) == (first, 2)


def test_rejoined_record_pays_for_a_lane_that_fails_meanwhile(make_desk):
    """A lane with a failing head takes the record into its charge when it comes back."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, size=10)
    (first,) = desk.started()
    refused(desk, part, first)
    desk.now = 0.5
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert charged(part) == (2, 20)
    desk.pass_time(0.5)
    assert charged(part) == (2, 20)  # no lane of its own any more, but behind the failing one
    assert first.charge is not None


def test_record_refused_twice_is_charged_once(make_desk):
    """Each time it leaves the lane its charge goes with it."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, size=10)
    for seconds in (1.0, 2.0):
        refused(desk, part, *desk.started())
        assert charged(part) == (1, 10)
        desk.pass_time(seconds)
        assert charged(part) == (0, 0)
        *_, nothing = [one for one in desk.effects if isinstance(one, fx.Transact)]
        assert nothing.items[0].claims == []
        desk.do("transacted", nothing.sequence, committed=True)


def test_lane_of_a_dead_letter_is_charged_until_it_is_stored(make_desk):
    """Its head has failed, and the lane waits for the broker."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=DeadLetter("dlq")))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, size=10)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    assert charged(part) == (2, 20)
    desk.do("outputs_answered", [(work, (), None)])
    assert charged(part) == (0, 0)


def test_lane_of_a_parked_record_reports_that_it_is_parked(make_desk):
    """One that waits for its next attempt moves again; one that is parked does not."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=2, delay_s=1.0, jitter=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, size=10)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    assert (work.charge.blocked, work.charge.parked) == (True, False)
    desk.pass_time(1.0)
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    assert (work.charge.blocked, work.charge.parked) == (True, True)
    assert (charged(part), work.next.charge) == ((2, 20), work.charge)


def test_a_lane_whose_second_record_failed_first_is_charged_once(make_desk):
    """Both were in one batch, and their outputs were refused the later one first."""
    desk = make_desk(
        in_batches(2, ack="explicit", retry=Retry(attempts=5, delay_s=1.0, jitter=0.0))
    )
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, size=10)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, ["out"]) for work in effect.works])
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert charged(part) == (0, 0)
    desk.do("outputs_answered", [(first, (), ERROR)])
    assert charged(part) == (3, 30)
    assert first.charge is second.charge


@pytest.mark.parametrize("policy", [Park(), decide])
def test_a_record_that_its_lane_went_past_is_charged_until_it_is_done(make_desk, policy):
    """exactly_once: its output was refused, it waited, and then it was skipped."""
    spec = HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=1), on_exhausted=policy)
    desk = make_desk(spec)
    (part,) = desk.assign(0, unix_s=0.0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.take(object)
    desk.do("calls_ended", [], [Returned(work, ["output"])])
    (transaction,) = desk.take(fx.Transact)
    desk.do("transacted", transaction.sequence, committed=False, refused=[(work, ERROR)])
    assert part.lanes.blocked_records == 1
    if policy is decide:
        (question,) = desk.take(fx.AskExhausted)
        desk.do("decided", [Decided(work, question.number, Skip())])
    else:
        desk.do("obey", [Command("skip", Target("t", None, 0, 0), "1")], 0.0)
    desk.pass_time(1.0)
    (transaction,) = desk.take(fx.Transact)
    desk.do("transacted", transaction.sequence, committed=True)
    assert (part.lanes.blocked_records, part.lanes.blocked_bytes, part.bytes) == (0, 0, 0)


@pytest.mark.parametrize("later", ["refused", "done"])
def test_what_ends_behind_a_parked_head_leaves_its_lane_parked(make_desk, later):
    """Of one batch: else a drain took the record behind it for one that still moves, for ever."""
    retry = Retry(attempts=2, delay_s=1.0, jitter=0.0)
    desk = make_desk(in_batches(3, ack="explicit", retry=retry))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, size=10)
    (effect,) = desk.take(fx.Start)
    head, mate, last = effect.works
    sent = [Returned(work, ["its own"]) for work in (mate, last)]
    desk.do("batch_progressed", [], sent)
    desk.do("batch_ended", 0, [], [Failed(head, ERROR, final=True)])
    desk.do("outputs_answered", [(mate, (), ERROR)])
    desk.do("outputs_answered", [(last, (), ERROR if later == "refused" else None)])
    left = 3 if later == "refused" else 2
    assert (part.parked, charged(part)) == (1, (left, 10 * left))
    desk.pass_time(5.0)
    assert passed(part, 3)
