"""A function as `on_exhausted`: what the core asks for, and what it does with the answer."""

from __future__ import annotations

import pytest

from perkey.account.blockers import record_row
from perkey.codec import Remembered, decode
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.events import Command, Decided, Failed, HandlerSpec, Target
from perkey.observe.sentences import record_sentence
from perkey.policies import DeadLetter, Park, Retry, Skip, Stop
from perkey.types import ErrorInfo

UNIX_S = 1_700_000_000.0
ERROR = ErrorInfo("ValueError", "bad")
TWICE = Retry(attempts=2, delay_s=0.0)


def decides(record, error):
    """The core never calls it."""
    raise AssertionError


@pytest.fixture
def asked(make_desk):
    """Offset 0 has failed twice, so it is asked for; 1 waits behind it."""

    def make(**options):
        spec = HandlerSpec("h", **{"retry": TWICE, "on_exhausted": decides, **options})
        desk = make_desk(spec)
        (part,) = desk.assign(0, unix_s=UNIX_S)
        desk.poll(part, 0, 1)
        fail(desk)
        assert desk.take(fx.AskExhausted) == []
        desk.pass_time(0.1)
        fail(desk)
        (question,) = desk.take(fx.AskExhausted)
        return desk, part, question

    return make


def fail(desk, **options):
    """All calls that were started fail."""
    ended = [Failed(work, ERROR, **options) for work in desk.started()]
    desk.do("calls_ended", [], ended)


def decide(desk, question, outcome, **more):
    """The function has returned this."""
    desk.do("decided", [Decided(question.work, question.number, outcome, **more)])


def command(action):
    """A command to offset 0."""
    return Command(action, Target("t", None, 0, 0), "c", UNIX_S + 30.0, "asked")


def test_it_is_asked_once_with_the_last_attempt_and_its_lane_waits(asked):
    """Nothing starts, is sent or is parked before the answer."""
    desk, part, question = asked()
    assert (question.record.offset, question.record.attempt, question.error) == (0, 2, ERROR)
    desk.pass_time(1_000.0)
    assert [e for e in desk.effects if isinstance(e, fx.Start | fx.AskExhausted)] == []
    assert (part.retrying, part.parked) == (1, 0)


def test_views_show_that_it_waits_for_the_function(asked):
    """No time of a next attempt, which there may be none of."""
    desk, _, question = asked()
    row = record_row(question.work, HandlerSpec("h", retry=TWICE), desk.now, 0.0)
    assert (row["attempts"], row["due_in_s"]) == (2, None)
    row |= {"topic": "t", "partition": 0, "offset": 0, "place": "retrying"}
    text = record_sentence(row).text
    assert "failed 2 times: ValueError: bad; it waits" in text
    assert text.endswith("for on_exhausted= to return.")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Park(), "parked"), (DeadLetter("{topic}.dlq"), "sending"), (Skip(), "done")],
)
def test_what_it_returns_becomes_of_the_record(asked, outcome, state):
    """As if it were the handler's policy."""
    desk, _, question = asked()
    decide(desk, question, outcome)
    assert states.RECORD_NAMES[question.work.state] == state
    assert [e.topic for e in desk.take(fx.SendDeadLetter)] == ["t.dlq"] * (state == "sending")


def test_stop_ends_the_run(asked):
    """The record stays not done."""
    desk, part, question = asked()
    decide(desk, question, Stop())
    (fatal,) = desk.take(fx.Fatal)
    assert "its policy is Stop" in fatal.reason
    assert part.frontier == 0


def test_park_is_released_after_its_own_time(asked):
    """The handler has no time; the attempts start over, and the function is asked again."""
    desk, _, question = asked()
    decide(desk, question, Park(release_after_s=5.0))
    desk.pass_time(4.9)
    assert desk.started() == []
    desk.pass_time(0.2)
    assert [work.record.attempt for work in desk.started()] == [1]


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_retry_goes_on_from_attempt_zero_by_that_policy(asked, attempts):
    """So many calls more, after its delay; then it is asked again."""
    desk, _, question = asked()
    decide(desk, question, Retry(attempts, 1.0, multiplier=1.0, jitter=0.0))
    for attempt in range(1, attempts + 1):
        desk.pass_time(0.9)
        assert desk.started() == []
        assert not any(isinstance(e, fx.AskExhausted) for e in desk.effects)
        desk.pass_time(0.2)
        (work,) = [w for e in desk.effects if isinstance(e, fx.Start) for w in e.works]
        assert work.record.attempt == attempt
        fail(desk)
    (again,) = desk.take(fx.AskExhausted)
    assert again.record.attempt == attempts


@pytest.mark.parametrize("times", [2, 3, 4])
def test_retry_is_taken_three_times(asked, times):
    """The fourth one parks the record, with that reason."""
    desk, part, question = asked()
    for _ in range(times):
        decide(desk, question, Retry(1, 0.0))
        desk.pass_time(0.1)
        if part.parked:
            break
        fail(desk)
        (question,) = desk.take(fx.AskExhausted)
    assert part.parked == (times > 3)
    if times > 3:
        assert "returned Retry more than 3 times" in question.work.failure.error.message
        assert "ValueError: bad" in question.work.failure.error.message


def test_what_is_no_outcome_parks_with_its_reason_and_is_counted(asked):
    """The record's own error is behind it."""
    desk, part, question = asked()
    decide(desk, question, None, error=ErrorInfo("OnExhausted", "on_exhausted raised X"))
    (trouble,) = [e for e in desk.take(fx.Troubled) if e.outcome == "parked"]
    assert trouble.error.line == (
        "OnExhausted: on_exhausted raised X; the record failed: ValueError: bad"
    )
    assert part.parked == 1
    assert desk.engine.state.counts["on_exhausted_failed"] == 1


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_an_answer_that_comes_twice_counts_once(asked, delivery):
    """Also where the record waits again by then."""
    desk, part, question = asked(delivery=delivery)
    decide(desk, question, Retry(3, 5.0))
    decide(desk, question, Skip())
    assert (question.work.state, part.retrying) == (states.RETRYING, 1)


def test_an_answer_of_an_ended_epoch_changes_nothing(asked):
    """Another member has the record."""
    desk, part, question = asked()
    desk.do("closed", [part])
    decide(desk, question, DeadLetter("dlq"))
    assert desk.take(fx.SendDeadLetter) == []


def test_a_released_record_starts_over_and_the_answer_is_too_late(asked):
    """A person was faster than the function."""
    desk, part, question = asked()
    desk.do("obey", [command("release")], UNIX_S)
    assert [work.record.attempt for work in desk.started()] == [1]
    decide(desk, question, Skip())
    assert part.frontier == 0


def test_a_held_record_is_asked_for_again_after_the_hold(asked):
    """What the function returned meanwhile is not done."""
    desk, _, question = asked()
    desk.do("obey", [command("hold")], UNIX_S + desk.now)
    decide(desk, question, Skip())
    assert question.work.state == states.HELD
    desk.pass_time(31.0)
    (again,) = desk.take(fx.AskExhausted)
    assert again.number != question.number
    decide(desk, again, Skip())
    assert again.work.state == states.DONE


def test_a_skipped_record_is_done_without_an_answer(asked):
    """By command."""
    desk, _, question = asked()
    desk.do("obey", [command("skip")], UNIX_S)
    assert question.work.state == states.DONE
    decide(desk, question, Park())
    assert question.work.state == states.DONE


def test_a_restart_asks_again_without_another_attempt(asked, make_desk):
    """The commit remembers it as exhausted; what was returned before is not remembered."""
    desk, _, _ = asked()
    desk.pass_time(1.0)
    (effect,) = desk.take(fx.CommitOffsets)
    (entry,) = decode(effect.items[0].frontier, effect.items[0].metadata).rider.entries
    assert (entry.offset, entry.attempts, entry.exhausted_by) == (0, 2, "attempts")
    next_one = make_desk(HandlerSpec("h", retry=TWICE, on_exhausted=decides))
    (part,) = next_one.assign(0, unix_s=UNIX_S, remembered=(entry,))
    next_one.poll(part, 0, 1)
    next_one.pass_time(0.1)
    assert not any(isinstance(effect, fx.Start) for effect in next_one.effects)
    (question,) = next_one.take(fx.AskExhausted)
    assert question.error.type == "Exhausted"
    decide(next_one, question, Skip())
    assert [work.record.offset for work in next_one.started()] == [1]


@pytest.mark.parametrize("waits_s", [None, 30])
def test_a_record_that_came_parked_stays_so_for_its_time(make_desk, waits_s):
    """The time is in the commit, not the policy that set it."""
    until_s = None if waits_s is None else int(UNIX_S) + waits_s
    desk = make_desk(HandlerSpec("h", retry=TWICE, on_exhausted=decides))
    entry = Remembered(0, 2, parked=True, exhausted_by="attempts", until_s=until_s)
    (part,) = desk.assign(0, unix_s=UNIX_S, remembered=(entry,))
    desk.poll(part, 0)
    desk.pass_time(29.9)
    assert (desk.started(), part.parked) == ([], 1)
    desk.pass_time(0.2)
    assert [work.record.attempt for work in desk.started()] == [1] * (waits_s is not None)


def test_a_final_error_is_asked_for_at_the_first_attempt(make_desk):
    """`Reject` and `Retry(final=)` exhaust a record, too."""
    desk = make_desk(HandlerSpec("h", retry=TWICE, on_exhausted=decides))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    fail(desk, final=True)
    (question,) = desk.take(fx.AskExhausted)
    assert question.record.attempt == 1


def test_a_drain_of_what_is_buffered_waits_for_the_answer(asked):
    """`until="drained"` ends when the record is done with."""
    desk, _, question = asked()
    desk.do("stop", "buffered")
    assert desk.take(fx.Drained) == []
    decide(desk, question, Skip())
    desk.do("calls_ended", desk.started())
    desk.pass_time(1.0)
    assert question.work.state == states.DONE


def test_a_time_that_a_release_made_void_ends_nothing(asked):
    """Parked for 5 s, released, exhausted again: no other question comes when these are over."""
    desk, part, question = asked()
    decide(desk, question, Park(release_after_s=5.0))
    desk.do("obey", [command("release")], UNIX_S)
    ended = [Failed(work, ERROR, final=True) for e in desk.take(fx.Start) for work in e.works]
    desk.do("calls_ended", [], ended)
    (question,) = desk.take(fx.AskExhausted)
    decide(desk, question, Park())
    desk.pass_time(60.0)
    assert (part.parked, desk.started()) == (1, [])
