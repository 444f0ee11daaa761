"""Pauses and settings by command: a state that the engine gets, and that ends when it says so."""

from __future__ import annotations

import pytest

from perkey.core.events import ALL_STARTS_PER_S, HandlerSpec, Pause, Steering, Tuning
from perkey.core.scheduling import Handler, Slots


@pytest.mark.parametrize(
    ("pause", "held"),
    [
        (Pause(), True),
        (Pause(topic="t"), True),
        (Pause(topic="u"), False),
        (Pause(handler=0), True),
        (Pause(handler=1), False),
        (Pause(topic="t", handler=1), False),
    ],
)
def test_a_pause_holds_its_topic_and_handler(make_desk, pause, held):
    """Nothing of it starts, also of what comes later; without it all that waits starts."""
    desk = make_desk(HandlerSpec("h"))
    desk.do("steer", Steering((pause,)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, 2, key=None)
    assert len(desk.started()) == (0 if held else 3)
    desk.do("steer", Steering())
    assert len(desk.started()) == (3 if held else 0)


def test_the_apps_own_pause_outlasts_a_command(make_desk):
    """Each ends what it began."""
    desk = make_desk(HandlerSpec("h"))
    (part,) = desk.assign(0)
    desk.do("pause", None, on=True)
    desk.do("steer", Steering((Pause(),)))
    desk.do("steer", Steering())
    desk.poll(part, 0)
    assert not desk.started()
    desk.do("pause", None, on=False)
    assert len(desk.started()) == 1


@pytest.mark.parametrize(("concurrency", "started"), [(1, 1), (2, 2), (3, 3), (None, 5)])
def test_concurrency_that_is_set(concurrency, started):
    """So many calls from now on; as declared with what is granted ahead."""
    handler = Handler(0, HandlerSpec("h", concurrency=4, ahead=1))
    handler.tune(Tuning(concurrency))
    assert handler.slots.free == started


@pytest.mark.parametrize(("concurrency", "started"), [(None, 7), (4, 4), (1, 1)])
def test_calls_granted_ahead_give_way_to_a_command(concurrency, started):
    """What it sets holds, also where more are granted ahead later; then they are again."""
    handler = Handler(0, HandlerSpec("h", concurrency=4))
    handler.tune(Tuning(concurrency))
    handler.grant_ahead(3)
    assert handler.slots.free == started
    handler.tune(Tuning())
    assert handler.slots.free == 7


def test_calls_that_are_too_many_now_end_first():
    """Below zero nothing starts; the same setting again changes nothing."""
    slots = Slots(4, 0)
    slots.take(4)
    slots.resize(2, 0)
    slots.resize(2, 0)
    assert (slots.free, slots.taken) == (-2, 4)
    slots.give(3)
    assert (slots.free, slots.taken) == (1, 1)


def test_a_rate_that_is_set_and_ends():
    """So many per second, and none when the setting ends."""
    handler = Handler(0, HandlerSpec("h"))
    handler.tune(Tuning(rate_limit_per_s=20.0))
    assert (handler.limited, handler.bucket.per_s) == (True, 20.0)
    handler.tune(Tuning())
    assert (handler.limited, handler.bucket.per_s) == (False, ALL_STARTS_PER_S)


def test_nothing_is_due_while_too_many_calls_run():
    """Fewer slots and a rate: no start is awaited (its time would lie in the past, for ever)."""
    handler = Handler(0, HandlerSpec("h", concurrency=4))
    handler.tune(Tuning(rate_limit_per_s=1.0))
    handler.rotation.append(object())
    handler.bucket.tokens, handler.bucket.at = 0.0, 0.0
    handler.slots.take(4)
    assert handler.tokens_due() is None
    handler.tune(Tuning(concurrency=2, rate_limit_per_s=1.0))
    assert handler.tokens_due() is None
    handler.slots.give(3)
    assert handler.tokens_due() == 1.0


def test_a_time_out_that_is_set_and_ends():
    """The executor reads it; none is granted ahead meanwhile, for its time would count."""
    handler = Handler(0, HandlerSpec("h", concurrency=2, ahead=2))
    handler.tune(Tuning(timeout_s=5.0))
    assert (handler.timeout_s, handler.slots.capacity) == (5.0, 2)
    handler.tune(Tuning())
    assert (handler.timeout_s, handler.slots.capacity) == (None, 4)


def test_calls_that_keep_every_slot_are_all_that_run():
    """Fewer slots by command: nothing is stuck while more than those still run."""
    handler = Handler(0, HandlerSpec("h", concurrency=4))
    handler.slots.take(4)
    handler.tune(Tuning(concurrency=1))
    assert (handler.calls_max, handler.concurrency, handler.in_flight) == (4, 1, 4)
    handler.slots.give(3)
    assert (handler.calls_max, handler.in_flight) == (1, 1)
