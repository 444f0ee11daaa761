"""What is committed, and when."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, offsets

from perkey.codec import decode
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.commits import CommitState
from perkey.core.events import Answer, HandlerSpec, Limits, Returned
from perkey.core.offsets import Offsets
from perkey.policies import Commit, Retry, Skip
from perkey.types import Sent

UNORDERED = HandlerSpec("h", ordering="unordered")


def test_commit_reports_frontier_and_what_is_done_beyond(make_desk):
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
    assert (part.commit.committed, part.commit.state) == (1, states.IDLE)


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
    assert part.commit.state == states.IN_DOUBT


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


@pytest.mark.push
def test_map_too_large_is_halved_and_the_base_still_committed(make_desk):
    """A broker with a small limit gets a smaller map; the frontier is never lost."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, *range(400))
    works = desk.started()
    desk.do("calls_ended", works[1::2])
    for _ in range(14):
        desk.pass_time(1.0)
        for effect in desk.take(fx.CommitOffsets):
            (item,) = effect.items
            desk.answer(effect, "too_large" if item.metadata else "stored")
    assert part.commit.committed == 0
    assert part.commit.map_limit < 8


def refused(make_desk, verdict: str, **limits):
    """A desk and a partition whose first commit, with a map, the broker has answered so."""
    desk = make_desk(UNORDERED, limits=Limits(commit_retry_s=0.25, **limits))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    desk.do("calls_ended", desk.started()[1:2])
    desk.now = 1.0
    desk.do("tick")
    (sent,) = desk.take(fx.CommitOffsets)
    desk.answer(sent, verdict)
    return desk, part, sent.items[0]


@pytest.mark.parametrize(
    ("verdict", "again_s", "map_chars"),
    [("retry", 0.25, 4096), ("too_large", 0.25, 2048), ("gone", 2.5, 4096)],
)
def test_refused_commit_waits_its_time(make_desk, verdict, again_s, map_chars):
    """A member that is thrown out waits for the rebalance; the others ask again soon."""
    desk, part, item = refused(make_desk, verdict)
    assert (part.commit.state, part.commit.at) == (states.IDLE, 1.0 + again_s)
    assert (part.commit.map_limit, part.commit.committed) == (map_chars, -1)
    assert desk.engine.state.counts["commits_refused"] == 1
    desk.do("commit_soon")
    assert desk.take(fx.CommitOffsets) == []
    desk.now += again_s
    desk.do("commit_soon")
    (again,) = desk.take(fx.CommitOffsets)
    assert again.items[0][:3] == item[:3]


def test_a_refused_commit_may_be_stored_until_another_one_is(make_desk):
    """One partition's error is reported for the whole request; the broker has the others."""
    desk, part, _ = refused(make_desk, "retry")

    def may_be_stored():
        return sorted({offset for some in part.committed_or_sent() for offset in some})

    first = desk.engine.state.partitions[part.where].offsets.frontier
    assert may_be_stored() == [-1, first]
    desk.poll(part, *range(first, first + 3))
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (second,) = desk.take(fx.CommitOffsets)
    desk.answer(second, "retry")
    assert may_be_stored() == [-1, *range(first, second.items[0].frontier + 1)]
    desk.pass_time(1.0)
    (third,) = desk.take(fx.CommitOffsets)
    desk.answer(third)
    assert may_be_stored() == [third.items[0].frontier]


def test_refused_map_is_reported_with_the_next_limit(make_desk):
    """The log says what to raise, and what is tried next."""
    desk, _, _ = refused(make_desk, "too_large", map_chars=64)
    (note,) = desk.take(fx.Note)
    assert (note.level, note.fields["next_limit_chars"]) == ("warning", 32)
    assert (note.fields["topic"], note.fields["partition"]) == ("t", 0)


def test_what_was_refused_otherwise_keeps_the_map(make_desk):
    """Only a map that is too large is made smaller, and only that is told."""
    desk, part, _ = refused(make_desk, "retry")
    assert (desk.take(fx.Note), part.commit.map_limit) == ([], 4096)


@pytest.mark.parametrize(
    ("stored", "refused", "limit"), [(0, 3000, 2048), (3000, 3500, 3000), (3000, 3000, 2048)]
)
def test_map_is_not_cut_below_what_the_broker_has_stored(stored, refused, limit):
    """A limit halves down to the last stored map; one as small that is refused shows less room."""
    commit = CommitState(Offsets(0), map_limit=4096)
    commit.map_stored = stored
    commit.shrink_map(refused)
    assert commit.map_limit == limit


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


@pytest.mark.parametrize(("verdict", "said"), [("stored", [2]), ("retry", []), ("gone", [])])
def test_what_holds_is_reported_again_after_a_late_commit_of_a_former_epoch(
    make_desk, verdict, said
):
    """Librdkafka sent it again, after the new epoch's, and put back the older frontier."""
    desk = make_desk()
    (former,) = desk.assign(0)
    desk.poll(former, 0)
    desk.do("calls_ended", desk.started())
    desk.do("commit_soon")
    (late,) = desk.take(fx.CommitOffsets)
    desk.do("closed", [former], lost=True)
    desk.assign(0, start=2, commit_start=True)
    desk.answer(desk.take(fx.CommitOffsets)[0])
    desk.answer(late, verdict)
    desk.do("commit_soon")
    assert [i.frontier for sent in desk.take(fx.CommitOffsets) for i in sent.items] == said


def test_start_of_a_new_group_is_committed_immediately(make_desk):
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


def test_each_holds_its_slot_while_its_outputs_are_on_the_way(make_desk):
    """Or a slow producer would have many handled and not committed: a kill repeats all of them."""
    spec = HandlerSpec("h", ordering="unordered", commit_each=True, concurrency=1)
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, key=None)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    assert desk.started() == []
    desk.do("outputs_answered", [(work, (Sent("o", 0, 0, None),), None)])
    (sent,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    assert desk.started() == []
    desk.answer(sent)
    assert offsets(desk.started()) == [1]


@pytest.mark.parametrize("end", ["refused", "lost"])
def test_each_gives_its_slot_back_when_its_outputs_end_otherwise(make_desk, end):
    """Refused by the broker, or gone with its epoch."""
    spec = HandlerSpec(
        "h", ordering="unordered", commit_each=True, concurrency=1, retry=Retry(delay_s=60.0)
    )
    desk = make_desk(spec)
    one, other = desk.assign(0, 1)
    desk.poll(one, 0, key=None)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Returned(work, ["out"])])
    desk.poll(other, 7, key=None)
    assert desk.started() == []
    if end == "refused":
        desk.do("outputs_answered", [(work, (), ERROR)])
    else:
        desk.do("closed", [one], lost=True)
        desk.do("outputs_answered", [(work, (), None)])
    assert offsets(desk.started()) == [7]


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


def test_claims_without_room_in_the_map_are_looked_at_again_after_a_while(make_desk):
    """Not at every turn: the record at the frontier has to end first."""
    spec = HandlerSpec("h", ordering="unordered", delivery="exactly_once")
    desk = make_desk(spec, limits=Limits(map_chars=0, commit_retry_s=0.5))
    (part,) = desk.assign(0)
    part.reach.limit = 100
    desk.poll(part, 0, 1, key=None)
    first, second = desk.started()
    desk.now = 2.0
    desk.do("calls_ended", [second])
    assert desk.take(fx.Transact) == []
    assert (part.commit.claims, part.commit.at) == ([second], 2.5)
    desk.do("calls_ended", [first])
    assert desk.take(fx.Transact) == []
    desk.pass_time(0.5)
    (sent,) = desk.take(fx.Transact)
    assert (sent.items[0].frontier, offsets(sent.items[0].claims)) == (2, [1, 0])


def test_no_one_waits_for_marks_that_were_withdrawn(make_desk):
    """The partition goes, and no commit is looked for on its account."""
    once = {"retry": Retry(attempts=1), "on_exhausted": Skip()}
    desk = make_desk(HandlerSpec("h", delivery="at_most_once", **once))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    assert list(desk.engine.state.claiming) == [part]
    desk.do("revoking", [part])
    assert (desk.engine.state.claiming, part.commit.claims) == ({}, [])


def test_without_a_number_of_records_the_interval_alone_counts(make_desk):
    """However many are finished, also by way of the producer."""
    desk = make_desk(UNORDERED, limits=Limits(commit=Commit(interval_s=5.0)))
    (part,) = desk.assign(0)
    desk.pass_time(6.0)
    desk.poll(part, *range(5))
    works = desk.started()
    desk.do("calls_ended", works[:2], [Returned(work, ["out"]) for work in works[2:]])
    desk.do("outputs_answered", [(work, (), None) for work in works[2:]])
    assert desk.take(fx.CommitOffsets) == []
    desk.pass_time(5.0)
    assert len(desk.take(fx.CommitOffsets)) == 1


def test_what_finished_while_a_commit_was_on_the_way_goes_with_its_answer(make_desk):
    """`max_records` more are done, and their commit had to wait: it does not wait any longer."""
    limits = Limits(commit=Commit(interval_s=60.0, max_records=2), commit_answer_s=60.0)
    desk = make_desk(UNORDERED, limits=limits)
    (part,) = desk.assign(0)
    desk.poll(part, *range(6))
    works = desk.started()
    desk.do("calls_ended", works[:2])
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("calls_ended", works[2:4])
    assert desk.take(fx.CommitOffsets) == []
    desk.answer(sent)
    (again,) = desk.take(fx.CommitOffsets)
    assert [item.frontier for item in again.items] == [4]
    desk.answer(again)
    desk.do("calls_ended", works[4:5])
    assert desk.take(fx.CommitOffsets) == []


def test_the_number_of_records_is_of_all_partitions(make_desk):
    """And counts those whose outputs were stored, and those of a transaction, once each."""
    limits = Limits(commit=Commit(interval_s=60.0, max_records=4))
    desk = make_desk(UNORDERED, limits=limits)
    one, other = desk.assign(0, 1)
    desk.poll(one, 0, 1)
    desk.poll(other, 0, 1)
    works = desk.started()
    desk.do("calls_ended", works[:2], [Returned(work, ["out"]) for work in works[2:]])
    desk.do("outputs_answered", [(works[2], (), None)])
    assert desk.take(fx.CommitOffsets) == []
    desk.do("outputs_answered", [(works[3], (), None)])
    (sent,) = desk.take(fx.CommitOffsets)
    assert [item.frontier for item in sent.items] == [2, 2]


def test_a_partition_whose_commit_was_lost_reports_it_as_soon_as_that_is_known(make_desk):
    """What the broker holds was read back: a record that waits for its commit waits no longer."""
    desk = make_desk(HandlerSpec("h", commit_each=True), limits=Limits(commit_answer_s=2.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    (sent,) = desk.take(fx.CommitOffsets)
    desk.pass_time(2.0)
    desk.do("committed_read", [(part, 0, "")])
    (again,) = desk.take(fx.CommitOffsets)
    assert again.items == sent.items


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_a_commit_of_its_time_is_looked_at_when_it_is_due(make_desk, seconds):
    """The engine asks to be woken for the answer that is due, and for a claim that waits."""
    limits = Limits(commit=Commit(interval_s=60.0), commit_answer_s=3.0, commit_retry_s=0.5)
    desk = make_desk(HandlerSpec("h", commit_each=True), limits=limits)
    (part,) = desk.assign(0)
    desk.now = 10.0
    desk.poll(part, 0)
    assert desk.engine.next_deadline() == 60.0
    desk.do("calls_ended", desk.started())
    assert desk.engine.next_deadline() == 13.0
    (sent,) = desk.take(fx.CommitOffsets)
    desk.now += seconds
    desk.answer(sent, "retry")
    assert desk.engine.next_deadline() == desk.now + 0.5
    desk.pass_time(0.5)
    assert len(desk.take(fx.CommitOffsets)) == 1


def test_the_last_commit_is_of_those_that_have_something_to_say(make_desk):
    """What is on the way may be lost, so it is said again; what is stored is not."""
    desk = make_desk(UNORDERED)
    on_the_way, stored = parts = desk.assign(0, 1)
    for part in parts:
        desk.poll(part, 0)
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("commit_answered", [Answer(stored, sent.sequence, "stored")])
    last = desk.do("last_commit", parts)
    assert [(item.partition, item.frontier) for item in last.items] == [(on_the_way, 1)]


def test_what_is_stored_in_the_end_is_not_said_again(make_desk):
    """It was refused once; after that nothing is new."""
    desk, _, _ = refused(make_desk, "retry")
    desk.pass_time(1.0)
    (again,) = desk.take(fx.CommitOffsets)
    desk.answer(again)
    for _ in range(5):
        desk.pass_time(5.0)
    assert desk.take(fx.CommitOffsets) == []


def test_a_committed_offset_is_as_old_as_its_last_move(make_desk):
    """What is committed again, with another map, says nothing of how long it has stood there."""
    desk = make_desk(UNORDERED)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3)
    first, stuck, *others = desk.started()
    desk.do("calls_ended", [first])
    desk.commit()
    assert (part.commit.committed, part.commit.committed_at) == (1, desk.now)
    moved = desk.now
    desk.do("calls_ended", others)
    desk.commit()
    assert (part.commit.committed, part.commit.committed_at) == (1, moved)
    desk.do("calls_ended", [stuck])
    desk.commit()
    assert (part.commit.committed, part.commit.committed_at) == (4, desk.now)
