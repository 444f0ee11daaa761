"""The bucket of one handler's rate limit."""

from __future__ import annotations

import pytest
from tests.unit.core.conftest import offsets

from perkey.core.events import HandlerSpec
from perkey.core.scheduling import Handler
from perkey.policies import Batch

#: rate, then rounds of (seconds since the last one, starts that were allowed)
ROUNDS = [
    (8.0, [(0.0, 1), (0.0625, 0), (0.0625, 1), (0.125, 1), (5.0, 1), (0.0, 0)]),
    (128.0, [(0.0, 1), (0.015625, 2), (60.0, 12), (0.0, 0), (0.03125, 4)]),
    (0.5, [(0.0, 1), (1.0, 0), (1.0, 1), (3.0, 1), (1.0, 0), (1.0, 1)]),
]


def rated(make_desk, rate: float, **options):
    """A desk with 100 records that may all start but for the rate."""
    spec = HandlerSpec("h", ordering="unordered", rate_limit_per_s=rate, **options)
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.do("pause", "t", on=True)
    desk.poll(part, *range(100))
    desk.do("pause", "t", on=False)
    return desk


@pytest.mark.parametrize(("rate", "rounds"), ROUNDS)
def test_so_many_start_in_each_round(make_desk, rate, rounds):
    """A start costs a token; at most a tenth of a second's worth is saved up, one at least."""
    desk = rated(make_desk, rate)
    started = [len(desk.started())]
    for seconds, _ in rounds[1:]:
        desk.pass_time(seconds)
        started.append(len(desk.started()))
    assert started == [count for _, count in rounds]


@pytest.mark.parametrize(("rate", "rounds"), ROUNDS)
def test_batches_pay_for_each_record(make_desk, rate, rounds):
    """What joins a batch costs as much as what starts alone."""
    desk = rated(make_desk, rate, batch=Batch(20, 0.0))
    started = [len(desk.started())]
    for seconds, _ in rounds[1:]:
        desk.pass_time(seconds)
        started.append(len(desk.started()))
    assert started == [count for _, count in rounds]


def test_next_token_is_waited_for(make_desk):
    """The engine asks to be woken when the bucket pays for the next start, no sooner."""
    desk = rated(make_desk, 4.0)
    assert len(desk.started()) == 1
    assert desk.engine.state.handlers[0].tokens_due() == 0.25
    desk.pass_time(0.125)
    assert desk.started() == []
    assert desk.engine.state.handlers[0].tokens_due() == 0.25


def test_no_one_waits_for_a_token_without_a_slot(make_desk):
    """With every slot taken, or nothing ready, a token changes nothing."""
    desk = rated(make_desk, 4.0, concurrency=1)
    (work,) = desk.started()
    handler = desk.engine.state.handlers[0]
    assert handler.tokens_due() is None  # no slot
    desk.do("calls_ended", [work])
    assert handler.tokens_due() == 0.25
    desk.do("pause", "t", on=True)
    desk.pass_time(1.0)
    assert handler.tokens_due() is None  # nothing in turn


def test_without_a_limit_there_are_no_tokens(make_desk):
    """Neither is one waited for, nor counted."""
    handler = Handler(0, HandlerSpec("h"))
    assert handler.tokens_due() is None
    assert handler.take(5.0, 1) == []
    assert (handler.bucket.tokens, handler.bucket.at) == (1.0, None)


def test_before_the_first_start_no_token_is_waited_for():
    """A bucket nobody has taken from is not empty."""
    handler = Handler(0, HandlerSpec("h", rate_limit_per_s=4.0))
    assert handler.tokens_due() is None


def test_a_saved_token_is_used_immediately(make_desk):
    """A record that comes later does not wait for a new token."""
    desk = make_desk(HandlerSpec("h", ordering="unordered", rate_limit_per_s=2.0))
    (part,) = desk.assign(0)
    desk.poll(part, 0)
    assert offsets(desk.started()) == [0]
    desk.pass_time(0.5)
    assert desk.engine.state.handlers[0].tokens_due() is None
    desk.poll(part, 1)
    assert offsets(desk.started()) == [1]


@pytest.mark.parametrize("options", [{}, {"batch": Batch(2, 0.5)}])
def test_while_nothing_may_start_no_one_waits_for_a_token_or_a_batch(make_desk, options):
    """Outputs back up: the engine asks to be woken for what it can do, and not again and again."""
    desk = rated(make_desk, 4.0, **options)
    desk.do("halt", "outputs", on=True)
    for _ in range(10):
        desk.pass_time(0.3)
        assert desk.engine.next_deadline() > desk.now
    desk.take(object)
    desk.do("halt", "outputs", on=False)
    assert len(desk.started()) == 1
