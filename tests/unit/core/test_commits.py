"""What is committed, and when."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, offsets

from weft.codec import decode
from weft.core import effects as fx
from weft.core import states
from weft.core.commits import Answer
from weft.core.endings import Failed, GivenBack, Returned
from weft.core.spec import HandlerSpec, Limits
from weft.policies import Commit, DeadLetter, Retry, Skip
from weft.types import Sent

UNORDERED = HandlerSpec("h", ordering="unordered")


def test_commit_says_frontier_and_what_is_done_beyond(make_desk):
    """One commit carries the lowest offset not done and the map of what is done past it."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    _, second, _ = desk.started()
    desk.do("calls_ended", [second])
    (item,) = desk.commit().items
    restored = decode(item.frontier, item.metadata)
    assert (item.frontier, restored.highest_seen, restored.not_done) == (0, 1, (0,))


def test_finished_partition_commits_without_a_map(make_desk):
    """With nothing left in memory the metadata is empty."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    desk.do("calls_ended", desk.started())
    (item,) = desk.commit().items
    assert (item.frontier, item.metadata) == (2, "")


def test_one_commit_on_the_way_per_partition(make_desk):
    """What finishes while a commit is on the way waits for its answer."""
    desk = make_desk(UNORDERED, limits=Limits(commit_answer_s=60.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first, second = desk.started()
    desk.do("calls_ended", [first])
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("calls_ended", [second])
    desk.pass_time(5.0)
    assert desk.take(fx.CommitOffsets) == []
    desk.answer(sent)
    desk.pass_time(1.0)
    assert [item.frontier for item in desk.take(fx.CommitOffsets)[0].items] == [2]


def in_doubt(desk):
    """A partition whose commit had no answer in time, and that commit."""
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first, _ = desk.started()
    desk.do("calls_ended", [first])
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.pass_time(5.0)
    assert [effect.partitions for effect in desk.take(fx.ReadCommitted)] == [[part]]
    return part, sent


def test_commit_in_doubt_that_was_stored_counts(make_desk):
    """The value read back is the one that was sent: it is stored."""
    desk = make_desk(UNORDERED)
    part, sent = in_doubt(desk)
    (item,) = sent.items
    desk.do("committed_read", [(part, item.frontier, item.metadata)])
    assert (part.committed, part.commit_state) == (1, states.IDLE)


def test_commit_in_doubt_that_was_lost_is_sent_again(make_desk):
    """Another value is read back: the next commit says it all again."""
    desk = make_desk(UNORDERED)
    part, _ = in_doubt(desk)
    desk.do("committed_read", [(part, 0, "")])
    desk.pass_time(1.0)
    assert [item.frontier for item in desk.take(fx.CommitOffsets)[0].items] == [1]


def test_commit_in_doubt_that_cannot_be_read_is_asked_again(make_desk):
    """No value could be read: nothing is sent, the question is repeated."""
    desk = make_desk(UNORDERED)
    part, _ = in_doubt(desk)
    desk.do("committed_read", [(part, None, "")])
    desk.pass_time(1.0)
    assert len(desk.take((fx.ReadCommitted, fx.CommitOffsets))) == 1
    assert part.commit_state == states.IN_DOUBT


@pytest.mark.parametrize("verdict", ["retry", "gone"])
def test_refused_commit_is_tried_again_within_the_epoch(make_desk, verdict):
    """A refusal for now does not lose what was to be said."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.answer(sent, verdict)
    desk.pass_time(3.0)
    assert [item.frontier for item in desk.take(fx.CommitOffsets)[0].items] == [1]


def test_final_refusal_ends_the_run(make_desk):
    """A verdict that no retry heals is fatal, with the reason."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("commit_answered", [Answer(part, sent.sequence, "stop", "not authorised")])
    assert "not authorised" in desk.take(fx.Fatal)[0].reason


def test_map_too_large_is_halved_and_the_base_still_committed(make_desk):
    """A broker with a small limit gets a smaller map; the frontier is never lost."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, *range(4_000))
    works = desk.started()
    desk.do("calls_ended", works[1::2])
    for _ in range(14):
        desk.pass_time(1.0)
        for effect in desk.take(fx.CommitOffsets):
            (item,) = effect.items
            desk.answer(effect, "too_large" if item.metadata else "stored")
    assert part.committed == 0
    assert part.map_limit < 8


def test_late_answer_of_an_ended_epoch_is_dropped(make_desk):
    """The answer that comes after the epoch changes nothing."""
    desk = make_desk(HandlerSpec("h", commit_each=True))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("closed", [part])
    desk.answer(sent)
    assert desk.engine.state.counts["late_commit_answers"] == 1


def test_start_of_a_new_group_is_committed_at_once(make_desk):
    """Without a committed offset the resolved start does not wait for the interval."""
    desk = make_desk()
    desk.pass_time(0.5)
    desk.assign(0, commit_start=True, start=7)
    assert [item.frontier for item in desk.take(fx.CommitOffsets)[0].items] == [7]


def test_last_commit_holds_what_is_done(make_desk):
    """The final commit of a revoke is built from the same kind of snapshot."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first, _ = desk.started()
    desk.do("revoking", [part])
    desk.do("calls_ended", [first])
    effect = desk.do("last_commit", [part])
    assert [item.frontier for item in effect.items] == [1]


# -- Commit(each=True) -----------------------------------------------------------------------------


def test_each_holds_slot_and_lane_until_its_commit_is_stored(make_desk):
    """The next record of the lane starts with the broker's acknowledgement."""
    desk = make_desk(HandlerSpec("h", commit_each=True, concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [work])
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    assert desk.started() == []
    desk.answer(sent)
    assert offsets(desk.started()) == [1]


def test_each_claims_without_room_in_the_map_give_back_their_slot(make_desk):
    """Else they would hold every slot and the record at the frontier could not be tried again."""
    spec = HandlerSpec(
        "h", ordering="unordered", commit_each=True, concurrency=2, retry=Retry(delay_s=1.0)
    )
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    part.map_limit = 4  # too small for any map
    part.start_limit = 100
    desk.poll(part, 0, 1, 2, key=None)
    first, second = desk.started()
    desk.do("calls_ended", [second], [Failed(first, ERROR)])
    desk.take(object)
    desk.do("calls_ended", desk.started())
    desk.pass_time(2.0)
    assert 0 in offsets(desk.started())


# -- at_most_once ----------------------------------------------------------------------------------


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
    desk.do("calls_ended", [], [GivenBack(work)])
    (again,) = desk.take(fx.CommitOffsets)
    desk.answer(again)
    assert offsets(desk.started()) == [0]


def test_time_out_counts_from_the_start_not_from_the_mark(make_desk):
    """While the mark is on the way the attempt has not begun."""
    desk = make_desk(HandlerSpec("h", delivery="at_most_once", retry=Retry(attempts=1),
                                 on_exhausted=Skip(), timeout_s=1.0))  # fmt: skip
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.pass_time(2.0)
    assert desk.take(fx.Cancel) == []
    desk.answer(sent)
    desk.pass_time(1.0)
    assert len(desk.take(fx.Cancel)) == 1


# -- exactly_once ------------------------------------------------------------------------------------


EXACT = HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=3, delay_s=1.0, jitter=0.0))


def test_lane_goes_on_before_the_transaction_ends(make_desk):
    """The next record starts when the handler returns; its output waits."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert offsets(desk.started()) == [1]


def test_refused_output_is_tried_again_alone_in_its_lane(make_desk):
    """After an abort the refused record waits its turn: its lane runs one at a time."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (first,) = desk.started()
    desk.do("calls_ended", [], [Returned(first, ["out"])])
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.Transact)]
    (second,) = desk.started()
    desk.do("transacted", sent.sequence, committed=False, refused=[(first, ERROR)])
    desk.pass_time(1.5)
    assert desk.started() == []
    desk.do("calls_ended", [second])
    assert offsets(desk.started()) == [0]


def test_committed_transaction_finishes_its_claims(make_desk):
    """Outputs and offsets are stored together, then the records are done."""
    desk = make_desk(EXACT)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    (sent,) = desk.take(fx.Transact)
    desk.do("transacted", sent.sequence, committed=True)
    assert (part.committed, work.state) == (1, states.DONE)


# -- outputs -------------------------------------------------------------------------------------------


def test_record_is_done_when_its_outputs_are_acknowledged(make_desk):
    """Until then the lane waits and the frontier stays."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert (desk.started(), part.frontier) == ([], 0)
    desk.do("outputs_settled", [(work, (Sent("o", 0, 0, None),), None)])
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
    desk.do("outputs_settled", [(work, (), ERROR)])
    assert (part.parked, part.frontier, desk.started()) == (1, 0, [])


def test_commit_after_so_many_records(make_desk):
    """`max_records` commits before the interval is over."""
    desk = make_desk(UNORDERED, limits=Limits(commit=Commit(interval_s=60.0, max_records=2)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    first, second, _ = desk.started()
    desk.do("calls_ended", [first])
    assert desk.take(fx.CommitOffsets) == []
    desk.do("calls_ended", [second])
    assert [item.frontier for item in desk.take(fx.CommitOffsets)[0].items] == [2]
