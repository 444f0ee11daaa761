"""Batches: who is in one, how it ends, what waits for what."""

from __future__ import annotations

from tests.unit.core.conftest import ERROR, offsets

from weft.core import effects as fx
from weft.core.commits import Answer
from weft.core.endings import Failed, GivenBack, Returned
from weft.core.spec import HandlerSpec, Limits
from weft.policies import Batch, Retry, Skip
from weft.types import Sent


def spec(max_records: int = 10, linger_s: float = 0.05, ack: str = "all", **options) -> HandlerSpec:
    """A batch handler in key order."""
    return HandlerSpec("h", batch=Batch(max_records, linger_s, ack), **options)


def batches(desk) -> list[list[int]]:
    """The batches started since the last look."""
    return [offsets(effect.works) for effect in desk.take(fx.StartBatch)]


def test_full_batch_starts_at_once(make_desk):
    """`max_records` ready records do not linger."""
    desk = make_desk(spec(2))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    assert batches(desk) == [[0, 1]]


def test_part_of_a_batch_starts_after_the_linger(make_desk):
    """One record waits `linger_s` for company, no longer."""
    desk = make_desk(spec(10, 0.5))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    assert batches(desk) == []
    assert desk.engine.next_deadline() <= 0.5
    desk.pass_time(0.5)
    assert batches(desk) == [[0]]


def test_records_of_one_lane_follow_each_other(make_desk):
    """Several records of one key are in one batch, in offset order."""
    desk = make_desk(spec(3))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3)
    assert batches(desk) == [[0, 1, 2]]


def test_no_batch_is_larger_than_its_room(make_desk):
    """What came while every slot was taken makes a batch of its own."""
    desk = make_desk(spec(2, 0.0, concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, 4, key=None)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_ended", 0, effect.works, [])
    assert batches(desk) == [[2, 3]]


def test_failed_batch_is_tried_in_halves(make_desk):
    """Four that failed as one come again two by two, after the first delay."""
    desk = make_desk(spec(4, retry=Retry(delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, key=None)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(1.0)
    assert batches(desk) == [[0, 1], [2, 3]]


def test_only_a_record_alone_is_exhausted(make_desk):
    """With one attempt the good half of a failed batch still gets its own call."""
    desk = make_desk(spec(2, retry=Retry(attempts=1, delay_s=0.0), on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(0.1)
    good, bad = (effect.works for effect in desk.take(fx.StartBatch))
    desk.do("batch_ended", 0, good, [])
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in bad], whole=True)
    handler = desk.engine.state.handlers[0]
    assert (handler.done, handler.skipped, part.frontier) == (1, 1, 2)


def test_at_most_once_never_splits(make_desk):
    """A failed batch is final for all of it: nothing is handled twice."""
    once = spec(2, delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip())
    desk = make_desk(once)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    desk.answer(desk.take(fx.CommitOffsets)[0])
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(5.0)
    assert (batches(desk), desk.engine.state.handlers[0].skipped) == ([], 2)


def test_lane_waits_for_the_first_of_its_batch(make_desk):
    """The second of a lane is acknowledged first: what is behind it waits for both."""
    desk = make_desk(spec(2, ack="explicit"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    (effect,) = desk.take(fx.StartBatch)
    first, second = effect.works
    desk.do("batch_ended", 0, [second], [Returned(first, ["out"])])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("outputs_settled", [(first, (Sent("o", 0, 0, None),), None)])
    desk.pass_time(1.0)
    assert batches(desk) == [[2]]


def test_nacked_behind_another_waits_for_it(make_desk):
    """The second of a lane fails while the first is being sent: it comes after that one."""
    desk = make_desk(spec(2, ack="explicit", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.StartBatch)
    first, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(first, ["out"]), Failed(second, ERROR)])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("outputs_settled", [(first, (), None)])
    desk.pass_time(1.0)
    assert batches(desk) == [[1]]


def test_given_back_lane_keeps_its_order(make_desk):
    """Of a batch that never began only the heads of lanes are ready again."""
    desk = make_desk(spec(3, linger_s=0.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_ended", 0, [], [GivenBack(work) for work in effect.works])
    assert batches(desk) == [[0, 1]]


def test_time_out_of_a_batch_outlives_its_first_acknowledgement(make_desk):
    """A batch that hangs after the first `ack` is cancelled all the same."""
    desk = make_desk(spec(2, ack="explicit", timeout_s=1.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_progressed", [effect.works[0]], [])
    desk.pass_time(1.0)
    assert len(desk.take(fx.Cancel)) == 1


def test_no_time_out_is_left_when_all_were_acknowledged(make_desk):
    """The call whose records are all done has nothing to be cancelled for."""
    desk = make_desk(spec(2, ack="explicit", timeout_s=1.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (effect,) = desk.take(fx.StartBatch)
    desk.do("batch_progressed", effect.works, [])
    desk.do("batch_ended", 0, [], [])
    desk.pass_time(20.0)
    assert desk.take(fx.Cancel) == []


def test_mark_of_a_batch_is_withdrawn_with_one_of_its_partitions(make_desk):
    """at_most_once: one partition goes before its marks are stored; the other's records run."""
    once = spec(2, delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip())
    desk = make_desk(once)
    stays, goes = desk.assign(0, 1)
    desk.poll(stays, 0, key=None)
    desk.poll(goes, 0, key=None)
    (sent,) = desk.take(fx.CommitOffsets)
    desk.do("closed", [goes])
    desk.answer(sent)
    assert [work.partition for work in desk.started()] == [stays]


def test_paused_partition_gets_back_the_head_alone(make_desk):
    """Of a gathered lane only the head is ready again; the rest stands behind it."""
    desk = make_desk(spec(5, 0.5))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    desk.do("pause", None, on=True)
    desk.pass_time(1.0)
    assert offsets(part.ready) == [0]
    desk.do("pause", None, on=False)
    desk.pass_time(1.0)
    assert batches(desk) == [[0, 1, 2]]


def test_failing_records_do_not_take_every_slot_from_waiting_ones(make_desk):
    """Records that fail without a delay take turns with those whose linger is over."""
    desk = make_desk(spec(5, 0.05, concurrency=1, retry=Retry(attempts=None, delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, 4, key=None)
    desk.poll(part, 5, 6, key=None)
    for _ in range(40):
        desk.pass_time(0.1)
        for effect in desk.take(fx.StartBatch):
            bad = [Failed(work, ERROR) for work in effect.works if work.record.offset < 5]
            good = [work for work in effect.works if work.record.offset >= 5]
            desk.do("batch_ended", 0, good, bad, whole=bool(bad))
    assert part.top == 6


def test_batch_whose_partitions_all_go_never_starts(make_desk):
    """at_most_once: one mark is stored, another is not, then both partitions are lost."""
    once = spec(2, delivery="at_most_once", retry=Retry(attempts=1), on_exhausted=Skip())
    desk = make_desk(once)
    first, second = desk.assign(0, 1)
    desk.poll(first, 0, key=None)
    desk.poll(second, 0, key=None)
    (sent,) = desk.take(fx.CommitOffsets)
    answers = [Answer(first, sent.sequence, "stored"), Answer(second, sent.sequence, "retry")]
    desk.do("commit_answered", answers)
    desk.do("closed", [first, second], lost=True)
    handler = desk.engine.state.handlers[0]
    assert (batches(desk), handler.free) == ([], handler.spec.concurrency)


def test_refused_record_waits_until_its_batch_lets_go_of_the_lane(make_desk):
    """One at a time: a later record of the lane is still with the call that acknowledged it."""
    desk = make_desk(spec(2, ack="explicit", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.StartBatch)
    first, second = effect.works
    desk.do("batch_progressed", [], [Returned(first, ["out"])])
    desk.do("outputs_settled", [(first, (), ERROR)])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("batch_ended", 0, [second], [])
    desk.pass_time(0.1)
    desk.pass_time(1.0)
    assert batches(desk) == [[0]]


def test_later_outputs_of_a_lane_wait_for_those_of_a_batch_that_waits(make_desk):
    """exactly_once: a batch over two partitions is held back by one; its lane's later records, too."""
    exact = spec(2, delivery="exactly_once", ordering="partition")
    desk = make_desk(exact, limits=Limits(commit_retry_s=1.0))
    zero, one = desk.assign(0, 1)
    desk.poll(one, 0)
    desk.pass_time(0.1)
    end_batch(desk)
    sent = desk.take(fx.Transact)[-1]
    desk.do("transacted", sent.sequence, committed=False)  # partition 1 tries again in a second
    desk.poll(zero, 0)
    desk.poll(one, 1)
    assert len(end_batch(desk)) == 2
    desk.poll(zero, 1)
    desk.pass_time(0.1)
    assert len(end_batch(desk)) == 1
    assert [claimed(effect) for effect in desk.take(fx.Transact)] == []
    desk.pass_time(1.0)
    assert claimed(desk.take(fx.Transact)[-1]) == {(0, 0), (0, 1), (1, 0), (1, 1)}


def end_batch(desk) -> list:
    """The batch that started last returns with outputs that its records share."""
    works, shared = desk.take(fx.StartBatch)[-1].works, ["out"]
    desk.do("batch_ended", 0, [], [Returned(work, shared) for work in works])
    return works


def claimed(effect) -> set[tuple[int, int]]:
    """Partition and offset of every record in the transaction."""
    works = [work for item in effect.items for work in item.claims]
    return {(work.partition.number, work.record.offset) for work in works}
