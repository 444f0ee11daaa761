"""What failing records keep in memory: shared where it is equal, bounded, and charged."""

from __future__ import annotations

import tracemalloc

import pytest

from perkey.core.events import Failed, HandlerSpec, Limits
from perkey.core.work import (
    STORY_EVENTS_MAX,
    TEXTS_MAX,
    Failure,
    SharedTexts,
    StoryEvent,
    size_bytes,
)
from perkey.policies import Park, Retry
from perkey.types import ErrorInfo

TRACE = "Traceback (most recent call last):\n" + 19 * '  File "/srv/app.py", line 7, in check\n'
COUNT, SIZE = 1_000, 100  # bytes of each, as the desk says


def error_of(offset: int, *, alike: bool) -> ErrorInfo:
    """As a worker process sends it: no text of it is the same object as another's."""
    message = "no answer" if alike else f"no answer for order {offset}"
    return ErrorInfo(f"{'Timeout'}Error", f"{message}", f"{TRACE}TimeoutError: {message}\n")


@pytest.fixture
def failing(make_desk):
    """A desk on which records fail, and the one partition of it."""

    def made(**options):
        spec = HandlerSpec("h", concurrency=COUNT, on_exhausted=Park(), **options)
        desk = make_desk(spec, limits=Limits(buffer_records=10**6, buffer_bytes=10**9))
        (part,) = desk.assign(0)
        desk.poll(part, *range(COUNT), key=None)
        return desk, part

    return made


def fail_all(desk, *, alike: bool) -> None:
    """Each record that was started fails."""
    failed = [Failed(work, error_of(work.record.offset, alike=alike)) for work in desk.started()]
    desk.do_unchecked("calls_ended", [], failed)
    desk.effects = []


@pytest.mark.push
@pytest.mark.parametrize(("alike", "most_bytes"), [(True, 1_450), (False, 1_700)])
def test_records_that_fail_alike_share_their_traceback(failing, alike, most_bytes):
    """A parked record keeps about a kilobyte of its failures beside what all have in common.

    `alike=False`: each message names its record, so the tracebacks differ in their last line only.
    Measured with five attempts: 1,400 and 1,540 bytes; it was 14 KB.
    """
    attempts = 5
    desk, part = failing(retry=Retry(attempts=attempts, delay_s=0.01, jitter=0.1))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(attempts):
        fail_all(desk, alike=alike)
        desk.now += 60.0
        desk.do_unchecked("tick")
    kept = (tracemalloc.get_traced_memory()[0] - before) / COUNT
    tracemalloc.stop()
    charged = (part.bytes - SIZE * COUNT) / COUNT
    assert part.parked == COUNT
    assert kept < most_bytes
    assert 0.7 * kept < charged < 1.3 * kept


def test_what_the_next_attempt_is_given_is_charged(make_desk):
    """The traceback is put together anew for it, from the parts that records share."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=3, delay_s=1.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    error = error_of(0, alike=False)
    desk.do("calls_ended", [], [Failed(work, error)])
    before = part.bytes
    desk.pass_time(5.0)
    assert part.bytes - before >= size_bytes(error.traceback)


def test_tracebacks_that_differ_are_charged(failing):
    """Nothing is shared: the buffers pay for each, and are paid back when the record is done."""
    desk, part = failing(retry=Retry(attempts=None, delay_s=0.01))
    works = desk.started()
    for work in works:
        trace = f"at {work.record.offset} " + TRACE
        desk.do_unchecked("calls_ended", [], [Failed(work, ErrorInfo("E", "bad", trace))])
    assert part.bytes > COUNT * (SIZE + len(TRACE))
    assert part.lanes.blocked_bytes == part.bytes
    desk.pass_time(60.0)
    desk.do("calls_ended", desk.started())
    assert part.bytes == part.lanes.blocked_bytes == 0


@pytest.mark.parametrize(
    "error",
    [
        ErrorInfo("E", "bad", "Traceback: bad\nE: bad\n"),
        ErrorInfo("E", "bad", "bad"),
        ErrorInfo("E", "", "Traceback\nE\n"),
        ErrorInfo("E", "bad", "Traceback\nno word of it\n"),
        ErrorInfo("E", "bad", ""),
    ],
)
def test_an_error_is_given_back_as_it_was(make_desk, error):
    """To the next attempt, and to whoever asks."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=None, delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    desk.do("calls_ended", [], [Failed(work, error)])
    assert work.failure.error == error
    desk.pass_time(0.01)
    (again,) = desk.started()
    assert again.record.last_error == error


def test_a_waiting_record_does_not_hold_the_traceback_before_the_last(make_desk):
    """What its last attempt was told is over; type and message stay."""
    desk = make_desk(HandlerSpec("h", retry=Retry(attempts=2, delay_s=0.0), on_exhausted=Park()))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    for _ in range(2):
        (work,) = desk.started()
        desk.do("calls_ended", [], [Failed(work, error_of(0, alike=True))])
        desk.pass_time(0.01)
    assert work.record.last_error == ErrorInfo("TimeoutError", "no answer", "")
    assert work.failure.error == error_of(0, alike=True)


def test_the_table_of_shared_texts_is_bounded():
    """It forgets what was not asked for longest."""
    texts = SharedTexts()
    first = texts.same("first!")[0]
    for number in range(2 * TEXTS_MAX):
        texts.same(f"text {number}")
        assert texts.same("first!") == (first, 0)
    assert texts.same("text 0")[1] > 0
    assert texts.same(f"text {2 * TEXTS_MAX - 1}")[1] == 0


def test_a_story_forgets_its_oldest_event():
    """One more than it keeps: the first goes, with its time, and the others stay in order."""
    failure = Failure(SharedTexts())
    events = [
        StoryEvent(float(number), f"event {number}") for number in range(STORY_EVENTS_MAX + 1)
    ]
    for event in events:
        failure.note(*event)
    assert failure.story == events[1:]


def test_an_event_is_charged_while_it_is_kept():
    """With what its text takes."""
    failure, plain = Failure(SharedTexts()), Failure(SharedTexts())
    failure.note(0.0, "x" * 1_000)
    assert failure.uncharged() - plain.uncharged() == size_bytes("x" * 1_000)


def test_a_forgotten_event_is_not_charged_any_more():
    """The room of a long first one comes back; the last ones take what they take."""
    failure, plain = Failure(SharedTexts()), Failure(SharedTexts())
    failure.note(0.0, "x" * 1_000)
    for number in range(STORY_EVENTS_MAX):
        for one in (failure, plain):
            one.note(1.0, f"event {number}")
    assert failure.uncharged() == plain.uncharged()
