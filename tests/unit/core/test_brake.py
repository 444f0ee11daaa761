"""A handler that holds when too many of its records use up their attempts."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Failed, HandlerSpec
from perkey.core.gates import Flood
from perkey.policies import Brake, DeadLetter, Retry

BRAKE = Brake(share=0.5, over_s=60, at_least=4, probe_s=5)


def handler(**options) -> HandlerSpec:
    """Unordered records, one attempt, then dead-lettered."""
    given = {"concurrency": 2, "retry": Retry(1), "on_exhausted": DeadLetter("dead"), **options}
    return HandlerSpec("h", ordering="unordered", brake=BRAKE, **given)


def began(make_desk, **options):
    """A desk with 20 records."""
    desk = make_desk(handler(**options))
    (part,) = desk.assign(0)
    desk.poll(part, *range(20))
    return desk


def end(desk, good: int, bad: int) -> None:
    """So many calls return, and so many fail for good, one after another."""
    for count, ends in ((good, True), (bad, False)):
        for _ in range(count):
            work = desk.under_way[0]
            failed = [] if ends else [Failed(work, ERROR)]
            desk.do("calls_ended", [work] if ends else [], failed)
            desk.under_way.remove(work) if work in desk.under_way else None


def letters(desk) -> int:
    """Dead letters so far."""
    return len(desk.take(fx.SendDeadLetter))


@pytest.mark.parametrize(("good", "bad", "held"), [(0, 3, 0), (0, 4, 1), (3, 2, 0), (3, 3, 1)])
def test_it_holds_at_the_share_and_not_below_at_least(make_desk, good, bad, held):
    """Of at least four records, half of them."""
    desk = began(make_desk)
    end(desk, good, bad)
    assert len(desk.engine.handlers[0].outages) == held


def test_nothing_more_is_dead_lettered_but_what_probes(make_desk):
    """What runs is spared; each probe is given up as ever, one every `probe_s`."""
    desk = began(make_desk)
    end(desk, 0, 4)
    assert letters(desk) == 4
    (spared,) = [work for work in desk.under_way if work.state == states.RUNNING]
    desk.do("calls_ended", [], [Failed(spared, ERROR)])
    assert letters(desk) == 0
    assert (spared.state, spared.failure.shared) == (states.QUEUED, 1)
    for _ in range(3):
        desk.pass_time(5.0)
        (probe,) = desk.started()
        desk.do("calls_ended", [], [Failed(probe, ERROR)])
        assert letters(desk) == 1


def test_a_probe_that_succeeds_ends_it_and_the_count_begins_anew(make_desk):
    """All continue; three more exhausted records are too few."""
    desk = began(make_desk)
    end(desk, 0, 4)
    (other,) = [work for work in desk.under_way if work.state == states.RUNNING]
    desk.do("calls_ended", [other])
    desk.take(object)
    desk.pass_time(5.0)
    (probe,) = desk.started()
    desk.do("calls_ended", [probe])
    works = desk.started()
    assert len(works) == 2
    assert not desk.engine.handlers[0].outages
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in works])
    assert not desk.engine.handlers[0].outages


def test_it_is_ended_by_a_person(make_desk):
    """`perkey resume` lets the records of a handler go."""
    desk = began(make_desk)
    end(desk, 0, 4)
    desk.take(object)
    desk.do("end_outages", [0])
    assert len(desk.started()) == 1
    assert not desk.engine.handlers[0].outages


def test_at_most_once_gives_up_what_runs(make_desk):
    """Nothing is called twice."""
    desk = make_desk(handler(delivery="at_most_once", concurrency=6))
    (part,) = desk.assign(0)
    desk.poll(part, *range(20))
    (effect,) = desk.take(fx.CommitOffsets)
    desk.answer(effect)
    works = desk.under_way
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in list(works)])
    assert letters(desk) == 6


def test_records_that_wait_for_a_retry_are_not_exhausted(make_desk):
    """Only the last attempt counts."""
    desk = began(make_desk, retry=Retry(2, 1.0))
    end(desk, 0, 4)
    assert not desk.engine.handlers[0].outages


def test_old_records_do_not_count():
    """What ended before `over_s`, and a twelfth of it at most, is out."""
    flood = Flood(BRAKE)
    for _ in range(3):
        flood.add(0.0, 0)
    for second in range(5, 70, 5):
        flood.look(float(second), 0)
    assert flood.counts(0) == (0, 0)
    assert not flood.add(70.0, 0)
    assert flood.counts(7) == (1, 8)
