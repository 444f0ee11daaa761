"""Batches: who is in one, how it ends, what waits for what."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.unit.core.conftest import ERROR, batches, in_batches, offsets

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import (
    Command,
    Failed,
    HandlerSpec,
    Limits,
    Returned,
    Target,
    Unhandled,
)
from perkey.policies import Batch, Commit, DeadLetter, Park, Retry, Skip
from perkey.types import Record, Sent


def test_full_batch_starts_immediately(make_desk):
    """`max_records` ready records do not linger."""
    desk = make_desk(in_batches(2))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    assert batches(desk) == [[0, 1]]


def test_part_of_a_batch_starts_after_the_linger(make_desk):
    """One record waits `linger_s` for company, no longer."""
    desk = make_desk(in_batches(10, 0.5))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    assert batches(desk) == []
    assert desk.engine.next_deadline() <= 0.5
    desk.pass_time(0.5)
    assert batches(desk) == [[0]]


@pytest.mark.parametrize(("started", "due"), [(None, 0.5), (0, 0.7), (1, 0.5)])
def test_the_batch_that_is_due_first_is_looked_at_first(make_desk, started, due):
    """Of two open batches it is the older one, and one that has started is not waited for."""
    spec = HandlerSpec("h", batch=Batch(2, 0.5, by="partition"))
    desk = make_desk(spec, limits=Limits(commit=Commit(interval_s=60.0)))
    parts = desk.assign(0, 1)
    desk.poll(parts[0], 0)
    desk.now = 0.2
    desk.poll(parts[1], 0)
    if started is not None:
        desk.poll(parts[started], 1)
        assert batches(desk) == [[0, 1]]
    assert desk.engine.next_deadline() == due


def test_an_open_batch_is_due_only_while_a_slot_is_free(make_desk):
    """Else the engine would be asked to look again, and could start nothing."""
    spec = HandlerSpec("h", concurrency=1, batch=Batch(2, 0.5, by="partition"))
    desk = make_desk(spec, limits=Limits(commit=Commit(interval_s=60.0)))
    waits, busy = desk.assign(0, 1)
    assert desk.engine.next_deadline() == 60.0
    desk.poll(waits, 0)
    assert desk.engine.next_deadline() == 0.5
    desk.poll(busy, 0, 1)
    assert desk.engine.next_deadline() == 60.0


def test_a_batch_that_grew_full_while_no_slot_was_free_starts_with_the_next_one(make_desk):
    """It does not linger on: what came behind its record is looked at once a slot is free."""
    desk = make_desk(HandlerSpec("h", concurrency=1, batch=Batch(2, 60.0, by="partition")))
    waits, busy = desk.assign(0, 1)
    desk.poll(waits, 0)
    desk.poll(busy, 0, 1)
    (effect,) = desk.take(fx.Start)
    desk.poll(waits, 1)
    desk.do("batch_ended", 0, effect.works, [])
    assert [work.partition for work in desk.started()] == [waits, waits]


def test_a_record_whose_own_output_is_refused_has_failed_behind_another_too(make_desk):
    """Acknowledged alone, its output is its own: no batch is tried in halves for it."""
    retry = Retry(attempts=1)
    desk = make_desk(in_batches(2, ack="explicit", retry=retry, on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    _, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, ["out"]) for work in effect.works])
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert desk.engine.state.handlers[0].skipped == 1


def test_records_of_one_lane_follow_each_other(make_desk):
    """Several records of one key are in one batch, in offset order."""
    desk = make_desk(in_batches(3))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3)
    assert batches(desk) == [[0, 1, 2]]


def test_no_batch_is_larger_than_its_room(make_desk):
    """What came while every slot was taken makes a batch of its own."""
    desk = make_desk(in_batches(2, 0.0, concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, 4, key=None)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, effect.works, [])
    assert batches(desk) == [[2, 3]]


def test_failed_batch_is_tried_in_halves(make_desk):
    """Four that failed as one come again two by two, after the first delay."""
    desk = make_desk(in_batches(4, retry=Retry(delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, key=None)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(1.0)
    assert batches(desk) == [[0, 1], [2, 3]]


def test_only_a_record_alone_is_exhausted(make_desk):
    """With one attempt the good half of a failed batch still gets its own call."""
    desk = make_desk(in_batches(2, retry=Retry(attempts=1, delay_s=0.0), on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in effect.works], whole=True)
    desk.pass_time(0.1)
    good, bad = (effect.works for effect in desk.take(fx.Start))
    desk.do("batch_ended", 0, good, [])
    desk.do("batch_ended", 0, [], [Failed(w, ERROR) for w in bad], whole=True)
    handler = desk.engine.state.handlers[0]
    assert (handler.done, handler.skipped, part.frontier) == (1, 1, 2)


def test_lane_waits_for_the_first_of_its_batch(make_desk):
    """The second of a lane is acknowledged first: what is behind it waits for both."""
    desk = make_desk(in_batches(2, ack="explicit"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_ended", 0, [second], [Returned(first, ["out"])])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("outputs_answered", [(first, (Sent("o", 0, 0, None),), None)])
    desk.pass_time(1.0)
    assert batches(desk) == [[2]]


def test_nacked_behind_another_waits_for_it(make_desk):
    """The second of a lane fails while the first is being sent: it comes after that one."""
    desk = make_desk(in_batches(2, ack="explicit", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(first, ["out"]), Failed(second, ERROR)])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("outputs_answered", [(first, (), None)])
    desk.pass_time(1.0)
    assert batches(desk) == [[1]]


def test_given_back_lane_keeps_its_order(make_desk):
    """Of a batch that never began only the heads of lanes are ready again."""
    desk = make_desk(in_batches(3, linger_s=0.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Unhandled(work) for work in effect.works])
    assert batches(desk) == [[0, 1]]


def test_paused_partition_gets_back_the_head_alone(make_desk):
    """Of a gathered lane only the head is ready again; the rest stands behind it."""
    desk = make_desk(in_batches(5, 0.5))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    desk.do("pause", None, on=True)
    desk.pass_time(1.0)
    assert offsets(part.lanes.ready) == [0]
    desk.do("pause", None, on=False)
    desk.pass_time(1.0)
    assert batches(desk) == [[0, 1, 2]]


def test_failing_records_do_not_take_every_slot_from_waiting_ones(make_desk):
    """Records that fail without a delay take turns with those whose linger is over."""
    desk = make_desk(in_batches(5, 0.05, concurrency=1, retry=Retry(attempts=None, delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, 3, 4, key=None)
    desk.poll(part, 5, 6, key=None)
    for _ in range(40):
        desk.pass_time(0.1)
        for effect in desk.take(fx.Start):
            bad = [Failed(work, ERROR) for work in effect.works if work.record.offset < 5]
            good = [work for work in effect.works if work.record.offset >= 5]
            desk.do("batch_ended", 0, good, bad, whole=bool(bad))
    assert part.offsets.top == 6


def refused_behind_a_mate(make_desk):
    """The first of two records of a lane is refused, and their batch still has the second one."""
    desk = make_desk(in_batches(2, ack="explicit", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_progressed", [], [Returned(first, ["out"])])
    desk.do("outputs_answered", [(first, (), ERROR)])
    return desk, second


@pytest.mark.parametrize(
    "ended",
    [
        lambda work: ("batch_ended", 0, [work], []),
        lambda work: ("batch_progressed", [work], []),
        lambda work: ("batch_ended", 0, [], [Unhandled(work)]),
    ],
    ids=["batch ended", "acknowledged", "given back"],
)
def test_refused_record_waits_until_its_batch_lets_go_of_the_lane(make_desk, ended):
    """One at a time: a later record of the lane is still with the call that acknowledged it."""
    desk, second = refused_behind_a_mate(make_desk)
    for _ in range(3):
        desk.pass_time(1.0)
        assert batches(desk) == []
    desk.do(*ended(second))
    assert desk.engine.next_deadline() == desk.now
    desk.pass_time(0.0)
    desk.pass_time(1.0)
    assert [numbers[0] for numbers in batches(desk)] == [0]


def test_while_its_batch_has_its_lane_a_record_asks_for_no_tick(make_desk):
    """Nothing polls: the end of the later record is an event."""
    desk, _ = refused_behind_a_mate(make_desk)
    desk.pass_time(1.0)
    assert desk.engine.state.retries.next_due() is None


def test_a_record_skipped_while_its_batch_has_its_lane_is_not_called_again(make_desk):
    """What it waited for ends later, and concerns it no more."""
    desk, second = refused_behind_a_mate(make_desk)
    desk.pass_time(1.0)
    skip = Command("skip", Target("t", None, 0, 0), "1")
    desk.do("obey", [skip], 0.0)
    desk.do("batch_ended", 0, [second], [])
    desk.pass_time(1.0)
    assert batches(desk) == []
    assert desk.engine.state.handlers[0].skipped == 1


def outage(desk, ends_s: float) -> list[int]:
    """Every call fails until then; how many records each call had."""
    sizes = []
    while desk.now < 1_000.0 and desk.engine.state.handlers[0].done < 64:
        for effect in desk.take(fx.Start):
            sizes.append(len(effect.works))
            if desk.now < ends_s:
                failed = [Failed(work, ERROR) for work in effect.works]
                desk.do("batch_ended", 0, [], failed, whole=True)
            else:
                desk.do("batch_ended", 0, effect.works, [])
        desk.pass_time(0.5)
    return sizes


def test_batches_come_through_an_outage_as_single_records_do(make_desk):
    """30 s without the database: 64 of 64 are done, none is skipped, few calls are made."""
    retry = Retry(attempts=5, delay_s=1.0, multiplier=10.0, jitter=0.0)
    desk = make_desk(in_batches(64, retry=retry, on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, *range(64), key=None)
    sizes = outage(desk, 30.0)
    handler = desk.engine.state.handlers[0]
    assert (handler.done, handler.skipped) == (64, 0)
    assert sizes[:7] == [64, 32, 32, 16, 16, 16, 16]


@pytest.mark.parametrize("bad", [{7}, {0, 63}, set(range(64))])
def test_only_bad_records_are_given_up(make_desk, bad):
    """Each bad one is found and has its own attempts, however many batches it spoiled."""
    retry = Retry(attempts=3, delay_s=1.0, multiplier=10.0, jitter=0.0)
    desk = make_desk(in_batches(64, retry=retry, on_exhausted=Skip()))
    (part,) = desk.assign(0)
    desk.poll(part, *range(64), key=None)
    calls = dict.fromkeys(bad, 0)
    while part.offsets.frontier < 64 and desk.now < 1_000.0:
        for effect in desk.take(fx.Start):
            whole = not bad.isdisjoint(offsets(effect.works))
            if len(effect.works) == 1 and whole:
                calls[effect.works[0].record.offset] += 1
            failed = [Failed(work, ERROR) for work in effect.works] if whole else []
            desk.do("batch_ended", 0, [] if whole else effect.works, failed, whole=whole)
        desk.pass_time(0.5)
    handler = desk.engine.state.handlers[0]
    assert (handler.done, handler.skipped) == (64 - len(bad), len(bad))
    assert set(calls.values()) == {3}


@pytest.mark.parametrize(
    ("by", "ordering", "expected"),
    [
        (None, "unordered", [[0, 1, 2, 3, 0, 1]]),
        ("partition", "unordered", [[0, 1, 2, 3], [0, 1]]),
        ("key", "unordered", [[0, 2], [1], [3], [0], [1]]),
        ("key", "key", [[0, 2], [1], [3], [0], [1]]),
        ("key", "partition", [[0], [0]]),
    ],
)
def test_batch_is_of_what_by_says(make_desk, by, ordering, expected):
    """Of one partition, of one key of it, or of anything; records without a key share none."""
    batch = Batch(10, 0.5, by=by)
    desk = make_desk(HandlerSpec("h", ordering=ordering, batch=batch))
    first, second = desk.assign(0, 1)
    keys = [b"a", None, b"a", b"b"]
    records = [Record("t", 0, offset, 0, key, b"v") for offset, key in enumerate(keys)]
    others = [Record("t", 1, offset, 0, key, b"v") for offset, key in enumerate([b"a", None])]
    desk.do("polled", [(first, records, [100] * 4), (second, others, [100] * 2)])
    desk.pass_time(0.5)
    assert sorted(batches(desk), key=len) == sorted(expected, key=len)


def test_records_without_a_key_share_a_batch_in_partition_order(make_desk):
    """There they are one lane, which may follow itself into a batch."""
    desk = make_desk(HandlerSpec("h", ordering="partition", batch=Batch(10, 0.5, by="key")))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    desk.pass_time(0.5)
    assert batches(desk) == [[0, 1]]


def test_a_record_whose_outputs_were_refused_is_alone_in_its_next_batch(make_desk):
    """It was alone when it was refused; nobody else is to fall with it."""
    retry = Retry(attempts=3, delay_s=1.0, jitter=0.0)
    desk = make_desk(in_batches(10, 0.0, ordering="unordered", retry=retry))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (effect,) = desk.take(fx.Start)
    (work,) = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, SimpleNamespace(records=1))])
    desk.do("outputs_answered", [(work, (), ERROR)])
    desk.do("halt", "held", on=True)
    desk.poll(part, 1, 2, key=None)
    desk.pass_time(2.0)
    desk.do("halt", "held", on=False)
    desk.pass_time(1.0)
    assert sorted(batches(desk)) == [[0], [1, 2]]


def test_refused_outputs_of_a_record_alone_cost_it_an_attempt(make_desk):
    """There is nobody else whose fault it could be."""
    desk = make_desk(in_batches(1, retry=Retry(attempts=1)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (effect,) = desk.take(fx.Start)
    (work,) = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, SimpleNamespace(records=1))])
    desk.do("outputs_answered", [(work, (), ERROR)])
    assert (part.parked, part.retrying) == (1, 0)


@pytest.fixture
def lingering(make_desk):
    """Two partitions with a record each in one open batch of three."""

    def made(**options):
        desk = make_desk(in_batches(3, 5.0, **options))
        parts = desk.assign(0, 1)
        for part in parts:
            desk.poll(part, 0, key=None)
        return desk, parts

    return made


def test_a_partition_that_goes_leaves_the_open_batch(lingering):
    """The other's record waits on, and the room is there for others."""
    desk, (gone, stays) = lingering()
    desk.do("closed", [gone])
    desk.poll(stays, 1, key=None)
    assert batches(desk) == []
    desk.poll(stays, 2, key=None)
    assert batches(desk) == [[0, 1, 2]]


def test_an_open_batch_that_is_left_by_all_is_due_no_more(lingering):
    """Nobody asks to be woken for it, and what comes then lingers anew."""
    desk, parts = lingering()
    assert desk.engine.next_deadline() <= 5.0
    for part in parts:
        desk.do("closed", [part])
    desk.now = 4.0
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    desk.pass_time(4.9)
    assert batches(desk) == []
    desk.pass_time(0.1)
    assert batches(desk) == [[0]]


@pytest.mark.parametrize("end", ["paused", "revoked"])
def test_a_buffered_stop_waits_for_no_open_batch_that_may_not_start(lingering, end):
    """Its records stay where they are."""
    desk, parts = lingering(concurrency=1)
    desk.do("halt", "held", on=True)
    if end == "paused":
        desk.do("pause", "t", on=True)
    else:
        desk.do("revoking", parts)
    desk.do("stop", "buffered")
    assert len(desk.take(fx.Drained)) == 1


def test_a_buffered_stop_waits_for_a_batch_that_was_gathered_and_has_no_slot(lingering):
    """While starts are held up for a reason outside it is not over."""
    desk, _ = lingering()
    desk.do("halt", "held", on=True)
    desk.do("stop", "buffered")
    assert desk.take(fx.Drained) == []


@pytest.mark.parametrize(("whole", "together"), [(True, [[0], [1]]), (False, [[0, 1]])])
def test_a_record_that_failed_alone_stays_alone(make_desk, whole, together):
    """One that was refused by itself, of a batch whose others were not, may join others again."""
    ack = "all" if whole else "explicit"
    retry = Retry(delay_s=1.0, jitter=0.0)
    desk = make_desk(in_batches(3, 0.0, ack, ordering="unordered", retry=retry))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (effect,) = desk.take(fx.Start)
    desk.do("batch_ended", 0, [], [Failed(effect.works[0], ERROR)], whole=whole)
    desk.do("halt", "held", on=True)
    desk.poll(part, 1, key=None)
    desk.pass_time(1.0)
    desk.do("halt", "held", on=False)
    assert sorted(map(sorted, batches(desk))) == together


def test_what_comes_in_when_the_linger_is_over_goes_along(make_desk):
    """It stands behind a gathered record: the batch takes it, as it has room."""
    desk = make_desk(in_batches(10, 0.5))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    desk.now = 0.5
    desk.poll(part, 1)
    assert batches(desk) == [[0, 1]]


def test_what_a_lingering_batch_had_no_room_for_starts_next(make_desk):
    """It has waited as long, and is not forgotten while no slot is free."""
    desk = make_desk(in_batches(2, 0.5, concurrency=1))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (running,) = desk.take(fx.Start)
    desk.do("halt", "held", on=True)
    desk.do("batch_ended", 0, running.works, [])
    desk.poll(part, 2, 3, 4, 5, 6, key=None)
    desk.do("halt", "held", on=False)
    for expected in ([2, 3], [4, 5]):
        (effect,) = desk.take(fx.Start)
        assert offsets(effect.works) == expected
        desk.do("batch_ended", 0, effect.works, [])
    assert batches(desk) == []
    desk.pass_time(0.5)
    assert batches(desk) == [[6]]


def test_a_record_that_is_exhausted_behind_another_is_parked_when_its_turn_comes(make_desk):
    """A wait begins at the head of a lane: until then it is queued, and the commit knows of it."""
    retry = Retry(attempts=1)
    desk = make_desk(in_batches(2, ack="explicit", retry=retry, on_exhausted=Park()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, ["out"]) for work in effect.works])
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert (second.state, part.parked) == (states.QUEUED, 0)
    (known,) = part.memory.entries(part.position, (), desk.now, 0.0)
    assert (known.offset, known.attempts, known.exhausted_by) == (1, 1, "attempts")
    desk.do("outputs_answered", [(first, (), None)])
    assert part.parked == 1


def test_a_dead_letter_is_sent_when_its_records_turn_comes(make_desk):
    """Refused behind another one, it would be parked there, and start out of order when released."""
    retry = Retry(attempts=1)
    desk = make_desk(in_batches(2, ack="explicit", retry=retry, on_exhausted=DeadLetter("dead")))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (effect,) = desk.take(fx.Start)
    first, second = effect.works
    desk.do("batch_ended", 0, [], [Returned(work, ["out"]) for work in effect.works])
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert desk.take(fx.SendDeadLetter) == []
    desk.do("outputs_answered", [(first, (), None)])
    assert [letter.work for letter in desk.take(fx.SendDeadLetter)] == [second]
    desk.do("outputs_answered", [(second, (), ERROR)])
    assert part.parked == 1
