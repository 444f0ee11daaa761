"""At most once: marked before the call, and never called twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.conftest import ERROR, batches, in_batches, offsets

from perkey.core import effects as fx
from perkey.core.events import Answer, Failed, HandlerSpec, Returned, Unhandled
from perkey.policies import Batch, Retry, Skip

ONCE = HandlerSpec(
    "h",
    ordering="unordered",
    delivery="at_most_once",
    retry=Retry(attempts=1),
    on_exhausted=Skip(),
    concurrency=2,
)


def test_marked_before_it_starts(make_desk):
    """The handler sees a record after the broker has stored that it started."""
    desk = make_desk(ONCE)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    assert (desk.started(), sent.items[0].frontier) == ([], 1)
    desk.answer(sent)
    assert offsets(desk.started()) == [0]


def test_mark_is_withdrawn_when_the_partition_goes(make_desk):
    """What was marked and never began is not in the last commit: the next owner handles it."""
    desk = make_desk(ONCE)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("revoking", [part])
    desk.answer(sent)
    assert desk.started() == []
    assert [item.frontier for item in desk.do("last_commit", [part]).items] == [0]


def test_call_that_never_began_takes_its_mark_back(make_desk):
    """A worker that died before the call gives the record back; it is marked anew."""
    desk = make_desk(ONCE)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.answer(desk.take(fx.CommitOffsets)[0])
    (work,) = desk.started()
    desk.do("calls_ended", [], [Unhandled(work)])
    (again,) = desk.take(fx.CommitOffsets)
    desk.answer(again)
    assert offsets(desk.started()) == [0]


def test_at_most_once_never_splits(make_desk):
    """A failed batch is final for all of it: nothing is handled twice."""
    once = in_batches(2, delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip())
    desk = make_desk(once)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    desk.answer(desk.take(fx.CommitOffsets)[0])
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(5.0)
    assert (batches(desk), desk.engine.state.handlers[0].skipped) == ([], 2)


def batch_being_marked(make_desk):
    """A batch of two partitions whose started-marks are on the way: desk, partitions, commit."""
    once = in_batches(2, delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip())
    desk = make_desk(once)
    first, second = desk.assign(0, 1)
    desk.poll(first, 0, key=None)
    desk.poll(second, 0, key=None)
    (sent,) = desk.take(fx.CommitOffsets)
    return desk, first, second, sent


def test_mark_of_a_batch_is_withdrawn_with_one_of_its_partitions(make_desk):
    """at_most_once: one partition goes before its marks are stored; the other's records run."""
    desk, stays, goes, sent = batch_being_marked(make_desk)
    desk.do("closed", [goes])
    desk.answer(sent)
    assert [work.partition for work in desk.started()] == [stays]


def test_batch_whose_partitions_all_go_never_starts(make_desk):
    """at_most_once: one mark is stored, another is not, then both partitions are lost."""
    desk, first, second, sent = batch_being_marked(make_desk)
    answers = [Answer(first, sent.sequence, "stored"), Answer(second, sent.sequence, "retry")]
    desk.do("commit_answered", answers)
    desk.do("closed", [first, second], lost=True)
    handler = desk.engine.state.handlers[0]
    assert (batches(desk), handler.slots.free) == ([], handler.spec.concurrency)


def test_outputs_that_are_refused_are_not_recreated(make_desk):
    """The record was handled: it is given up with what the broker said, at its first attempt."""
    desk = make_desk(ONCE)
    desk.engine.report_results(on=True)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.answer(desk.take(fx.CommitOffsets)[0])
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    desk.do("outputs_answered", [(work, (), ERROR)])
    assert [(one.outcome, one.error) for one in desk.take(fx.Finished)] == [("skipped", ERROR)]
    assert (work.attempts, work.outputs) == (1, None)


def test_a_stop_at_once_takes_marks_back(make_desk):
    """What was marked and has not begun is the next owner's."""
    desk = make_desk(ONCE)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("stop", "now")
    desk.answer(sent)
    assert desk.started() == []
    assert [item.frontier for item in desk.do("last_commit", [part]).items] == [0]


@pytest.mark.parametrize("batch", [None, Batch(3, 0.0)])
@pytest.mark.parametrize("map_chars", [0, 8, 12, 16])
def test_marks_that_have_no_room_in_the_map_are_not_made(make_desk, map_chars, batch):
    """Their records wait and hold no slot; each is handled once, and all are in the end."""
    spec = replace(ONCE, concurrency=40, batch=batch)
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    part.commit.map_limit = map_chars
    part.reach.limit = 1_000
    desk.poll(part, *range(60), key=None)
    handled: list[int] = []
    running: list[fx.Start] = []
    for turn in range(400):
        part.reach.limit = 1_000  # as if the broker had lowered its limit just now
        for effect in desk.take((fx.Start, fx.CommitOffsets)):
            if isinstance(effect, fx.CommitOffsets):
                desk.answer(effect)
            else:
                running.append(effect)
                handled += offsets(effect.works)
        if len(handled) >= 60 and not running:
            break
        for call in running[turn % 2 : 2]:  # the oldest only every second time
            running.remove(call)
            event = ("batch_ended", 0) if call.together else ("calls_ended",)
            desk.do(*event, call.works, [])
        desk.pass_time(1.0)
    assert sorted(handled) == list(range(60))
    assert desk.engine.state.handlers[0].slots.taken == 0
