"""Durations in buckets."""

from __future__ import annotations

import random
from types import SimpleNamespace

from perkey.core.events import HandlerSpec
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.histogram import AGES_MAX, CALL_S, FRESH_MAX, Histogram, Latency
from perkey.types import Record

RECORD = Record("t", 0, 0, 1, b"k", b"v", ())


def test_many_are_counted_as_one_by_one() -> None:
    """Those at a bound, below the first and above the last one included."""
    rng = random.Random(5)
    seconds = [*CALL_S, *CALL_S, 0.0, 400.0, *(rng.expovariate(3) for _ in range(500))]
    alone, together = Histogram(CALL_S), Histogram(CALL_S)
    for one in seconds:
        alone.observe(one)
    together.observe_all(seconds[:200])
    together.observe_all(seconds[200:])
    together.observe_all([])
    assert together.row() == alone.row()


def test_what_came_since_the_last_look_is_counted_once() -> None:
    """Looked at twice, it is the same."""
    latency = Latency((1.0,))
    for seconds in (0.5, 2.0, 1.0):
        latency.add(seconds)
    assert latency.buckets()["counts"] == [2, 1]
    assert latency.buckets() == {"le": [1.0], "counts": [2, 1], "sum": 3.5}
    assert latency.samples() == [0.5, 1.0, 2.0]


def test_of_many_calls_so_many_are_sampled_as_a_look_counts() -> None:
    """What comes beyond that costs nothing; after the look there is room again."""
    plan = HandlerPlan(HandlerSpec("h"), print)
    work = SimpleNamespace(record=RECORD, failure=None, since=0.0)
    for _ in range(3 * FRESH_MAX):
        plan.timed(0.5, work)
    assert sum(plan.latency.buckets()["counts"]) == FRESH_MAX
    plan.timed(0.5, work)
    assert sum(plan.latency.buckets()["counts"]) == FRESH_MAX + 1
    assert sum(plan.ages.buckets()["counts"]) == AGES_MAX
