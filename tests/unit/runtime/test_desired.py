"""The pauses and settings by command that are in force, as one state."""

from __future__ import annotations

from typing import Any

import pytest

from perkey.core.events import Pause, Steering, Tuning
from perkey.errors import ConfigError
from perkey.observe.orders import Order
from perkey.runtime.run import desired
from perkey.runtime.run.desired import Desired


def order(action: str = "pause", **given: Any) -> Order:
    """A command."""
    return Order(action, "a test", "id", **given)


def test_the_engine_gets_all_that_is_in_force():
    """Pauses by the number of their handler; of two settings of a handler the later one."""
    state = Desired(["one", "two"])
    state.put(order(handler="two"), 60.0)
    state.put(order("set", settings={"concurrency": 3}), 60.0)
    state.put(order("set", handler="two", settings={"concurrency": 8}), 60.0)
    state.put(order("set", handler="two", settings={"timeout_s": 2.0}), 60.0)
    pause = Pause(None, 1, 60.0, "a test")
    assert state.steering() == Steering((pause,), {0: Tuning(3), 1: Tuning(8, None, 2.0)})
    state.end(state.over(60.0))
    assert state.steering() == Steering()


def test_a_command_takes_the_place_of_one_with_the_same_subject(monkeypatch):
    """Also when as many as are allowed are in force; a new subject is then refused."""
    monkeypatch.setattr(desired, "IN_FORCE_MAX", 2)
    state = Desired([])
    for topic, until in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        state.put(order(topic=topic), until)
    with pytest.raises(ConfigError, match="2 commands are in force: end some of them first"):
        state.put(order(topic="c"), 4.0)
    assert [(one.order.topic, one.until) for one in state.commands] == [("b", 2.0), ("a", 3.0)]
