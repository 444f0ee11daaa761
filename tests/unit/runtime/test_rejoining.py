"""Making the consumer anew: what is given up, how long it waits, and when it joins again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perkey.kafka.ports import Problem
from perkey.runtime.member import rebalance
from perkey.runtime.member.rebalance import (
    REJOIN_CALM_S as CALM_S,
)
from perkey.runtime.member.rebalance import (
    REJOIN_FIRST_S as FIRST_S,
)
from perkey.runtime.member.rebalance import (
    REJOIN_LEAVE_S as LEAVE_S,
)
from perkey.runtime.member.rebalance import (
    REJOIN_MOST_S as MOST_S,
)
from perkey.runtime.member.rebalance import (
    Rejoining,
)

PROBLEM = Problem("recreate", "UNRELEASED_INSTANCE_ID", "still in use")


class Place:
    """A member's membership at a time that the test sets; what is done with it is written down."""

    def __init__(self) -> None:
        self.time = 100.0
        self.did: list[Any] = []
        self.rests: list[float] = []
        self.consumer = SimpleNamespace(leave=lambda wait_s: self.did.append(("leave", wait_s)))

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.rests.append(seconds)


@pytest.fixture
def place() -> Place:
    """A place in the group."""
    return Place()


@pytest.fixture
def again(place: Place) -> Rejoining:
    """It has a consumer so far."""
    membership: Any = place
    return Rejoining(membership, lambda: place.did.append("lose"), lambda: place.did.append("join"))


def test_there_is_a_consumer_at_first(again: Rejoining) -> None:
    """Nothing waits before anything has gone wrong."""
    assert not again.waiting


def test_every_partition_is_given_up_before_the_group_is_left(
    place: Place, again: Rejoining
) -> None:
    """What runs is fenced by the time the group hears of it."""
    again.begin(PROBLEM)
    assert place.did == ["lose", ("leave", LEAVE_S)]
    assert again.waiting


def test_it_joins_once_the_wait_is_over(place: Place, again: Rejoining) -> None:
    """Not a moment sooner, and once."""
    again.begin(PROBLEM)
    place.time += FIRST_S - 0.01
    again.step()
    assert "join" not in place.did
    place.time = 100.0 + FIRST_S
    again.step()
    assert place.did[-1] == "join"
    assert not again.waiting


def test_it_does_not_spin_while_it_waits(place: Place, again: Rejoining) -> None:
    """Each step that joins nothing takes a moment; the one that joins takes none."""
    again.begin(PROBLEM)
    again.step()
    assert place.rests == [rebalance.REJOIN_LOOK_S]
    place.time += FIRST_S
    again.step()
    assert place.rests == [rebalance.REJOIN_LOOK_S]


def waits_s(place: Place, again: Rejoining) -> float:
    """It is refused; how long it waits."""
    again.begin(PROBLEM)
    began = place.time
    while again.waiting:
        place.time += 0.25
        again.step()
    return place.time - began


def test_each_wait_is_twice_as_long_up_to_the_most(place: Place, again: Rejoining) -> None:
    """A place that stays taken is asked for less and less often."""
    assert [waits_s(place, again) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, MOST_S, MOST_S]


@pytest.mark.parametrize(("since_s", "expected"), [(CALM_S, 1.0), (CALM_S + 0.25, FIRST_S)])
def test_the_waits_begin_again_after_a_calm_time(
    place: Place, again: Rejoining, since_s: float, expected: float
) -> None:
    """A minute since it began last, and a little more."""
    began = place.time
    waits_s(place, again)
    place.time = began + since_s
    assert waits_s(place, again) == expected
