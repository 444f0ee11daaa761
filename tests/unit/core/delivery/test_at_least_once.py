"""At least once: outputs and dead letters are stored before a record is done."""

from __future__ import annotations

from tests.unit.core.conftest import ERROR, offsets

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Returned
from perkey.policies import DeadLetter, Retry
from perkey.types import Sent


def test_record_is_done_when_its_outputs_are_acknowledged(make_desk):
    """Until then the lane waits and the frontier stays."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert (desk.started(), part.frontier) == ([], 0)
    desk.do("outputs_answered", [(work, (Sent("o", 0, 0, None),), None)])
    assert (offsets(desk.started()), part.frontier) == ([1], 1)


def test_refused_dead_letter_parks_the_record(make_desk):
    """A dead letter that the broker does not take is no reason to go on."""
    spec = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=DeadLetter("{topic}.dlq"))
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    assert [effect.topic for effect in desk.take(fx.SendDeadLetter)] == ["t.dlq"]
    desk.do("outputs_answered", [(work, (), ERROR)])
    assert (part.parked, part.frontier, desk.started()) == (1, 0, [])
