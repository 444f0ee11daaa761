"""A member that runs for months sees thousands of epochs: nothing of an ended one is kept."""

from __future__ import annotations

import gc

import pytest
from tests.unit.core.conftest import ERROR

from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Returned
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.policies import Batch, Retry, Skip

SHORT = "short-lived"

ONCE = {"retry": Retry(attempts=1), "on_exhausted": Skip()}
LATER = {"retry": Retry(delay_s=1e6)}
HANDLERS = {
    "plain": LATER,
    "by key": {"ordering": "key", **LATER},
    "each": {"commit_each": True, **LATER},
    "at most once": {"delivery": "at_most_once", **ONCE},
    "exactly once": {"delivery": "exactly_once", **LATER},
    "batches": {"batch": Batch(3, 60.0), **LATER},
    "batches of a partition": {"batch": Batch(3, 60.0, by="partition"), **LATER},
    "batches exactly once": {"delivery": "exactly_once", "batch": Batch(3, 60.0), **LATER},
    "batches at most once": {"delivery": "at_most_once", "batch": Batch(3, 60.0), **ONCE},
}


@pytest.fixture(autouse=True)
def what_was_there_before_is_not_looked_through():
    """Half a second a look with all tests in memory."""
    gc.freeze()
    yield
    gc.unfreeze()


def started(desk) -> list[fx.Start]:
    """Calls since the last look; started-marks are stored meanwhile."""
    calls = []
    for _ in range(3):
        effects, desk.effects = desk.effects, []
        for effect in effects:
            if isinstance(effect, fx.CommitOffsets):
                desk.answer(effect)
            elif isinstance(effect, fx.Start):
                calls.append(effect)
            elif isinstance(effect, fx.Transact):
                end(desk, effect)
            elif isinstance(effect, fx.Send) and effect.work.record.topic != SHORT:
                desk.do("outputs_answered", [(effect.work, (), None)])
    return calls


def end(desk, effect: fx.Transact) -> None:
    """Aborted for what is in it, as long as there is anything of a short life."""
    works = [work for item in effect.items for work in item.claims]
    bad = any(work.record.topic == SHORT for work in works)
    sent = [(work, ()) for work in works if work.outputs is not None]
    reason = ERROR if bad else None
    desk.do("transacted", effect.sequence, committed=not bad, sent=sent, reason=reason)


def over(desk, call: fx.Start, handled: list[Work], failed: list[Work]) -> None:
    """The call ends: some return outputs, some fail, the others are plainly done."""
    ended = [Returned(work, ["out"]) for work in handled]
    ended += [Failed(work, ERROR) for work in failed]
    done = [work for work in call.works if work not in handled and work not in failed]
    if call.together:
        desk.do("batch_ended", 0, done, ended)
    else:
        desk.do("calls_ended", done, ended)


def life(desk) -> None:
    """Partitions come, get far more than they can handle, and are lost in the middle of it."""
    parts = desk.assign(0, 1, topic=SHORT)
    for part in parts:
        desk.poll(part, *range(0, 60, 2), key=None)
        desk.poll(part, *range(60, 64), key=b"k")
    for number, call in enumerate(started(desk)):
        over(desk, call, call.works[::3] if number % 2 else [], call.works[1::3])
    running = started(desk)
    desk.pass_time(2.0)  # these are overdue
    running += started(desk)
    desk.do("closed", parts, lost=True)
    for call in [*running, *started(desk)]:
        over(desk, call, [], [])


@pytest.mark.parametrize("name", HANDLERS)
def test_nothing_of_an_ended_epoch_is_kept(make_desk, name):
    """Not by what waited, failed, ran too long, was paused, aborted or found no room in its map."""
    options = {"ordering": "unordered", **HANDLERS[name]}
    limits = Limits(buffer_records=50, map_chars=12, commit_retry_s=0.01)
    desk = make_desk(
        HandlerSpec("h", concurrency=6, timeout_s=1.0, **options), limits=limits, size_bytes=10
    )
    (stays,) = desk.assign(0, topic="stays")
    for turn in range(3):
        life(desk)
        desk.poll(stays, turn, key=None)
        for _ in range(100):
            for call in started(desk):
                over(desk, call, call.works, [])
            desk.pass_time(1.0)
    assert stays.offsets.frontier > 0
    desk.effects = []
    gc.collect()
    left = [o for o in gc.get_objects() if isinstance(o, Partition) and o.topic == SHORT]
    assert left == []
    assert desk.engine.state.handlers[0].slots.taken == 0


@pytest.mark.parametrize("options", [{}, {"commit_each": True}, {"delivery": "exactly_once"}])
def test_a_call_that_outlives_its_epoch_keeps_its_own_record_alone(make_desk, options):
    """It may run for hours: what waited in its partition is not held for as long."""
    desk = make_desk(HandlerSpec("h", concurrency=1, **options))
    (part,) = desk.assign(0, topic=SHORT)
    desk.poll(part, 0)
    desk.poll(part, 1, 2, 3, key=b"other")
    desk.poll(part, 4, 5, key=None)
    (running,) = desk.started()
    desk.do("closed", [part])
    desk.take(object)
    gc.collect()
    held = [o for o in gc.get_objects() if isinstance(o, Work) and o.record.topic == SHORT]
    assert [work for work in held if work.partition is part] == [running]
    assert (part.lanes.tails, part.offsets.buffered, part.commit.claims) == ({}, 0, [])
