"""What is done is handled again by command: in its lane, once, and no commit knows of it."""

from __future__ import annotations

import pytest
from tests.unit.core.test_commands import RETRY, record
from tests.unit.core.test_memory import ERROR, UNIX_S

from perkey.codec import decode
from perkey.core import effects as fx
from perkey.core.events import Command, Failed, HandlerSpec, Limits, Returned, Target, Unhandled
from perkey.policies import Batch
from perkey.types import Record


@pytest.fixture
def desk(make_desk):
    """A handler with keys; of partition 0 the records 0 and 1 are done, and committed."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (desk.part,) = desk.assign(0, unix_s=UNIX_S)
    done(desk, 0, 1)
    desk.commit()
    return desk


def done(desk, *offsets, key=b"k"):
    """These are polled and handled."""
    desk.poll(desk.part, *offsets, key=key)
    while works := desk.started():
        desk.do("calls_ended", works)


def redo(desk, offset=0, *, key: bytes | None = b"k", there=True):
    """The outcomes that are known at once."""
    found = Record("t", 0, offset, 0, key, b"v") if there else None
    command = Command("redo", record(offset), str(offset), 0.0, "a reason", found)
    desk.do("obey", [command], UNIX_S + desk.now)
    return answers(desk)


def answers(desk):
    """Outcomes and details since the last look."""
    found = [effect for effect in desk.effects if isinstance(effect, fx.Answered)]
    desk.effects = [effect for effect in desk.effects if effect not in found]
    return [(row.outcome, row.offset, row.detail) for effect in found for row in effect.rows]


def run(desk):
    """Offsets that run now, one after the other until nothing is left; no two at once."""
    order = []
    while works := desk.started():
        assert len(works) == 1
        order.append(works[0].record.offset)
        desk.do("calls_ended", works)
    return order


def test_a_record_is_handled_again_and_answered_when_that_is_over(desk):
    """And committed offsets stand still."""
    assert redo(desk) == []
    (work,) = desk.started()
    assert (work.record.offset, work.record.attempt) == (0, 1)
    desk.do("calls_ended", [work])
    assert answers(desk) == [("redone", 0, "a reason")]
    desk.pass_time(2.0)
    assert desk.take(fx.CommitOffsets) == []
    assert (desk.part.frontier, desk.part.bytes) == (2, 0)
    assert desk.engine.handlers[0].plain
    assert desk.engine.handlers[0].done == 3


def test_what_is_queued_of_its_key_goes_after_it(desk):
    """It was before them in the log."""
    desk.do("halt", "outputs", on=True)
    desk.poll(desk.part, 2, 3)
    assert redo(desk, 1) == redo(desk, 0) == []
    desk.do("halt", "outputs", on=False)
    desk.do("tick")
    assert run(desk) == [1, 0, 2, 3]
    assert desk.part.frontier == 4


@pytest.mark.parametrize("behind", [(2,), (2, 3)])
def test_a_call_of_its_key_that_runs_ends_first(desk, behind):
    """Then it runs, then the rest; what comes later is behind it."""
    desk.poll(desk.part, *behind)
    (first,) = desk.started()
    assert redo(desk) == []
    desk.poll(desk.part, 4)
    assert desk.started() == []
    desk.do("calls_ended", [first])
    assert run(desk) == [0, *behind[1:], 4]


def test_other_keys_and_null_keys_do_not_wait(desk):
    """A null key orders with nothing."""
    done(desk, 2, key=None)
    desk.poll(desk.part, 3)
    desk.started()
    assert redo(desk, 2, key=None) == []
    assert [work.record.offset for work in desk.started()] == [2]


def test_a_failure_is_the_answer_and_the_record_stays_done(desk):
    """Without a retry, whatever the policy is."""
    redo(desk)
    desk.poll(desk.part, 2)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert answers(desk) == [("failed", 0, "ValueError: bad: it stays done")]
    assert run(desk) == [2]
    assert (desk.part.frontier, desk.part.parked, desk.part.retrying) == (3, 0, 0)


@pytest.mark.parametrize("refused", [None, ERROR])
def test_its_outputs_are_produced(desk, refused):
    """And waited for; the lane goes on after that."""
    redo(desk)
    desk.poll(desk.part, 2)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["output"])])
    assert answers(desk) == []
    assert desk.started() == []
    desk.do("outputs_answered", [(work, (), refused)])
    assert [what for what, *_ in answers(desk)] == ["failed" if refused else "redone"]
    assert run(desk) == [2]


def test_a_call_that_never_began_is_made_again(desk):
    """It is still the first of its lane."""
    desk.poll(desk.part, 2)
    (first,) = desk.started()
    redo(desk)
    desk.do("calls_ended", [first])
    (work,) = desk.started()
    desk.do("calls_ended", [], [Unhandled(work)])
    assert run(desk) == [0]


def test_a_held_lane_holds_it_too(desk):
    """And it goes on with the release; no commit remembers it."""
    desk.do("halt", "outputs", on=True)
    redo(desk)
    desk.poll(desk.part, 2)
    key = Target("t", b"k")
    desk.do("obey", [Command("hold", key, "h", UNIX_S + desk.now + 50.0)], UNIX_S + desk.now)
    assert [what for what, *_ in answers(desk)] == ["held"]
    desk.do("halt", "outputs", on=False)
    desk.pass_time(2.0)
    assert desk.started() == []
    assert desk.part.memory.entries(desk.part.position, (), desk.now, UNIX_S) == []
    desk.do("obey", [Command("release", key, "r")], UNIX_S + desk.now)
    assert run(desk) == [0, 2]


def test_a_partition_that_goes_away_first_is_the_answer(desk):
    """Running or not; the next epoch knows nothing of it, but for the call that still runs."""
    redo(desk)
    (work,) = desk.started()
    assert redo(desk, 1) == []
    desk.do("closed", [desk.part])
    assert [(what, offset) for what, offset, _ in answers(desk)] == [("lost", 0), ("lost", 1)]
    (desk.part,) = desk.assign(0, start=2)
    assert desk.engine.handlers[0].plain
    desk.poll(desk.part, 2)
    assert desk.started() == []
    desk.do("calls_ended", [work])
    assert answers(desk) == []
    assert run(desk) == [2]


@pytest.mark.parametrize(
    ("prepare", "offset", "words"),
    [
        (lambda desk: None, 0, "under way"),
        (lambda desk: desk.poll(desk.part, 2), 2, "not done"),
        (lambda desk: None, 9, "not done"),
        (lambda desk: desk.do("stop", "in_flight"), 1, "leave"),
    ],
)
def test_what_cannot_be_handled_again_is_refused(desk, prepare, offset, words):
    """In one line, and nothing changes."""
    if words == "under way":
        redo(desk, 0)
        words = "it is handled again now"
    prepare(desk)
    ((outcome, _, detail),) = redo(desk, offset)
    assert outcome == "refused"
    assert words in detail


def test_past_the_end_of_the_log_there_is_nothing_to_retry(desk):
    """Only below the end is `perkey record retry` the cure."""
    done(desk, 2)
    desk.engine.log_ends([(desk.part, 3)])
    ((outcome, offset, detail),) = redo(desk, 3, there=False)
    assert (outcome, offset) == ("refused", 3)
    assert "no such record" in detail


def test_what_the_log_has_no_more_is_refused(desk):
    """Retention."""
    assert redo(desk, there=False) == [("refused", 0, "it is not in its topic (any more)")]


@pytest.mark.parametrize("final", [True, False])
def test_behind_a_record_that_waits_it_is_refused(desk, final):
    """Its key's order would be broken, or it would wait for a person."""
    desk.poll(desk.part, 2)
    failed = [Failed(work, ERROR, final=final) for work in desk.started()]
    desk.do("calls_ended", [], failed)
    ((outcome, _, detail),) = redo(desk)
    assert outcome == "refused"
    assert f"offset 2 of its key goes first, and is {'parked' if final else 'retrying'}" in detail


def test_what_is_handled_once_at_most_is_not_handled_again(make_desk):
    """One line says so, and what to do."""
    desk = make_desk(HandlerSpec("h", delivery="at_most_once"))
    (desk.part,) = desk.assign(0, start=5)
    ((outcome, _, detail),) = redo(desk)
    assert outcome == "refused"
    assert "delivery=at_most_once, which handles no record twice" in detail
    assert "perkey dlq replay" in detail


# -- exactly_once ----------------------------------------------------------------------------------


@pytest.fixture
def exact(make_desk):
    """Transactions; records 0 and 1 are done, and committed."""
    desk = make_desk(HandlerSpec("h", delivery="exactly_once", retry=RETRY))
    (desk.part,) = desk.assign(0, start=2, unix_s=UNIX_S)
    return desk


def transacted(desk, *, committed=True, refused=()):
    """The transaction at hand ends; the one commit that is in it."""
    (sent,) = desk.take(fx.Transact)
    desk.do("transacted", sent.sequence, committed=committed, refused=refused)
    (item,) = sent.items
    return item


def test_what_it_returns_goes_into_a_transaction_that_moves_no_offset(exact):
    """The answer comes when that is committed; the commit differs by its mark alone."""
    redo(exact)
    (work,) = exact.started()
    exact.do("calls_ended", [], [Returned(work, ["again"])])
    assert answers(exact) == []
    (sent,) = exact.take(fx.Transact)
    exact.do("transacted", sent.sequence, committed=False)
    assert answers(exact) == []
    exact.pass_time(1.0)
    item = transacted(exact)
    told = decode(item.frontier, item.metadata, log_end=2)
    assert (item.frontier, told.highest_seen, told.not_done, told.rider.problem) == (2, 1, (), "")
    assert [one.outputs for one in item.claims] == [["again"]]
    assert item.metadata == sent.items[0].metadata != ""
    assert answers(exact) == [("redone", 0, "a reason")]
    assert (exact.part.redone, exact.part.bytes) == ({}, 0)


def test_its_mark_is_its_own(exact):
    """How a transaction of it ended is seen by the offsets, whatever was committed before."""
    marks = set()
    for offset in (0, 1):
        redo(exact, offset)
        (work,) = exact.started()
        exact.do("calls_ended", [], [Returned(work, ["again"])])
        marks.add(transacted(exact).metadata)
        answers(exact)
    assert len(marks) == 2


def test_refused_outputs_are_the_answer(exact):
    """It is not tried again, and its lane has gone on."""
    redo(exact)
    exact.poll(exact.part, 2)
    (work,) = exact.started()
    exact.do("calls_ended", [], [Returned(work, ["again"])])
    (sent,) = [effect for effect in exact.effects if isinstance(effect, fx.Transact)]
    (following,) = exact.started()
    assert following.record.offset == 2
    exact.do("transacted", sent.sequence, committed=False, refused=[(work, ERROR)])
    ((outcome, offset, detail),) = answers(exact)
    assert (outcome, offset) == ("failed", 0)
    assert detail == "ValueError: bad: it stays done"
    assert (exact.part.redone, exact.part.outputs_bytes) == ({}, 0)


def test_one_after_the_other_of_a_lane(exact):
    """The second runs while the outputs of the first wait, and theirs come in this order."""
    redo(exact, 0)
    redo(exact, 1)
    handled = []
    while works := [w for e in exact.effects if isinstance(e, fx.Start) for w in e.works]:
        exact.effects = [e for e in exact.effects if not isinstance(e, fx.Start)]
        handled += [work.record.offset for work in works]
        exact.do("calls_ended", [], [Returned(work, ["again"]) for work in works])
    assert handled == [0, 1]
    done = []
    while [effect for effect in exact.effects if isinstance(effect, fx.Transact)]:
        done += [work.record.offset for work in transacted(exact).claims]
    assert done == [0, 1]


def test_what_waits_for_a_transaction_is_lost_with_its_partition(exact):
    """No one knows whether it was stored, so the answer says that it is to be looked at."""
    redo(exact)
    (work,) = exact.started()
    exact.do("calls_ended", [], [Returned(work, ["again"])])
    exact.do("closed", [exact.part], lost=True)
    ((outcome, _, detail),) = answers(exact)
    assert outcome == "lost"
    assert "what it put out may be there" in detail


def test_a_record_that_was_refused_goes_behind_it(exact):
    """It joined the end of its lane since: it is not skipped in front of what is handled again."""
    exact.poll(exact.part, 2)
    (work,) = exact.started()
    redo(exact)
    exact.do("halt", "test", on=True)
    exact.do("calls_ended", [], [Returned(work, ["out"])])
    transacted(exact, committed=False, refused=[(work, ERROR)])
    exact.pass_time(1_000.0)
    skip = Command("skip", record(2), "skip", 0.0, "a reason")
    exact.do("obey", [skip], UNIX_S + exact.now)
    assert answers(exact) == [("refused", 2, "offset 0 of its lane comes first")]
    exact.do("halt", "test", on=False)
    assert [work.record.offset for work in exact.started()] == [0]


def test_without_room_for_its_mark_it_waits(make_desk):
    """Of a commit that says nothing new no one could see whether it was stored."""
    spec = HandlerSpec("h", delivery="exactly_once", retry=RETRY)
    desk = make_desk(spec, limits=Limits(map_chars=24))
    (desk.part,) = desk.assign(0, start=2, unix_s=UNIX_S)
    redo(desk)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["again"])])
    assert desk.take(fx.Transact) == []
    desk.poll(desk.part, 2)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert [one.record.offset for one in transacted(desk).claims] == [0, 2]
    assert [outcome for outcome, _, _ in answers(desk)] == ["redone"]


# -- batches ---------------------------------------------------------------------------------------


def batch_desk(make_desk, most: int, linger_s: float = 0.0, ack: str = "all"):
    """Records below 2 are done."""
    spec = HandlerSpec("h", retry=RETRY, batch=Batch(most, linger_s, ack))
    desk = make_desk(spec)
    (desk.part,) = desk.assign(0, start=2, unix_s=UNIX_S)
    return desk


def calls(desk) -> list[list[int]]:
    """The offsets of each call since the last look."""
    return [[work.record.offset for work in effect.works] for effect in desk.take(fx.Start)]


def test_a_batch_takes_it_with_what_waits_of_its_key(make_desk):
    """In front of that, which was in a batch that had not started."""
    desk = batch_desk(make_desk, 2, 5.0)
    desk.poll(desk.part, 2)
    assert redo(desk) == []
    (effect,) = desk.take(fx.Start)
    assert [work.record.offset for work in effect.works] == [0, 2]
    desk.do("batch_ended", 0, effect.works, [])
    assert [what for what, *_ in answers(desk)] == ["redone"]
    assert desk.part.frontier == 3


def test_a_batch_that_fails_whole_fails_it_and_the_others_are_tried_again(make_desk):
    """It has one call; the answer has the error."""
    desk = batch_desk(make_desk, 2, 5.0)
    desk.poll(desk.part, 2)
    redo(desk)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Failed(work, ERROR) for work in effect.works], whole=True)
    ((what, offset, detail),) = answers(desk)
    assert (what, offset, "it stays done" in detail) == ("failed", 0, True)
    desk.pass_time(200.0)
    assert calls(desk) == [[2]]


def test_it_goes_behind_all_of_its_key_in_the_batch_that_runs(make_desk):
    """Not between two of them: one of a key at a time; a second one goes behind the first."""
    desk = batch_desk(make_desk, 3)
    desk.poll(desk.part, 2, 3)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    assert redo(desk, 0) == redo(desk, 1) == []
    desk.poll(desk.part, 4)
    desk.do("batch_progressed", [first], [])
    assert calls(desk) == []
    desk.do("batch_ended", 0, [second], [], call=first.call)
    assert calls(desk) == [[0, 1, 4]]


def test_one_that_an_explicit_batch_acknowledges_is_answered_then(make_desk):
    """Before the call ends; what it had to produce comes first."""
    desk = batch_desk(make_desk, 2, ack="explicit")
    redo(desk)
    redo(desk, 1, key=b"other")
    (first,), (second,) = (effect.works for effect in desk.take(fx.Start))
    desk.do("batch_progressed", [first], [Returned(second, ["out"])])
    assert [(what, offset) for what, offset, _ in answers(desk)] == [("redone", 0)]
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert [(what, offset) for what, offset, _ in answers(desk)] == [("failed", 1)]
    desk.do("batch_ended", 0, [], [], call=first.call)
    desk.do("batch_ended", 0, [], [], call=second.call)
    assert desk.part.handler.slots.taken == 0


@pytest.mark.parametrize("ordering", ["partition", "unordered"])
def test_other_orderings(make_desk, ordering):
    """By partition it goes next, unordered at once."""
    desk = make_desk(HandlerSpec("h", ordering))
    (desk.part,) = desk.assign(0, start=2)
    desk.poll(desk.part, 2, 3)
    (first, *_) = desk.started()
    redo(desk)
    if ordering == "unordered":
        assert [work.record.offset for work in desk.started()] == [0]
    else:
        desk.do("calls_ended", [first])
        assert run(desk) == [0, 3]


def test_with_a_commit_for_each_record_it_needs_none(make_desk):
    """Its call is all."""
    desk = make_desk(HandlerSpec("h", commit_each=True))
    (desk.part,) = desk.assign(0, start=2)
    redo(desk)
    desk.do("calls_ended", desk.started())
    assert [what for what, *_ in answers(desk)] == ["redone"]
    assert desk.take(fx.CommitOffsets) == []
