"""Commands to lanes and records: what is done, what is answered, and when."""

from __future__ import annotations

import pytest
from tests.unit.core.test_memory import ERROR, UNIX_S

from perkey.account.account import take
from perkey.account.snapshot import snapshot
from perkey.codec import Remembered, decode
from perkey.core import effects as fx
from perkey.core.events import Command, Decided, Failed, HandlerSpec, Returned, Target
from perkey.core.lanes import Lanes
from perkey.core.work import LaneKey
from perkey.policies import Batch, Retry, Skip, Stop
from perkey.types import Record

KEY = Target("t", b"k")
RETRY = Retry(attempts=2, delay_s=100.0, delay_max_s=100.0, jitter=0.0)


@pytest.fixture
def desk(make_desk):
    """A handler with keys; partition 0 is assigned."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (desk.part,) = desk.assign(0, unix_s=UNIX_S)
    return desk


def order(desk, action, target=KEY, *, for_s: float = 10.0):
    """The answers to one command, as they came at once: (outcome, offset)."""
    command = Command(action, target, "1", UNIX_S + desk.now + for_s, "a reason")
    desk.do("obey", [command], UNIX_S + desk.now)
    found = [effect for effect in desk.effects if isinstance(effect, fx.Answered)]
    desk.effects = [effect for effect in desk.effects if effect not in found]
    assert all(effect.command is command for effect in found)
    return [(row.outcome, row.offset) for effect in found for row in effect.rows]


def record(offset: int) -> Target:
    """One record of partition 0."""
    return Target("t", None, 0, offset)


def started(desk) -> list[int]:
    """Offsets of what was started since the last look."""
    return [work.record.offset for work in desk.started()]


def test_a_held_lane_starts_nothing_until_its_time_is_over(desk):
    """What comes meanwhile waits, other lanes go on, and then the lane goes on in order."""
    assert order(desk, "hold") == [("held", -1)]
    desk.poll(desk.part, 0, 1)
    desk.poll(desk.part, 2, key=b"other")
    assert started(desk) == [2]
    desk.pass_time(9.9)
    assert started(desk) == []
    desk.pass_time(0.2)
    (first,) = desk.started()
    desk.do("calls_ended", [first])
    assert [first.record.offset, *started(desk)] == [0, 1]


def test_a_call_that_runs_ends_and_the_next_of_its_lane_is_held(desk):
    """A hold cancels nothing."""
    desk.poll(desk.part, 0, 1, 2)
    (first,) = desk.started()
    assert order(desk, "hold") == [("held", 1)]
    desk.do("calls_ended", [first])
    assert started(desk) == []
    assert order(desk, "release") == [("released", 1)]
    assert started(desk) == [1]


def test_a_record_that_is_held_as_it_comes_is_charged_once(desk):
    """Behind one that has failed before and runs; the desk recounts."""
    desk.poll(desk.part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR, final=True) for work in desk.started()])
    order(desk, "release")
    (first,) = desk.started()
    assert order(desk, "hold") == [("held", -1)]
    desk.poll(desk.part, 1)
    desk.do("calls_ended", [first])
    assert desk.part.lanes.blocked_records == 1


@pytest.mark.parametrize("target", [KEY, record(0)])
def test_a_failed_record_that_is_held_does_not_start_when_its_delay_is_over(desk, target):
    """Nor before its delay is over, when the hold is shorter."""
    desk.poll(desk.part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert order(desk, "hold", target, for_s=200.0) == [("held", 0)]
    desk.pass_time(150.0)
    assert started(desk) == []
    assert order(desk, "hold", target, for_s=1.0) == [("held", 0)]
    desk.pass_time(1.1)
    assert started(desk) == [0]


def test_retry_starts_what_waits_for_its_next_attempt(desk):
    """Now."""
    desk.poll(desk.part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    assert order(desk, "retry") == [("retried", 0)]
    assert [work.record.attempt for work in desk.started()] == [2]
    assert order(desk, "retry") == [("unchanged", 0)]


@pytest.mark.parametrize("action", ["release", "retry"])
def test_a_parked_record_that_is_released_begins_anew(desk, action):
    """With its first attempt; a second command changes nothing."""
    desk.poll(desk.part, 0, 1)
    desk.do("calls_ended", [], [Failed(work, ERROR, final=True) for work in desk.started()])
    assert desk.part.parked == 1
    assert order(desk, action) == [("released", 0)]
    assert order(desk, action) == [("unchanged", 0)]
    assert [work.record.attempt for work in desk.started()] == [1]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("where", ["ready", "retrying", "parked", "held"])
def test_a_skipped_record_is_done_and_answered_once_that_is_stored(make_desk, delivery, where):
    """Its lane goes on at once."""
    desk = make_desk(HandlerSpec("h", retry=RETRY, delivery=delivery))
    (desk.part,) = desk.assign(0, unix_s=UNIX_S)
    if where == "held":
        order(desk, "hold", for_s=50.0)
    desk.do("halt", "outputs", on=where == "ready")
    desk.poll(desk.part, 0, 1)
    final = where == "parked"
    desk.do("calls_ended", [], [Failed(work, ERROR, final=final) for work in desk.started()])
    assert order(desk, "skip", record(0)) == []
    assert order(desk, "skip", record(0)) in ([("unchanged", 0)], [("refused", 0)])
    (commit,) = desk.take((fx.CommitOffsets, fx.Transact))
    if delivery == "exactly_once":
        desk.do("transacted", commit.sequence, committed=True)
    else:
        desk.answer(commit)
    (told,) = desk.take(fx.Answered)
    assert [(row.outcome, row.offset) for row in told.rows] == [("skipped", 0)]
    assert desk.engine.handlers[0].skipped == 1


def test_the_next_of_a_held_lane_is_held_when_its_first_is_skipped(desk):
    """A held lane starts nothing."""
    order(desk, "hold")
    desk.poll(desk.part, 0, 1)
    order(desk, "skip", record(0))
    assert started(desk) == []
    desk.pass_time(11.0)
    assert started(desk) == [1]


def test_a_skip_whose_partition_goes_first_is_lost(desk):
    """Its answer says so: the next owner may handle the record."""
    order(desk, "hold")
    desk.poll(desk.part, 0)
    assert order(desk, "skip", record(0)) == []
    desk.take(object)
    desk.do("closed", [desk.part], lost=True)
    (told,) = desk.take(fx.Answered)
    assert [row.outcome for row in told.rows] == ["lost"]


@pytest.mark.parametrize(
    ("action", "target", "outcome"),
    [
        ("skip", KEY, "refused"),  # names no record
        ("skip", record(1), "refused"),  # behind the one that runs
        ("skip", record(0), "refused"),  # runs
        ("hold", record(0), "refused"),
        ("release", record(0), "unchanged"),
        ("retry", record(9), "refused"),  # not fetched
        ("hold", Target("other", b"k"), "not here"),
        ("hold", Target("t", b"k", 7), "not here"),
    ],
)
def test_what_cannot_be_done_is_answered_and_changes_nothing(desk, action, target, outcome):
    """In one line each."""
    desk.poll(desk.part, 0, 1)
    (first,) = desk.started()
    assert [what for what, _ in order(desk, action, target)] == [outcome]
    desk.do("calls_ended", [first])
    assert started(desk) == [1]


@pytest.mark.parametrize(
    ("for_s", "outcome"), [(-1.0, "unchanged"), (0.0, "unchanged"), (1.0, "held")]
)
def test_a_hold_that_is_over_already_holds_nothing(desk, for_s, outcome):
    """As one that came late."""
    assert order(desk, "hold", for_s=for_s) == [(outcome, -1)]


@pytest.mark.parametrize("ordering", ["partition", "unordered"])
def test_where_keys_are_no_lanes_a_record_must_be_named(make_desk, ordering):
    """A hold of a key would hold something else."""
    desk = make_desk(HandlerSpec("h", ordering))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    assert order(desk, "hold") == [("refused", -1)]
    desk.poll(part, 0)
    assert started(desk) == [0]
    desk.do("closed", [part])
    (part,) = desk.assign(0, unix_s=UNIX_S)
    assert part.holds == {}


def test_a_held_lane_is_held_in_the_next_epoch(desk):
    """Of the same process; another one knows it from the commit, as long as a record waits."""
    order(desk, "hold", for_s=50.0)
    desk.do("closed", [desk.part])
    (part,) = desk.assign(0, unix_s=UNIX_S + desk.now)
    desk.poll(part, 0)
    assert started(desk) == []
    (entry,) = part.memory.entries(part.position, (), desk.now, UNIX_S)
    assert entry == Remembered(0, 0, held=True, until_s=int(UNIX_S) + 50)


def test_a_record_that_came_held_waits_and_then_goes_on(make_desk):
    """Its lane with it."""
    desk = make_desk(HandlerSpec("h"))
    entry = Remembered(0, 0, held=True, until_s=int(UNIX_S) + 50)
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=(entry,))
    desk.poll(part, 0, 1)
    assert started(desk) == []
    assert places(desk) == {"on_hold": 1, "behind": 1}
    desk.pass_time(50.1)
    assert started(desk) == [0]


@pytest.mark.parametrize("action", ["release", "retry"])
def test_what_is_remembered_and_not_fetched_yet_can_be_released(make_desk, action):
    """It begins as a new record when it comes."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=(Remembered(0, 2, parked=True),))
    assert order(desk, action, record(0)) == [("released", 0)]
    desk.poll(part, 0)
    assert [work.record.attempt for work in desk.started()] == [1]


def test_what_comes_behind_a_running_record_of_a_held_lane_is_held(desk):
    """It is the first of its lane that has not begun; the one behind it waits for it."""
    desk.poll(desk.part, 0)
    (first,) = desk.started()
    assert order(desk, "hold") == [("held", -1)]
    desk.poll(desk.part, 1, 2)
    desk.do("calls_ended", [first])
    assert started(desk) == []
    assert order(desk, "release") == [("released", 1)]
    (second,) = desk.started()
    desk.do("calls_ended", [second])
    assert [second.record.offset, *started(desk)] == [1, 2]


def test_nothing_is_skipped_after_the_last_commit(desk):
    """The member is about to leave: no commit would make it true, and no answer would come."""
    order(desk, "hold")
    desk.poll(desk.part, 0)
    desk.do("stop", "in_flight")
    assert desk.take(fx.Drained)
    assert order(desk, "skip", record(0)) == [("refused", 0)]


def test_what_goes_back_behind_another_of_its_batch_is_held(make_desk):
    """Its lane was held while the batch ran: it does not follow the one before it."""
    spec = HandlerSpec("h", retry=Retry(delay_s=0.0), batch=Batch(2, 0.0, "explicit"))
    desk = make_desk(spec)
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, 1)
    first, second = desk.started()
    assert order(desk, "hold") == [("held", -1)]
    desk.do("batch_ended", 0, [], [Returned(first, ["out"]), Failed(second, ERROR)])
    desk.do("outputs_answered", [(first, (), None)])
    desk.pass_time(5.0)
    assert started(desk) == []
    assert order(desk, "release") == [("released", 1)]
    assert started(desk) == [1]


@pytest.mark.parametrize("action", ["hold", "release", "retry", "skip"])
@pytest.mark.parametrize(
    ("offset", "log_end", "there"),
    [
        (9, 10, True),
        (10, 10, False),
        (11, 10, False),
        (9, -1, True),  # the end is not known
        (9, 1, True),  # it is an old one: the position is past it
    ],
)
def test_past_the_end_of_the_log_there_is_no_record(desk, action, offset, log_end, there):
    """Whoever is answered "ask again" would ask for ever."""
    desk.poll(desk.part, 0, 1)
    desk.engine.log_ends([(desk.part, log_end)])
    desk.do("obey", [Command(action, record(offset), "1", UNIX_S + 9.0)], UNIX_S)
    ((row,),) = [effect.rows for effect in desk.take(fx.Answered)]
    assert (row.outcome, row.offset) == ("refused", offset)
    assert ("ask again" in row.detail) == there
    assert ("no such record" in row.detail) != there


def test_a_record_that_is_held_for_longer_than_its_lane(desk):
    """It waits for the end of its own hold; the lane's may be shortened."""
    desk.poll(desk.part, 0, 1)
    (first,) = desk.started()
    order(desk, "hold", record(1), for_s=20.0)
    desk.do("calls_ended", [first])
    order(desk, "hold", for_s=10.0)
    order(desk, "hold", for_s=5.0)
    desk.pass_time(11.0)
    assert started(desk) == []
    desk.pass_time(10.0)
    assert started(desk) == [1]


@pytest.mark.parametrize("there", [True, False])
def test_a_hold_that_is_over_already_ends_none(desk, there):
    """Neither in this epoch nor in one to come, wherever it came late."""
    order(desk, "hold", for_s=50.0)
    if not there:
        desk.do("closed", [desk.part])
    order(desk, "hold", for_s=-1.0)
    if there:
        desk.do("closed", [desk.part])
    (part,) = desk.assign(0, unix_s=UNIX_S + desk.now)
    desk.poll(part, 0)
    assert started(desk) == []
    desk.pass_time(50.1)
    assert started(desk) == [0]


@pytest.mark.parametrize(("own_s", "lane_s"), [(9.0, 2.0), (2.0, 9.0)])
def test_a_record_that_is_held_itself_waits_for_both_holds(desk, own_s, lane_s):
    """A shorter hold of its lane does not end its own."""
    desk.do("halt", "outputs", on=True)
    desk.poll(desk.part, 0)
    assert order(desk, "hold", record(0), for_s=own_s) == [("held", 0)]
    assert order(desk, "hold", for_s=lane_s) == [("held", 0)]
    desk.do("halt", "outputs", on=False)
    desk.pass_time(8.9)
    assert started(desk) == []
    desk.pass_time(0.2)
    assert started(desk) == [0]


def test_a_release_of_the_lane_ends_a_hold_of_its_record_for_good(desk):
    """A hold of the lane after that is as long as it says."""
    desk.do("halt", "outputs", on=True)
    desk.poll(desk.part, 0)
    order(desk, "hold", record(0), for_s=50.0)
    assert order(desk, "release") == [("released", 0)]
    assert order(desk, "hold", for_s=2.0) == [("held", 0)]
    desk.do("halt", "outputs", on=False)
    desk.pass_time(2.1)
    assert started(desk) == [0]


def test_what_comes_behind_a_retried_record_of_a_held_lane_is_charged_with_it(make_desk):
    """Its lane failed before: what it holds is in one charge (the desk counts it all again)."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in desk.started()])
    desk.pass_time(0.1)
    (first,) = desk.started()
    order(desk, "hold")
    desk.poll(part, 1)
    desk.do("calls_ended", [first])
    assert part.lanes.blocked_records == 1
    order(desk, "release")
    desk.do("calls_ended", desk.started())
    assert (part.lanes.blocked_records, part.lanes.blocked_bytes) == (0, 0)


def refused(make_desk, ordering: str):
    """exactly_once: 0 was refused and has joined the end of its lane, 1 is its first and runs."""
    spec = HandlerSpec("h", ordering, delivery="exactly_once", retry=Retry(delay_s=9.0, jitter=0.0))
    desk = make_desk(spec)
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, 1, 2)
    (first,) = desk.started()
    desk.take(object)
    desk.do("calls_ended", [], [Returned(first, ["output"])])
    (second,) = [w for e in desk.effects if isinstance(e, fx.Start) for w in e.works]
    (transaction,) = desk.take(fx.Transact)
    desk.do("transacted", transaction.sequence, committed=False, refused=[(first, ERROR)])
    order(desk, "retry", record(0))
    return desk, part, second


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_what_joined_the_end_of_its_lane_is_not_skipped_before_its_turn(make_desk, ordering):
    """Its offset is the lowest; the lane would start what runs already, and what follows it."""
    desk, part, second = refused(make_desk, ordering)
    assert order(desk, "skip", record(0)) == [("refused", 0)]
    desk.poll(part, 3)
    assert started(desk) == []
    desk.do("calls_ended", [], [Returned(second, ["output"])])
    assert started(desk) == [2]


def test_a_lane_is_held_at_what_is_next_not_at_its_lowest_offset(make_desk):
    """exactly_once: the lowest one joined the lane's end."""
    desk, _, second = refused(make_desk, "key")
    assert order(desk, "hold") == [("held", 2)]
    desk.do("calls_ended", [], [Returned(second, ["output"])])
    assert started(desk) == []
    assert order(desk, "release") == [("released", 2)]
    assert started(desk) == [2]


def test_what_waits_for_an_old_call_and_is_held_has_one_place(desk):
    """That of the old call, then that of the hold; and it starts when both are over."""
    desk.poll(desk.part, 0)
    (old,) = desk.started()
    desk.do("closed", [desk.part], lost=True)
    (part,) = desk.assign(0, unix_s=UNIX_S + desk.now)
    desk.poll(part, 0)
    assert order(desk, "hold", record(0)) == [("held", 0)]
    assert places(desk) == {"held": 1}
    desk.do("calls_ended", [old])
    assert places(desk) == {"on_hold": 1}
    assert started(desk) == []
    desk.pass_time(10.1)
    assert started(desk) == [0]


def places(desk):
    """Where the records of the only partition are."""
    (row,) = snapshot(take(desk.engine, desk.now))["partitions"]
    return {name: count for name, count in row["places"].items() if count}


def test_a_hold_that_is_over_is_looked_at_no_more(desk):
    """Then the partition knows of nothing, and its records are ready without a look."""
    assert order(desk, "hold") == [("held", -1)]
    desk.poll(desk.part, 0)
    assert desk.part.lanes.up is not desk.part.lanes.ready
    desk.pass_time(10.1)
    assert started(desk) == [0]
    assert (desk.part.holds, desk.part.lanes.up is desk.part.lanes.ready) == ({}, True)


def test_a_record_that_is_held_behind_another_stays_held_in_the_next_epoch(desk):
    """The commit has the hold before the record's turn has come; another member obeys it."""
    desk.poll(desk.part, 0, 1, key=b"k")
    assert started(desk) == [0]
    assert order(desk, "hold", record(1)) == [("held", 1)]
    (item,) = desk.take(fx.CommitOffsets)[0].items
    (known,) = decode(item.frontier, item.metadata).rider.entries
    assert (known.offset, known.held, known.until_s) == (1, True, UNIX_S + 10)


def test_what_comes_behind_a_failed_record_of_a_held_lane_is_held(make_desk):
    """A function gives the failed one up without another call: the lane is held all the same."""
    spec = HandlerSpec("h", retry=Retry(attempts=1), on_exhausted=lambda _record, _error: Skip())
    desk = make_desk(spec)
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0)
    (first,) = desk.started()
    order(desk, "hold")
    desk.do("calls_ended", [], [Failed(first, ERROR)])
    (question,) = desk.take(fx.AskExhausted)
    desk.poll(part, 1)
    desk.do("decided", [Decided(first, question.number, Skip())])
    assert started(desk) == []
    desk.pass_time(10.1)
    assert started(desk) == [1]


def test_a_held_lane_starts_nothing_behind_a_parked_record_that_it_went_past(make_desk):
    """exactly_once: the output of 0 was refused, so it is parked, and 1 runs meanwhile."""
    desk = make_desk(HandlerSpec("h", delivery="exactly_once", retry=Retry(attempts=1)))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, 1, 2)
    (first,) = desk.started()
    desk.do("calls_ended", [], [Returned(first, ["output"])])
    (second,) = [w for e in desk.effects if isinstance(e, fx.Start) for w in e.works]
    (transaction,) = desk.take(fx.Transact)
    desk.do("transacted", transaction.sequence, committed=False, refused=[(first, ERROR)])
    assert order(desk, "hold") == [("held", 2)]
    desk.do("calls_ended", [], [Returned(second, ["output"])])
    assert started(desk) == []
    desk.pass_time(10.1)
    assert started(desk) == [2]


@pytest.mark.parametrize("action", ["release", "retry"])
def test_what_came_held_starts_when_its_lane_was_released_before_it_came(make_desk, action):
    """The rider has no key, so it is not known which of its records are of the lane."""
    desk = make_desk(HandlerSpec("h"))
    held = [Remembered(offset, 0, held=True, until_s=int(UNIX_S) + 60) for offset in (0, 1)]
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=tuple(held))
    assert order(desk, action) == [("unchanged", -1)]
    desk.poll(part, 0)
    desk.poll(part, 1, key=b"other")
    assert started(desk) == [0]


@pytest.mark.parametrize("action", ["release", "retry"])
def test_what_at_most_once_has_handled_is_not_released(make_desk, action):
    """Its failure ends the run; until that is over a command for its key handles nothing again."""
    desk = make_desk(HandlerSpec("h", delivery="at_most_once", on_exhausted=Stop()))
    (desk.part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(desk.part, 0)
    (mark,) = [effect for effect in desk.effects if isinstance(effect, fx.CommitOffsets)]
    desk.answer(mark)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR, final=True)])
    assert order(desk, action) == [("refused", 0)]
    assert desk.started() == []


def test_the_lanes_of_other_records_are_not_looked_up(desk, monkeypatch):
    """They were, with three generators for each of 10,000 held keys."""
    asked, real = [], Lanes.key_of

    def key_of(lanes: Lanes, one: Record) -> LaneKey:
        asked.append(one.offset)
        return real(lanes, one)

    for offset in range(20):
        desk.poll(desk.part, offset, key=b"k%d" % offset)
        order(desk, "hold", Target("t", b"k%d" % offset))
    monkeypatch.setattr(Lanes, "key_of", key_of)
    for action in ("hold", "release"):  # not by the desk, which recounts all lanes
        command = Command(action, Target("t", b"k7"), "1", UNIX_S + desk.now + 10, "a reason")
        desk.engine.obey(desk.now, [command], UNIX_S + desk.now)
    assert set(asked) <= {7}
