"""Who may start: lanes, slots, a fair choice."""

from __future__ import annotations

from tests.unit.core.conftest import ERROR, batches, in_batches, offsets

from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Failed, HandlerSpec, Unhandled
from perkey.policies import Park, Retry


def test_one_key_is_handled_one_at_a_time(make_desk):
    """The second record of a key starts when the first is done."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (first,) = desk.started()
    desk.do("calls_ended", [first])
    assert offsets(desk.started()) == [1]


def test_null_keys_order_with_nothing(make_desk):
    """Records without a key start side by side."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, key=None)
    assert offsets(desk.started()) == [0, 1, 2]


def test_empty_key_is_a_key(make_desk):
    """The empty key is a lane like any other."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=b"")
    assert offsets(desk.started()) == [0]


def test_partition_order_is_one_lane(make_desk):
    """With ordering="partition" different keys wait for each other."""
    desk = make_desk(HandlerSpec("h", ordering="partition"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=b"a")
    desk.poll(part, 1, key=b"b")
    assert offsets(desk.started()) == [0]


def test_unordered_starts_everything(make_desk):
    """With ordering="unordered" one key runs many times at once."""
    desk = make_desk(HandlerSpec("h", ordering="unordered"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    assert offsets(desk.started()) == [0, 1, 2]


def test_no_more_calls_than_slots(make_desk):
    """At concurrency 2 the third record waits for a free slot."""
    desk = make_desk(HandlerSpec("h", concurrency=2, ordering="unordered"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    first, _ = desk.started()
    desk.do("calls_ended", [first])
    assert offsets(desk.started()) == [2]


def test_deep_backlog_does_not_starve_another_partition(make_desk):
    """A partition with one record has its turn within one round of the others."""
    desk = make_desk(HandlerSpec("h", concurrency=2, ordering="unordered"))
    deep, other = desk.assign(0, 1)
    desk.poll(deep, *range(100))
    running = desk.started()
    desk.poll(other, 0)
    desk.do("calls_ended", running)
    assert 1 in {work.partition.number for work in desk.started()}


def test_failing_record_holds_its_own_lane_alone(make_desk):
    """While a key waits for its retry the others go on."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=5.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=b"bad")
    (bad,) = desk.started()
    desk.do("calls_ended", [], [Failed(bad, ERROR)])
    desk.poll(part, 2, key=b"good")
    assert offsets(desk.started()) == [2]


def test_retry_starts_when_its_delay_is_over(make_desk):
    """The record comes again after the delay, as attempt 2, with its error."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=5.0, jitter=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    desk.pass_time(4.9)
    assert desk.started() == []
    desk.pass_time(0.1)
    assert [(w.record.attempt, w.record.last_error) for w in desk.started()] == [(2, ERROR)]


def test_parked_record_holds_its_lane_and_no_slot(make_desk):
    """With its attempts used up and Park, the lane waits and the slot is free."""
    desk = make_desk(HandlerSpec("h", concurrency=1, retry=Retry(attempts=1), on_exhausted=Park()))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=b"bad")
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    desk.poll(part, 2, key=b"good")
    assert (offsets(desk.started()), part.parked) == ([2], 1)


def test_record_given_back_starts_again_first(make_desk):
    """A call that never began goes back to the head of its lane, as attempt 1."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Unhandled(work)])
    assert [(w.record.offset, w.record.attempt) for w in desk.started()] == [(0, 1)]


def test_rate_limit_spaces_the_starts(make_desk):
    """At 10 a second one record starts now and the next a tenth of a second later."""
    desk = make_desk(HandlerSpec("h", rate_limit_per_s=10.0, ordering="unordered"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    assert offsets(desk.started()) == [0]
    assert desk.engine.next_deadline() <= 0.1
    desk.pass_time(0.1)
    assert offsets(desk.started()) == [1]


def test_old_attempt_holds_its_lane_in_the_new_epoch(make_desk):
    """A partition that comes back does not run a key whose old attempt still runs."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (old,) = desk.started()
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.poll(again, 0)
    assert desk.started() == []
    desk.do("calls_ended", [old])
    assert [work.partition for work in desk.started()] == [again]


def test_old_attempt_that_ends_while_the_partition_is_elsewhere_holds_nothing(make_desk):
    """When it comes back its lanes are free."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (old,) = desk.started()
    desk.do("closed", [part], lost=True)
    desk.do("calls_ended", [old])
    assert desk.engine.state.orphans == {}
    (again,) = desk.assign(0)
    desk.poll(again, 0)
    assert [work.partition for work in desk.started()] == [again]


def test_lane_waits_for_the_last_record_of_an_old_batch(make_desk):
    """The first of its records is acknowledged late: the call still runs with the second."""
    desk = make_desk(in_batches(2, ack="explicit"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (old,) = desk.take(fx.Start)
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.poll(again, 0, 1)
    desk.do("batch_progressed", [old.works[0]], [])
    desk.pass_time(1.0)
    assert batches(desk) == []
    desk.do("batch_ended", 0, [old.works[1]], [])
    desk.pass_time(1.0)
    assert batches(desk) == [[0, 1]]


def test_lane_waits_for_the_attempt_that_holds_it_alone(make_desk):
    """Two old attempts hold two lanes; the end of one lets go of its own, in every ordering."""
    desk = make_desk(HandlerSpec("h", ordering="unordered"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    first, second = desk.started()
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.poll(again, 0, 1, 2)
    assert offsets(desk.started()) == [2]
    desk.do("calls_ended", [second])
    assert offsets(desk.started()) == [1]
    desk.do("calls_ended", [], [Failed(first, ERROR)])
    assert offsets(desk.started()) == [0]
    assert desk.engine.state.handlers[0].superseded == 2


def test_old_attempt_whose_lane_is_empty_leaves_the_others_alone(make_desk):
    """Nothing of its lane has come: its end starts nothing, and what comes then starts at once."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (old,) = desk.started()
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.do("calls_ended", [old])
    assert (desk.started(), again.listed) == ([], False)
    desk.poll(again, 0)
    assert offsets(desk.started()) == [0]


def test_nothing_starts_while_a_partition_is_taken_away(make_desk):
    """Between the beginning of a revoke and its end the buffer stays where it is."""
    desk = make_desk(HandlerSpec("h", concurrency=1, ordering="unordered"))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1)
    (work,) = desk.started()
    desk.do("revoking", [part])
    desk.do("calls_ended", [work])
    assert desk.started() == []


def test_pause_outlives_a_rebalance(make_desk):
    """A topic that the user paused stays paused when its partition is assigned again."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("pause", "t", on=True)
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.poll(again, 0)
    assert desk.started() == []


def test_resume_of_all_takes_back_every_pause(make_desk):
    """After `resume()` a topic paused by name runs too, in this epoch and the next."""
    desk = make_desk()
    desk.do("pause", "t", on=True)
    desk.do("pause", None, on=False)
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    assert offsets(desk.started()) == [0]


def test_hold_stops_all_starts(make_desk):
    """While outputs back up nothing starts; then everything does."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.do("halt", "outputs", on=True)
    desk.poll(part, 0)
    assert desk.started() == []
    desk.do("halt", "outputs", on=False)
    assert offsets(desk.started()) == [0]


def test_while_one_lane_is_held_the_others_keep_their_order(make_desk):
    """An old attempt of one key runs: records of the other keys still wait for each other."""
    desk = make_desk()
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (old,) = desk.started()
    desk.do("closed", [part])
    (again,) = desk.assign(0)
    desk.poll(again, 0, 1)
    desk.poll(again, 2, 3, key=b"other")
    desk.poll(again, 4, 5, key=None)
    first, *alone = desk.started()
    assert offsets([first, *alone]) == [2, 4, 5]
    assert set(again.lanes.tails) == {b"k", b"other"}  # a lane of its own needs no tail
    desk.do("calls_ended", [first, old])
    assert offsets(desk.started()) == [3, 0]
    assert again.lanes.occupied == {}


def test_an_epoch_that_was_never_closed_is_lost_with_the_next_one(make_desk):
    """The partition is assigned anew: what comes back for the old one is late."""
    desk = make_desk()
    (old,) = desk.assign(0)
    desk.poll(old, 0)
    works = desk.started()
    desk.assign(0)
    assert old.state == states.CLOSED
    desk.do("calls_ended", works)
    counts = desk.engine.state.counts
    assert (counts["partitions_lost"], counts["late_completions"]) == (1, 1)


def test_calls_that_keep_a_pipe_full_start_ahead(make_desk):
    """Beyond the concurrency; they hang a run no sooner than the concurrency does."""
    desk = make_desk(HandlerSpec("h", ordering="unordered", concurrency=2, ahead=3, timeout_s=1.0))
    (part,) = desk.assign(0)
    desk.poll(part, *range(9))
    assert offsets(desk.started()) == [0, 1, 2, 3, 4]
    assert desk.engine.under_way() == 5
