"""What commits remember of failing records, and what the next owner makes of it."""

from __future__ import annotations

import pytest

from perkey.codec import Remembered, decode, encode_fitting
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Command, Failed, HandlerSpec, Limits, Pause, Steering, Target
from perkey.core.memory import ENTRIES_MAX, Memory
from perkey.core.work import Failure, SharedTexts, Work
from perkey.policies import Batch, DeadLetter, Park, Retry, Skip, Stop
from perkey.types import ErrorInfo, Record

ERROR = ErrorInfo(
    "ValueError", "bad", 'Traceback:\n  File "app.py", line 3, in check\nValueError: bad'
)
UNIX_S = 1_700_000_000.0
RETRY = Retry(attempts=3, delay_s=100.0, delay_max_s=100.0, jitter=0.0)


def remembered(desk) -> tuple[Remembered, ...]:
    """The rider of the commit that is due within a second."""
    desk.take(object)
    desk.pass_time(1.0)
    (effect,) = desk.take((fx.CommitOffsets, fx.Transact))
    (item,) = effect.items
    if isinstance(effect, fx.CommitOffsets):
        desk.answer(effect)
    return decode(item.frontier, item.metadata).rider.entries


def fail(desk, *works, final: bool = False) -> None:
    """These calls end in a failure."""
    desk.do("calls_ended", [], [Failed(work, ERROR, final=final) for work in works])


@pytest.fixture
def failing(make_desk):
    """A desk whose record 0 has failed once, with these options of its handler."""

    def made(**options):
        desk = make_desk(HandlerSpec("h", **{"retry": RETRY, **options}))
        (part,) = desk.assign(0, unix_s=UNIX_S)
        desk.poll(part, 0)
        fail(desk, *desk.started())
        return desk, part

    return made


def restored(make_desk, *entries: Remembered, **options):
    """A desk that got its partition with these entries, and has fetched the records."""
    desk = make_desk(HandlerSpec("h", **{"retry": RETRY, **options}))
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=entries)
    for offset in range(4):
        desk.poll(part, offset, key=b"%d" % offset)
    return desk, part


def test_attempts_and_the_time_of_the_next_are_in_the_commit(failing):
    """One failed attempt; the next one in a hundred seconds."""
    desk, _ = failing()
    (entry,) = remembered(desk)
    assert entry[:6] == (0, 1, False, False, "", int(UNIX_S) + 100)
    assert entry.error is not None


def test_without_failures_a_commit_is_what_it_was(make_desk):
    """Byte for byte: the map alone, also after failures that are done."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=0.0, jitter=0.0)))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, *range(6), key=None)
    works = desk.started()
    fail(desk, works[5])
    desk.pass_time(0.5)
    desk.do("calls_ended", [*works[1:3], *desk.started()])
    desk.take(object)
    desk.pass_time(1.0)
    ((item,),) = [effect.items for effect in desk.take(fx.CommitOffsets)]
    assert item.metadata == encode_fitting(0, 5, [0, 3, 4])[0]


@pytest.mark.parametrize(
    "options",
    [
        {"retry": Retry(attempts=3, delay_s=9.0, remember=False)},
        {"delivery": "at_most_once", "retry": Retry(attempts=1), "on_exhausted": Skip()},
    ],
)
def test_where_nothing_is_to_be_remembered_nothing_is(failing, options):
    """`remember=False`, and where nothing is tried twice."""
    desk, part = failing(**options)
    desk.poll(part, 1, key=b"other")
    desk.do("calls_ended", desk.started())
    for effect in desk.take(fx.CommitOffsets):  # at_most_once: its mark
        desk.answer(effect)
    assert not part.memory


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_record_begins_with_the_attempts_that_it_came_with(make_desk, attempts):
    """At once, when its delay is over by then."""
    desk, _ = restored(make_desk, Remembered(1, attempts, until_s=int(UNIX_S) - 1))
    assert {w.record.offset: w.record.attempt for w in desk.started()}[1] == attempts + 1


@pytest.mark.parametrize("waits_s", [1, 30])
def test_its_delay_goes_on(make_desk, waits_s):
    """And not one second longer."""
    desk, _ = restored(make_desk, Remembered(1, 1, until_s=int(UNIX_S) + waits_s))
    assert [work.record.offset for work in desk.started()] == [0, 2, 3]
    desk.pass_time(waits_s - 0.1)
    assert desk.started() == []
    desk.pass_time(0.2)
    assert [(w.record.offset, w.record.attempt) for w in desk.started()] == [(1, 2)]


def test_the_delay_of_a_failed_batch_goes_on_after_a_restart(make_desk):
    """It costs no record an attempt; the service may have asked for the delay (`RetryAfter`)."""
    batched = {"batch": Batch(max_records=2), "retry": RETRY}
    desk = make_desk(HandlerSpec("h", **batched))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0, 1, key=None)
    failed = [Failed(work, ERROR, delay_s=300.0) for work in desk.started()]
    desk.do("batch_ended", 0, [], failed, whole=True)
    entries = remembered(desk)
    assert [entry[:6] for entry in entries] == [
        (offset, 0, False, False, "", int(UNIX_S) + 300) for offset in (0, 1)
    ]
    again = make_desk(HandlerSpec("h", **batched))
    (part,) = again.assign(0, unix_s=UNIX_S + 10.0, remembered=entries)
    again.poll(part, 0, 1, key=None)
    again.pass_time(289.0)
    assert again.started() == []
    again.pass_time(2.0)
    assert [work.offset for work in again.started()] == [0, 1]


def test_a_postponed_record_is_remembered_with_its_time_and_no_attempt(make_desk):
    """`NotNow`: the next owner waits for the rest of it, and calls it as a first attempt."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, ERROR, delay_s=300.0, not_now=True)])
    entries = remembered(desk)
    assert entries == (Remembered(0, 0, until_s=int(UNIX_S) + 300),)
    assert part.handler.failures == 0
    assert desk.engine.state.counts["not_now"] == 1
    again = make_desk(HandlerSpec("h", retry=RETRY))
    (part,) = again.assign(0, unix_s=UNIX_S + 10.0, remembered=entries)
    again.poll(part, 0)
    again.pass_time(289.0)
    assert again.started() == []
    again.pass_time(2.0)
    assert [(work.offset, work.record.attempt) for work in again.started()] == [(0, 1)]


@pytest.mark.parametrize(
    ("policy", "state"),
    [(Park(), "parked"), (DeadLetter("dlq"), "sending"), (Skip(), "done")],
)
def test_a_record_that_has_used_its_attempts_is_not_tried_again(make_desk, policy, state):
    """It gets what the policy has for it, without a call."""
    desk, part = restored(make_desk, Remembered(1, 3), on_exhausted=policy)
    desk.pass_time(0.1)
    started = desk.take(object)
    offsets = {w.record.offset for e in started if isinstance(e, fx.Start) for w in e.works}
    assert 1 not in offsets
    work = part.offsets.incomplete.get(1)
    assert (state == "done") == (work is None)
    assert work is None or states.RECORD_NAMES[work.state] == state


def test_with_stop_a_restart_tries_again(make_desk):
    """Else what was mended would end at its start for ever."""
    desk, _ = restored(make_desk, Remembered(1, 3, exhausted_by="attempts"), on_exhausted=Stop())
    assert 1 in [work.record.offset for work in desk.started()]


def test_a_parked_record_stays_parked(make_desk):
    """It is not handled, is remembered again, and holds its lane."""
    desk, part = restored(make_desk, Remembered(1, 3, parked=True, exhausted_by="attempts"))
    desk.poll(part, 4, key=b"1")
    assert [work.record.offset for work in desk.started()] == [0, 2, 3]
    assert part.parked == 1
    desk.pass_time(1_000.0)
    assert desk.started() == []
    entry = part.memory.entries(part.position, (), desk.now, UNIX_S)[0]
    assert (entry.offset, entry.attempts, entry.parked) == (1, 3, True)


@pytest.mark.parametrize("waits_s", [0.5, 60.0])
def test_a_parked_record_is_released_after_its_time(failing, waits_s):
    """Its attempts begin anew."""
    desk, part = failing(retry=Retry(attempts=1), on_exhausted=Park(release_after_s=waits_s))
    assert part.parked == 1
    desk.pass_time(waits_s - 0.1)
    assert desk.started() == []
    desk.pass_time(0.1)
    assert [work.record.attempt for work in desk.started()] == [1]
    assert part.parked == 0


def test_what_was_not_fetched_yet_is_remembered_again(make_desk):
    """A commit before the first fetch says what the one before said."""
    entry = Remembered(3, 2, until_s=int(UNIX_S) + 9, error=7)
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    desk.assign(0, unix_s=UNIX_S, remembered=(entry,), commit_start=True)
    (effect,) = desk.take(fx.CommitOffsets)
    assert decode(0, effect.items[0].metadata).rider.entries == (entry,)


def test_what_the_log_has_no_more_is_forgotten(make_desk):
    """Compacted since: the polls have passed it."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=(Remembered(3, 2),))
    desk.poll(part, 5)
    desk.do("calls_ended", desk.started())
    assert remembered(desk) == ()
    assert not part.memory


@pytest.mark.parametrize("room", [-4, 0, 4])
def test_the_latest_give_way_where_the_commit_has_no_room(make_desk, room):
    """The first ones are remembered, the map is whole, and it is told once."""
    limits = Limits(map_chars=64 + room)
    desk = make_desk(HandlerSpec("h", "unordered", retry=RETRY), limits=limits)
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.poll(part, *range(20), key=None)
    fail(desk, *desk.started())
    told = remembered(desk)
    assert [one.offset for one in told] == list(range(len(told)))
    assert 0 < len(told) < 20
    desk.poll(part, 20, key=None)
    fail(desk, *desk.started())
    desk.take(object)
    desk.pass_time(1.0)
    assert part.memory.shed == 21 - len(told)
    assert not desk.take(fx.Note)
    assert desk.engine.state.counts["riders_cut"] == 1


@pytest.mark.parametrize("target", [Target("t", b"k"), Target("t", None, 0, 0)])
def test_a_release_is_in_the_next_commit(make_desk, target):
    """Also while nothing else changes, as in a pause: else a next owner held the record again."""
    desk = make_desk(HandlerSpec("h", retry=RETRY, concurrency=1))
    (part,) = desk.assign(0, unix_s=UNIX_S)
    desk.do("steer", Steering((Pause("t", None, 1000.0, "r"),)))
    desk.poll(part, 0, key=b"k")
    desk.do("obey", [Command("hold", target, "1", UNIX_S + 600.0, "r")], UNIX_S)
    (effect,) = desk.take(fx.CommitOffsets)
    assert effect.items[0].rider_chars > 0
    desk.answer(effect)
    desk.do("obey", [Command("release", target, "2", reason="r")], UNIX_S)
    desk.pass_time(1.0)
    (effect,) = desk.take(fx.CommitOffsets)
    assert (effect.items[0].rider_chars, desk.started()) == (0, [])


def test_the_rider_gives_way_before_the_map_where_the_broker_stores_less(failing):
    """Refused as too large: the next commit has the same map without it."""
    desk, part = failing()
    desk.take(object)
    desk.pass_time(1.0)
    (effect,) = desk.take(fx.CommitOffsets)
    desk.answer(effect, "too_large")
    desk.pass_time(1.0)
    (again,) = desk.take(fx.CommitOffsets)
    assert decode(0, again.items[0].metadata).rider.entries == ()
    assert part.commit.map_limit == 4096


@pytest.mark.parametrize("count", [ENTRIES_MAX - 1, ENTRIES_MAX, ENTRIES_MAX + 1])
def test_no_more_is_looked_at_than_a_commit_can_hold(count):
    """However many are remembered."""
    memory = Memory([Remembered(offset, 1) for offset in range(count)])
    assert len(memory.entries(0, (), 0.0, 0.0)) == min(count, ENTRIES_MAX)


def test_what_is_forgotten_and_kept_again_is_there_once():
    """Ascending, wherever it was before."""
    memory = Memory([Remembered(offset, 1) for offset in range(4)])
    assert memory.start_over(1)
    assert memory.start_over(2)
    assert not memory.start_over(2)
    work = Work.one(Record("t", 0, 1, 0, None, b""), 1, None)
    work.failure = Failure(SharedTexts())
    work.failure.attempts = 2
    work.state = states.RETRYING
    memory.keep(work)
    kept = memory.entries(0, (), 0.0, 0.0)
    assert [(one.offset, one.attempts) for one in kept] == [(0, 1), (1, 2), (3, 1)]


def decide(record, error):
    """The core never calls it."""
    raise AssertionError


DAY_S = 86_400
UNBOUND = {
    "parked": (365, {"parked": True, "attempts": 3}, {"on_exhausted": decide}),
    "held": (30, {"held": True}, {}),
    "retried": (7, {"attempts": 1}, {}),
    "by its policy": (20, {"attempts": 1}, {"retry": Retry(None, 1.0, 2.0, 20 * DAY_S, 0.0)}),
}


@pytest.mark.parametrize("past_s", [-1, 0, 1])
@pytest.mark.parametrize("cause", UNBOUND)
def test_a_commit_puts_off_no_longer_than_its_cause_can(make_desk, cause, past_s):
    """A hold of 30 days is one of 30 days after a restart as well, and no commit makes it more."""
    days, entry, options = UNBOUND[cause]
    longest_s = days * DAY_S
    until_s = int(UNIX_S) + longest_s + past_s
    known = Remembered(1, until_s=until_s, **{"attempts": 0, **entry})
    desk, _ = restored(make_desk, known, **options)
    desk.started()
    desk.pass_time(longest_s + min(past_s, 0) - 0.1)
    assert desk.started() == []
    desk.pass_time(0.2)
    assert [work.record.offset for work in desk.started()] == [1]


@pytest.mark.parametrize("days", [1, 30, 365])
def test_a_parked_record_is_released_by_its_own_time_after_a_restart(failing, make_desk, days):
    """Not before, however far away that is."""
    policy = {"retry": Retry(attempts=1), "on_exhausted": Park(days * DAY_S)}
    desk, _ = failing(**policy)
    (entry,) = remembered(desk)
    desk, part = restored(make_desk, entry, **policy)
    desk.started()
    desk.pass_time(days * DAY_S - 1.0)
    assert part.parked == 1
    desk.pass_time(2.0)
    assert part.parked == 0


@pytest.mark.parametrize("surplus", [-1, 0, 1])
def test_no_more_is_made_than_there_is_room_for(surplus):
    """The first entry that cannot fit is the last one; how many are behind it is known."""
    memory = Memory([Remembered(offset, 1, until_s=7, error=9) for offset in range(10)])
    found = memory.entries(0, (), 0.0, 0.0, bytes_max=4 * 8 + surplus)
    assert len(found) == (4 if surplus < 0 else 5)
    assert memory.unseen == 10 - len(found)


def test_what_the_log_has_no_more_is_not_waited_for(make_desk):
    """A remembered record was compacted away: once that is seen, no record is looked at for it."""
    desk = make_desk(HandlerSpec("h", retry=RETRY))
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=(Remembered(1, 2), Remembered(5, 1)))
    desk.poll(part, 0, 2, 5, key=None)
    works = desk.started()
    assert part.memory.waiting == 1
    desk.do("calls_ended", works)
    desk.pass_time(1.0)
    assert (part.memory.waiting, part.lanes.up is part.lanes.ready) == (0, True)
