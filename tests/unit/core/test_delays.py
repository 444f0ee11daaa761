"""When a failed attempt is tried again, and whose time is over."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import ERROR, offsets

from perkey.account import begun
from perkey.account.begun import waits
from perkey.core import states
from perkey.core.events import DELAY_MAX_S, Failed, HandlerSpec
from perkey.core.retries import RetrySchedule, batch_delay_s, retry_delay_s, spread
from perkey.core.work import Failure, SharedTexts, Work
from perkey.policies import Retry
from perkey.types import Record

GROWING = Retry(attempts=None, delay_s=1.0, multiplier=2.0, delay_max_s=60.0, jitter=0.0)


def failed(attempts: int, shared: int = 0) -> Work:
    """A record that has failed so often."""
    work = Work.one(Record("t", 3, 5, 0, None, b""), 1, None)
    work.failure = failure = Failure(SharedTexts())
    failure.attempts, failure.shared = attempts, shared
    return work


@pytest.mark.parametrize(
    ("attempts", "shared", "delay_s"),
    [
        (1, 0, 1.0),
        (2, 0, 2.0),
        (3, 0, 4.0),
        (4, 2, 2.0),
        (3, 3, 1.0),
        (7, 0, 60.0),
        (9_999, 0, 60.0),
    ],
)
def test_delay_grows_with_the_records_own_attempts(attempts, shared, delay_s):
    """Up to its maximum; calls that failed for a batch are none of them."""
    assert retry_delay_s(GROWING, failed(attempts, shared), None) == delay_s


@pytest.mark.parametrize(
    ("asked", "delay_s"), [(0.0, 0.0), (7.0, 7.0), (-5.0, 0.0), (1e12, DELAY_MAX_S)]
)
def test_what_was_asked_for_comes_first(asked, delay_s):
    """RetryAfter, within bounds."""
    assert retry_delay_s(GROWING, failed(3), asked) == delay_s


def test_a_callable_that_failed_means_a_second():
    """There is nothing else to go by."""
    retry = Retry(delay_s=lambda attempt, error: 1 / 0)
    assert retry_delay_s(retry, failed(3), None) == 1.0
    assert batch_delay_s(retry, Failure(SharedTexts()), 0, None) == 1.0


def test_jitter_spreads_evenly_around_the_delay():
    """Between (1 - jitter) and (1 + jitter) times, and not all on one side."""
    retry = Retry(attempts=None, delay_s=1.0, jitter=0.5)
    delays = []
    for offset in range(1_000):
        work = failed(1)
        work.record = work.record._replace(offset=offset)
        delays.append(retry_delay_s(retry, work, None))
    assert 0.5 <= min(delays) < 0.51
    assert 1.49 < max(delays) <= 1.5
    assert 0.98 < sum(delays) / len(delays) < 1.02


def test_shares_differ_between_records_partitions_and_attempts():
    """So that what failed together does not come back together."""
    places = [(o, p, a) for o in range(40) for p in range(3) for a in (1, 2, 3)]
    shares = [spread(*place) for place in places]
    assert len(set(shares)) > 0.5 * len(shares)
    assert all(0.0 <= share < 1.0 for share in shares)
    assert spread(1, 0, 1) != spread(2, 0, 1) != spread(1, 1, 1) != spread(1, 0, 2)


def test_batches_wait_longer_while_nothing_succeeds():
    """As in an outage; one that succeeded in between begins the count anew."""
    failure = Failure(SharedTexts())
    delays = [batch_delay_s(GROWING, failure, 0, None) for _ in range(3)]
    delays += [batch_delay_s(GROWING, failure, 1, None) for _ in range(2)]
    assert delays == [1.0, 2.0, 4.0, 1.0, 2.0]
    assert batch_delay_s(GROWING, failure, 1, 9.0) == 9.0


def test_records_come_back_in_the_order_of_their_times(make_desk):
    """Those of one time in the order in which they failed."""
    desk = make_desk(HandlerSpec("h", ordering="unordered", retry=GROWING))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2)
    zero, one, two = desk.started()
    ends = [Failed(two, ERROR, delay_s=1.0), Failed(one, ERROR, delay_s=2.0)]
    desk.do("calls_ended", [], [*ends, Failed(zero, ERROR, delay_s=1.0)])
    assert desk.engine.next_deadline() <= 1.0
    assert [entry.due for entry in (zero.failure, one.failure)] == [1.0, 2.0]
    desk.pass_time(0.9)
    assert desk.started() == []
    desk.pass_time(0.1)
    assert offsets(desk.started()) == [2, 0]
    desk.pass_time(1.0)
    assert offsets(desk.started()) == [1]


@pytest.mark.parametrize("gone", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}])
def test_the_next_that_is_due_is_one_that_still_waits(gone):
    """The epochs of others have ended; nobody is woken for those, and nobody else is forgotten."""
    schedule = RetrySchedule()
    for number in range(3):
        work = failed(1)
        work.state = states.SUPERSEDED if number in gone else states.RETRYING
        schedule.add(float(number), work)
    left = [float(number) for number in range(3) if number not in gone]
    assert schedule.waiting() == len(left)
    assert schedule.next_due() == (left[0] if left else None)
    assert len(schedule.due(1.5)) == len([due for due in left if due <= 1.5])
    assert schedule.next_due() == (2.0 if 2 not in gone else None)


def test_what_has_ended_does_not_wait_to_begin(make_desk):
    """What is reported of a call may be of one that has ended, or of an attempt before."""
    desk = make_desk(HandlerSpec("h", retry=Retry(delay_s=0.0)))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    (work,) = desk.started()
    begun.waiting([work])
    desk.do("calls_ended", [], [Failed(work, ERROR)])
    desk.pass_time(1.0)
    assert desk.started() == [work]
    assert not waits(work)  # the next attempt, as far as is known
    desk.do("calls_ended", [work])
    begun.begun([work], desk.now)
    begun.waiting([work])
    assert not waits(work)
