"""Handlers that share a budget: how many start, who goes next, and what waits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.unit.core.conftest import ERROR, in_state, offsets

from perkey.core import budgets, states
from perkey.core import effects as fx
from perkey.core.budgets import Bucket
from perkey.core.events import (
    Charged,
    Command,
    Failed,
    HandlerSpec,
    Pause,
    Steering,
    Target,
    Unhandled,
)
from perkey.core.work import Tags
from perkey.policies import Budget, Hold, Retry
from perkey.types import Record


def users(budget: Budget, count: int = 1, **options) -> list[HandlerSpec]:
    """Handlers that share it, without an order of their records."""
    options = {"concurrency": 1_000, "retry": Retry(delay_s=0.0), **options}
    return [
        HandlerSpec(f"h{i}", ordering="unordered", budget=budget, **options) for i in range(count)
    ]


def poll(desk, part, *tagged: tuple[object, float] | str) -> None:
    """Records from the next offset on, each of a value and a cost."""
    start = part.position
    tags = [Tags(None, *(one if isinstance(one, tuple) else (one, 1.0))) for one in tagged]
    records = [Record(part.topic, part.number, start + i, 0, None, b"v") for i in range(len(tags))]
    desk.do("polled", [(part, records, [100] * len(records))], {part: tags})


def values(works) -> str:
    """Of which values they are."""
    return "".join(work.tags.budget for work in works)


# -- how many --------------------------------------------------------------------------------------


def test_a_second_has_no_more_than_its_starts_and_a_burst(make_desk):
    """In any second: `per_s`, and what a tenth of a second saves up."""
    desk = make_desk(*users(Budget("b", per_s=50), 2))
    parts = desk.assign(0), desk.assign(0, handler=1, topic="u")
    for (part,) in parts:
        desk.poll(part, *range(200), key=None)
    starts = [(desk.now, len(desk.started()))]
    for _ in range(400):
        desk.pass_time(0.01)
        starts.append((desk.now, len(desk.started())))
    for at, _ in starts:
        assert sum(n for when, n in starts if at <= when < at + 1.0) <= 50 + 5
    assert sum(n for when, n in starts if when > 1.0) >= 50 * 3 - 1


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_are_in_flight_than_allowed(make_desk, limit):
    """Of all handlers together; when one ends, the next begins."""
    desk = make_desk(*users(Budget("b", in_flight=limit), 2))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, 0, 1, 2, key=None)
    desk.poll(two, 0, 1, 2, key=None)
    running = desk.started()
    assert len(running) == limit
    for _ in range(6 - limit):
        desk.do("calls_ended", [running.pop(0)])
        running += desk.started()
        assert len(running) == limit


def test_handlers_take_turns(make_desk):
    """Without `by=` the handlers that share a budget start alternately."""
    desk = make_desk(*users(Budget("b", in_flight=1), 2))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, *range(10), key=None)
    desk.poll(two, *range(10), key=None)
    order = []
    for _ in range(8):
        (work,) = desk.started()
        order.append(work.partition.handler.name)
        desk.do("calls_ended", [work])
    assert order == ["h0", "h1"] * 4


def test_partitions_take_turns(make_desk):
    """A partition with one record does not wait for another's backlog."""
    desk = make_desk(*users(Budget("b", in_flight=1)))
    one, two = desk.assign(0, 1)
    desk.poll(one, *range(100), key=None)
    desk.poll(two, 0, key=None)
    order = []
    for _ in range(3):
        (work,) = desk.started()
        order.append(work.partition)
        desk.do("calls_ended", [work])
    assert two in order


def test_a_handler_without_the_budget_does_not_wait(make_desk):
    """What waits for a budget blocks its own handlers alone."""
    (user,) = users(Budget("b", per_s=1))
    desk = make_desk(user, HandlerSpec("free", ordering="unordered"))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, *range(5), key=None)
    assert len(desk.started()) == 1
    desk.poll(two, *range(5), key=None)
    assert len(desk.started()) == 5


def test_the_order_of_a_key_stays(make_desk):
    """One record of a key at a time, in the order of the log, also through a budget."""
    desk = make_desk(HandlerSpec("h", budget=Budget("b", in_flight=2)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=b"a")
    desk.poll(part, 2, 3, key=b"b")
    first, second = desk.started()
    assert offsets([first, second]) == [0, 2]
    desk.do("calls_ended", [first])
    assert offsets(desk.started()) == [1]
    desk.do("calls_ended", [second])
    assert offsets(desk.started()) == [3]


def test_the_engine_asks_to_be_woken_when_the_next_may_start(make_desk):
    """Not sooner, and not at all while nothing waits."""
    desk = make_desk(*users(Budget("b", per_s=4)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    assert len(desk.started()) == 1
    (budget,) = desk.engine.state.budgets
    assert budget.due == 0.25
    desk.pass_time(0.25)
    assert len(desk.started()) == 1
    assert budget.due is None


# -- who is next -----------------------------------------------------------------------------------


def test_values_have_equal_shares(make_desk):
    """A value with one record is next, however many another has."""
    desk = make_desk(*users(Budget("b", in_flight=1, by=len)))
    (part,) = desk.assign(0)
    poll(desk, part, *"aaaaaaaa", "b", "c")
    order = ""
    for _ in range(6):
        (work,) = desk.started()
        order += values([work])
        desk.do("calls_ended", [work])
    assert order == "abcaaa"


def test_a_value_that_costs_more_goes_less_often(make_desk):
    """Shares are of the cost: ten records at 1 for each at 10."""
    desk = make_desk(*users(Budget("b", in_flight=1, by=len)))
    (part,) = desk.assign(0)
    poll(desk, part, *[("a", 10.0)] * 40, *[("b", 1.0)] * 400)
    count: Counter[str] = Counter()
    for _ in range(220):
        (work,) = desk.started()
        count[work.tags.budget] += 1
        desk.do("calls_ended", [work])
    assert count["a"] == 20
    assert count["b"] == 200


def test_a_value_that_comes_and_goes_gets_no_more(make_desk):
    """One that has nothing waiting is remembered as long as it has used more than others."""
    desk = make_desk(*users(Budget("b", in_flight=1, by=len)))
    (part,) = desk.assign(0)
    poll(desk, part, *[("a", 1.0)] * 300)
    used: Counter[str] = Counter()
    for _ in range(100):
        (work,) = desk.started()
        used[work.tags.budget] += work.tags.cost
        if not any(one.tags.budget == "b" for one in part.works()) or work.tags.budget == "b":
            poll(desk, part, ("b", 10.0))  # always one, and only one
        desk.do("calls_ended", [work])
    assert abs(used["a"] - used["b"]) <= 11


def test_a_handler_that_may_not_start_saves_nothing_up(make_desk):
    """When it may again, its values have one record each before all are even."""
    desk = make_desk(*users(Budget("b", in_flight=1, by=len), 2))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    poll(desk, one, *"a" * 50)
    poll(desk, two, *"b" * 50)
    desk.do("steer", Steering(pauses=(Pause(handler=0),)))
    for _ in range(20):
        (work,) = desk.started()
        desk.do("calls_ended", [work])
    desk.do("steer", Steering())
    order = ""
    for _ in range(10):
        (work,) = desk.started()
        order += values([work])
        desk.do("calls_ended", [work])
    assert order.count("a") in (5, 6)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_values_beyond_the_limit_share_one_queue(make_desk, monkeypatch, more):
    """They wait together, and none is left out."""
    monkeypatch.setattr(budgets, "VALUES_MAX", 10)
    desk = make_desk(*users(Budget("b", in_flight=1, by=len)))
    (part,) = desk.assign(0)
    desk.do("halt", "outputs", on=True)
    poll(desk, part, *[(f"v{i}", 1.0) for i in range(10 + more)], *[(f"v{0}", 1.0)] * 20)
    desk.do("halt", "outputs", on=False)
    (budget,) = desk.engine.state.budgets
    assert len(budget._tenants) == min(10 + more, 11)
    seen = set()
    for _ in range(30 + more):
        (work,) = desk.started()
        seen.add(work.tags.budget)
        desk.do("calls_ended", [work])
    assert len(seen) == 10 + more
    assert not budget._tenants


# -- costs -----------------------------------------------------------------------------------------


def test_what_costs_more_than_a_burst_is_paid_off(make_desk):
    """It starts when the bucket is full; the next one waits until the debt is paid."""
    desk = make_desk(*users(Budget("b", per_s=10, cost=len)))
    (part,) = desk.assign(0)
    poll(desk, part, *[(None, 30.0)] * 2)
    assert len(desk.started()) == 1
    desk.pass_time(2.9)
    assert desk.started() == []
    desk.pass_time(0.1)
    assert len(desk.started()) == 1


@pytest.mark.parametrize(("real", "waits"), [(0.0, 0.0), (1.0, 0.1), (11.0, 1.1)])
def test_the_real_cost_is_settled(make_desk, real, waits):
    """Less is given back to the budget, more is taken from it."""
    desk = make_desk(*users(Budget("b", per_s=10, cost=len)))
    (part,) = desk.assign(0)
    poll(desk, part, (None, 1.0), (None, 1.0))
    (work,) = desk.started()
    desk.do("charged", [Charged(0, "t", 0, work.record.offset, real)])
    if waits:
        assert desk.started() == []
        assert desk.engine.state.budgets[0].due == pytest.approx(waits)
        desk.pass_time(waits + 1e-6)
    assert len(desk.started()) == 1


def test_a_second_charge_takes_the_place_of_the_first(make_desk):
    """The handler reports more and more as it goes on: the last counts."""
    desk = make_desk(*users(Budget("b", per_s=10, cost=len)))
    (part,) = desk.assign(0)
    poll(desk, part, (None, 1.0), (None, 1.0))
    (work,) = desk.started()
    place = (0, "t", 0, work.record.offset)
    desk.do("charged", [Charged(*place, 5.0), Charged(*place, 2.0, 5.0)])
    assert desk.engine.state.budgets[0].bucket.tokens == pytest.approx(-1.0)


def test_a_value_pays_for_what_it_really_cost(make_desk):
    """One whose calls cost ten times as much as was thought goes a tenth as often."""
    desk = make_desk(*users(Budget("b", in_flight=1, by=len)))
    (part,) = desk.assign(0)
    poll(desk, part, *"a" * 100, *"b" * 100)
    count: Counter[str] = Counter()
    for _ in range(88):
        (work,) = desk.started()
        count[values([work])] += 1
        if values([work]) == "a":
            desk.do("charged", [Charged(0, "t", 0, work.record.offset, 10.0)])
        desk.do("calls_ended", [work])
    assert count["a"] == 8


def test_a_charge_of_a_record_that_has_gone_is_counted(make_desk):
    """Its epoch has ended: there is nothing to compare it with."""
    desk = make_desk(*users(Budget("b", per_s=10)))
    desk.do("charged", [Charged(0, "t", 0, 7, 3.0)])
    assert desk.engine.state.counts["late_charges"] == 1


def test_a_call_that_did_not_begin_costs_nothing(make_desk):
    """What was given back has its cost back, and its place in flight."""
    desk = make_desk(*users(Budget("b", per_s=10, in_flight=1)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (work,) = desk.started()
    desk.do("calls_ended", (), [Unhandled(work)])
    assert desk.started() == [work]


def test_a_call_of_an_ended_epoch_counts_until_it_ends(make_desk):
    """It still uses the service."""
    desk = make_desk(*users(Budget("b", in_flight=1)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    (work,) = desk.started()
    desk.do("closed", [part])
    (part,) = desk.assign(1)
    desk.poll(part, 0, key=None)
    assert desk.started() == []
    desk.do("calls_ended", [work])
    assert len(desk.started()) == 1


# -- what waits ------------------------------------------------------------------------------------


def test_a_service_that_asks_to_wait_stops_the_budget(make_desk):
    """Nothing of any handler starts before that time; then all go on."""
    desk = make_desk(*users(Budget("b", in_flight=2), 2))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, 0, 1, key=None)
    desk.poll(two, 0, 1, key=None)
    first, other = desk.started()
    desk.do("calls_ended", [other], [Failed(first, ERROR, budget_s=3.0)])
    assert [note.fields["seconds"] for note in desk.take(fx.Note)] == [3.0]
    desk.pass_time(2.9)
    assert desk.started() == []
    assert desk.engine.next_deadline() <= 3.0
    desk.pass_time(0.1)
    assert len(desk.started()) == 2


def test_a_shorter_wait_does_not_end_a_longer_one(make_desk):
    """Of several answers the one that asks for the longest wait counts; it is logged once."""
    desk = make_desk(*users(Budget("b", in_flight=2)))
    (part,) = desk.assign(0)
    desk.poll(part, *range(4), key=None)
    works = desk.started()
    ends = [Failed(work, ERROR, budget_s=s) for work, s in zip(works, (5.0, 1.0), strict=True)]
    desk.do("calls_ended", (), ends)
    assert len(desk.take(fx.Note)) == 1
    desk.pass_time(4.9)
    assert desk.started() == []
    desk.pass_time(0.1)
    assert len(desk.started()) == 2


def test_a_paused_partition_is_passed_over(make_desk):
    """Its records wait where others do; when it is resumed they are back in turn."""
    desk = make_desk(*users(Budget("b", in_flight=1), 2))
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, 0, 1, key=None)
    desk.poll(two, 0, 1, key=None)
    (work,) = desk.started()
    desk.do("pause", "t", on=True)
    desk.do("calls_ended", [work])
    for _ in range(2):
        (work,) = desk.started()
        assert work.partition is two
        desk.do("calls_ended", [work])
    assert desk.started() == []
    desk.do("pause", "t", on=False)
    assert [work.partition for work in desk.started()] == [one]


def test_what_waits_goes_with_its_epoch(make_desk):
    """Nothing of a closed partition starts, and its records are in no queue."""
    desk = make_desk(*users(Budget("b", per_s=1)))
    (part,) = desk.assign(0)
    desk.poll(part, *range(5), key=None)
    works = [*desk.started(), *part.works()]
    desk.do("closed", [part])
    assert {work.state for work in works} == {states.SUPERSEDED}
    desk.pass_time(5.0)
    assert desk.started() == []


def test_a_record_that_waits_can_be_skipped_and_held(make_desk):
    """Commands find it in the queue of its budget."""
    desk = make_desk(*users(Budget("b", in_flight=1)))
    (part,) = desk.assign(0)
    desk.poll(part, *range(4), key=None)
    (work,) = desk.started()
    commands = [
        Command("skip", Target("t", partition=0, offset=1), "1", reason="r"),
        Command("hold", Target("t", partition=0, offset=2), "2", until_s=60.0, reason="r"),
    ]
    desk.do("obey", commands, 0.0)
    assert in_state(part, states.BUDGET) == [3]
    desk.do("calls_ended", [work])
    assert offsets(desk.started()) == [3]


@pytest.mark.parametrize("then", ["pause", "revoking"])
def test_a_record_that_waits_again_after_a_hold_waits_once(make_desk, then):
    """The queue has it twice; where its partition may start nothing it is moved back once."""
    desk = make_desk(*users(Budget("b", in_flight=1)))
    (part,) = desk.assign(0)
    desk.poll(part, *range(3), key=None)
    (work,) = desk.started()
    held = Target("t", partition=0, offset=1)
    desk.do("obey", [Command("hold", held, "1", until_s=60.0, reason="r")], 0.0)
    desk.do("obey", [Command("release", held, "2", reason="r")], 0.0)
    assert in_state(part, states.BUDGET) == [1, 2]
    if then == "revoking":
        desk.do("revoking", [part])
        desk.do("calls_ended", [work])
        assert desk.started() == []
        return
    desk.do("pause", "t", on=True)
    desk.do("calls_ended", [work])
    desk.do("pause", "t", on=False)
    started = []
    while works := desk.started():
        started += offsets(works)
        desk.do("calls_ended", works)
    assert sorted(started) == [1, 2]


def test_a_budget_and_a_rate_limit_both_hold(make_desk):
    """A handler's own rate is kept within the budget, and others go on meanwhile."""
    slow, fast = users(Budget("b", per_s=100), 2)
    slow = HandlerSpec("slow", ordering="unordered", budget=slow.budget, rate_limit_per_s=2)
    desk = make_desk(slow, fast)
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, *range(10), key=None)
    desk.poll(two, *range(300), key=None)
    count: Counter[str] = Counter()
    for _ in range(200):
        count.update(work.partition.handler.name for work in desk.started())
        desk.pass_time(0.01)
    assert count["slow"] in (4, 5)
    assert count["h1"] >= 190


def test_the_end_of_a_rate_limit_is_waited_for(make_desk):
    """Where the budget has room, the engine is woken when the handler may start again."""
    (spec,) = users(Budget("b", in_flight=9), rate_limit_per_s=4.0)
    desk = make_desk(spec)
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    assert len(desk.started()) == 1
    assert desk.engine.state.budgets[0].due == 0.25


def test_while_a_service_is_away_the_budget_is_not_used(make_desk):
    """A hold lets one record probe at a time; the budget's other handlers go on."""
    away, other = users(Budget("b", in_flight=2), 2)
    away = HandlerSpec(
        "away", ordering="unordered", budget=away.budget, hold=Hold(on=(OSError,), probe_s=5)
    )
    desk = make_desk(away, other)
    (one,), (two,) = desk.assign(0), desk.assign(0, handler=1, topic="u")
    desk.poll(one, 0, 1, key=None)
    desk.do("calls_ended", (), [Failed(work, ERROR, away=True) for work in desk.started()])
    assert desk.started() == []
    desk.poll(two, 0, 1, key=None)
    assert len(desk.started()) == 2
    desk.do("calls_ended", [work for work in two.works() if work.state == states.RUNNING])
    desk.pass_time(5.0)
    assert len(desk.started()) == 1


def test_a_stop_that_finishes_what_is_buffered_waits_for_the_budget(make_desk):
    """What is in a queue of a budget is finished before the member leaves."""
    desk = make_desk(*users(Budget("b", in_flight=1)))
    (part,) = desk.assign(0)
    desk.poll(part, 0, 1, key=None)
    (first,) = desk.started()
    desk.do("stop", "buffered")
    desk.do("calls_ended", [first])
    assert not desk.engine.state.drained
    (second,) = desk.started()
    desk.do("calls_ended", [second])
    assert desk.engine.state.drained


# -- its share -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "total", "per_s", "in_flight"),
    [(1, 4, 25.0, 5), (3, 4, 75.0, 15), (4, 4, 100.0, 20), (1, 100, 1.0, 1), (1, 3, 100 / 3, 6)],
)
def test_a_member_has_its_share(make_desk, held, total, per_s, in_flight):
    """Of rate and calls as of the partitions; one call at least, else nothing would ever start."""
    desk = make_desk(*users(Budget("b", per_s=100, in_flight=20)))
    desk.do("totals_known", {0: total})
    desk.assign(*range(held))
    (budget,) = desk.engine.state.budgets
    assert budget.per_s == pytest.approx(per_s)
    assert budget.in_flight_max == in_flight


def test_a_member_that_holds_nothing_has_nothing(make_desk):
    """Also when its partitions have gone."""
    desk = make_desk(*users(Budget("b", per_s=100, in_flight=20)))
    desk.do("totals_known", {0: 2})
    (part,) = desk.assign(0)
    desk.do("closed", [part])
    (budget,) = desk.engine.state.budgets
    assert (budget.share, budget.per_s, budget.in_flight_max) == (0.0, 0.0, 0)


def test_nothing_starts_before_the_share_is_known(make_desk):
    """No one knows yet how many partitions there are: it waits; then it continues."""
    desk = make_desk(*users(Budget("b", per_s=100, in_flight=20)))
    desk.do("totals_known", {0: None})
    (part,) = desk.assign(0)
    desk.poll(part, 0, key=None)
    assert desk.started() == []
    desk.do("totals_known", {0: 1})
    assert len(desk.started()) == 1


def test_the_share_is_of_the_partitions_of_all_its_handlers(make_desk):
    """One of two of the first handler's and none of two of the second's: a quarter."""
    desk = make_desk(*users(Budget("b", per_s=100), 2))
    desk.do("totals_known", {0: 2, 1: 2})
    desk.assign(0)
    assert desk.engine.state.budgets[0].share == 0.25


@pytest.mark.parametrize("seed", range(4))
def test_members_together_never_exceed_the_numbers(make_desk, seed):
    """Two members, six partitions: calls in flight, and starts per second but for both bursts."""
    rng, per_s, in_flight = random.Random(seed), 50.0, 12
    first = set(rng.sample(range(6), rng.randint(1, 5)))
    desks, running = [make_desk(*users(Budget("b", per_s, in_flight))) for _ in range(2)], [[], []]
    for desk, held in zip(desks, (first, set(range(6)) - first), strict=True):
        desk.do("totals_known", {0: 6})
        for part in desk.assign(*held):
            desk.poll(part, *range(100), key=None)
    starts: list[float] = []
    for _ in range(150):
        for desk, calls in zip(desks, running, strict=True):
            calls.extend(new := desk.started())
            starts += [desk.now] * len(new)
        assert sum(map(len, running)) <= in_flight
        for desk, calls in zip(desks, running, strict=True):
            if calls and rng.random() < 0.5:
                desk.do("calls_ended", [calls.pop()])
            desk.pass_time(0.02)
    bursts = 2 * max(1.0, per_s * 0.1)
    assert all(sum(at <= one < at + 1.0 for one in starts) <= per_s + bursts for at in starts)
    assert len(starts) > per_s


def test_a_bucket_without_a_rate_never_pays():
    """A share of nothing."""
    bucket = Bucket(0.0)
    bucket.refill(1.0)
    bucket.tokens = 0.0
    bucket.refill(100.0)
    assert not bucket.pays(1.0)
    assert bucket.due() is None
