"""A dry command has the answer of the real one, by the state of the record, and changes nothing."""

from __future__ import annotations

import pytest
from tests.unit.core.test_memory import ERROR, UNIX_S

from perkey.codec import Remembered
from perkey.core import effects as fx
from perkey.core.events import Command, Failed, HandlerSpec, Target
from perkey.policies import Retry

LANE, RECORD = Target("t", b"k"), Target("t", None, 0, 0)
RETRY = Retry(attempts=2, delay_s=100.0, delay_max_s=100.0, jitter=0.0)


def step(desk):
    """Its commits are stored; what it answered, and what it started."""
    effects, desk.effects = desk.effects, []
    for one in [one for one in effects if isinstance(one, fx.CommitOffsets)]:
        desk.answer(one)
    answered = [one for one in effects if isinstance(one, fx.Answered)]
    return answered, [work for one in effects if isinstance(one, fx.Start) for work in one.works]


def queued(desk, part):
    """Its handler is full."""
    (other,) = desk.assign(1)
    desk.poll(other, 0, key=b"other")
    desk.poll(part, 0)


def running(desk, part):
    """Its call has begun, another one of its key waits."""
    desk.poll(part, 0, 1)


def failing(desk, part):
    """It waits for its next attempt."""
    running(desk, part)
    desk.do("calls_ended", [], [Failed(work, ERROR) for work in step(desk)[1]])


def parked(desk, part):
    """Its attempts are used up."""
    running(desk, part)
    desk.do("calls_ended", [], [Failed(work, ERROR, final=True) for work in step(desk)[1]])


def held(desk, part):
    """By a command to its key, which came first."""
    answers(desk, "hold", LANE)
    running(desk, part)


def held_itself(desk, part):
    """By a command to it."""
    queued(desk, part)
    answers(desk, "hold", RECORD)


def done(desk, part):
    """Nothing of its key is left."""
    desk.poll(part, 0)
    desk.do("calls_ended", step(desk)[1])


def nothing(desk, part):
    """The log has more, and nothing of it is here."""
    desk.engine.log_ends([(part, 10)])


def past_the_end(desk, part):
    """The log ends before it."""


def remembered(desk, part):
    """The commit knows that it is parked; it was not fetched yet."""


CASES = (
    queued,
    running,
    failing,
    parked,
    held,
    held_itself,
    done,
    nothing,
    past_the_end,
    remembered,
)


@pytest.fixture
def made(make_desk):
    """A desk in the state of a case."""

    def build(case):
        desk = make_desk(HandlerSpec("h", retry=RETRY, concurrency=1))
        known = (Remembered(0, 2, parked=True, exhausted_by="attempts"),)
        given = {"remembered": known} if case is remembered else {}
        if case is past_the_end:
            given = {"log_end": 0}
        (part,) = desk.assign(0, unix_s=UNIX_S, **given)
        case(desk, part)
        step(desk)
        return desk

    return build


def answers(desk, action, target, *, dry_run: bool = False):
    """Outcome and offset of each row; those of a skip once they came."""
    until_s = UNIX_S + desk.now + 10.0
    command = Command(action, target, "1", until_s, "a reason", dry_run=dry_run)
    desk.do("obey", [command], UNIX_S + desk.now)
    for _ in range(5):
        found, works = step(desk)
        if found:
            rows = [row for one in found for row in one.rows if row.partition == 0]
            return [(row.outcome, row.offset) for row in rows]
        if works:
            desk.do("calls_ended", works)
        desk.pass_time(1.0)
    raise AssertionError("no answer")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("action", "target"),
    [
        *((action, RECORD) for action in ("hold", "release", "retry", "skip")),
        *((action, LANE) for action in ("hold", "release", "retry")),
    ],
)
def test_a_dry_command_is_answered_as_the_real_one(made, case, action, target):
    """By the state of the record; twice the same, so the first one changed nothing."""
    desk = made(case)
    dry = [answers(desk, action, target, dry_run=True) for _ in range(2)]
    assert dry[0] == dry[1] == answers(made(case), action, target)
    assert answers(desk, action, target) == dry[0]


@pytest.mark.parametrize(
    ("case", "answer"),
    [
        (queued, ("skipped", 0)),
        (running, ("refused", 0)),
        (failing, ("skipped", 0)),
        (parked, ("skipped", 0)),
        (held, ("skipped", 0)),
        (done, ("not here", -1)),
    ],
)
def test_a_dry_skip_of_a_key_names_its_first_record(made, case, answer):
    """The real one is of that record: given to two owners, one of a key would skip two."""
    desk = made(case)
    assert answers(desk, "skip", LANE, dry_run=True) == [answer]
    real = ("not here", -1) if case is done else ("refused", 0)
    assert answers(desk, "skip", LANE) == [real]


@pytest.mark.parametrize("count", [7, 8, 9])
def test_many_commands_at_once_see_what_the_former_did(made, count):
    """From 8 on the records are sorted by lane once: a skip in front is seen all the same."""
    desk = made(parked)
    skip = Command("skip", RECORD, "0", 0.0, "a reason")
    rest = [
        Command("skip", LANE, str(number), dry_run=True, reason="a reason")
        for number in range(1, count)
    ]
    desk.do("obey", [skip, *rest], UNIX_S + desk.now)
    found = {
        row.offset for one in desk.take(fx.Answered) if one.command.dry_run for row in one.rows
    }
    assert found == {1}
