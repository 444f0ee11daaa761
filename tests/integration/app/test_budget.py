"""`perkey.Budget` from end to end: handlers that share a service that limits its callers."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey

pytestmark = pytest.mark.push

WAIT_S = 60.0


class Service:
    """How many calls are in it, and were at most."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.all = 0
        self.gate = threading.Event()

    def begin(self) -> None:
        with self.lock:
            self.now += 1
            self.all += 1
            self.most = max(self.most, self.now)

    def end(self) -> None:
        with self.lock:
            self.now -= 1


class TooManyRequests(Exception):
    """As an HTTP client raises it."""

    def __init__(self, retry_after: str) -> None:
        super().__init__("429")
        self.response = SimpleNamespace(status_code=429, headers={"Retry-After": retry_after})


def halts(run: Any) -> list[dict[str, Any]]:
    """What waits for a budget."""
    return [one for one in run.snapshot()["halts"] if one["cause"] == "budget"]


def test_two_handlers_share_what_is_in_flight(kafka):
    """A plain and an async handler: never more at once than the budget allows, and all is done."""
    first, second, service = kafka.topic(2), kafka.topic(1), Service()
    for topic in (first, second):
        kafka.fill(topic, [{"value": b"v", "key": f"{n}"} for n in range(60)])
    app, budget = kafka.app(), perkey.Budget("service", in_flight=3)

    @app.consume(first, concurrency=20, budget=budget)
    def plain(record):
        service.begin()
        service.gate.wait(WAIT_S)
        service.end()

    @app.consume(second, concurrency=20, budget=budget)
    async def waits(record):
        service.begin()
        await asyncio.sleep(0.001)
        service.end()

    run = kafka.start(app)
    wait_for(lambda: {one["handler"] for one in halts(run)} >= {"plain"}, WAIT_S)
    wait_for(lambda: any(one["calls"] == 3 for one in halts(run)), WAIT_S)
    wait_for(lambda: service.most == 3, WAIT_S)
    service.gate.set()
    done = lambda: {n: h["done"] for n, h in run.snapshot()["handlers"].items()}  # noqa: E731  # read twice
    wait_for(lambda: done() == {"plain": 60, "waits": 60}, WAIT_S)
    assert (service.most, service.all) == (3, 120)
    assert halts(run) == []


def test_a_handler_without_the_budget_continues(kafka):
    """It is done while the other one's calls hold all of the budget."""
    held, free, service = kafka.topic(1), kafka.topic(1), Service()
    kafka.fill(held, [{"value": b"v", "key": f"{n}"} for n in range(20)])
    kafka.fill(free, [{"value": b"v", "key": f"{n}"} for n in range(20)])
    app = kafka.app()

    @app.consume(held, budget=perkey.Budget("service", in_flight=1))
    def waits(record):
        service.gate.wait(WAIT_S)

    @app.consume(free)
    def continues(record):
        pass

    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["handlers"]["continues"]["done"] == 20, WAIT_S)
    wait_for(lambda: bool(halts(run)), WAIT_S)

    def waiting():
        return {p["topic"]: p["places"]["budget"] for p in run.snapshot()["partitions"]}[held]

    wait_for(lambda: waiting() == 19, WAIT_S)
    service.gate.set()
    wait_for(lambda: run.snapshot()["handlers"]["waits"]["done"] == 20, WAIT_S)


@pytest.mark.parametrize("executor", ["threads", "async"])
def test_a_429_makes_the_budget_wait(kafka, executor):
    """Nothing of either handler starts before the service allows it; the record is tried again."""
    one, two = kafka.topic(1), kafka.topic(1)
    kafka.fill(one, [{"value": b"v", "key": "k"}])
    app, budget = kafka.app(), perkey.Budget("service", per_s=1e6)
    calls: list[str] = []

    def failing(record):
        calls.append("one")
        if record.attempt == 1:
            raise TooManyRequests("3600")

    async def failing_later(record):
        failing(record)

    chosen = failing if executor == "threads" else failing_later
    app.consume(one, budget=budget, retry=perkey.Retry(delay_s=0.0))(chosen)

    @app.consume(two, budget=budget)
    def other(record):
        calls.append("two")

    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["counts"].get("budget_waits") == 1, WAIT_S)
    kafka.fill(two, [{"value": b"v", "key": "k"}])
    wait_for(lambda: {row["handler"] for row in halts(run)} == {chosen.__name__, "other"}, WAIT_S)
    (row, _) = halts(run)
    assert (row["why"], row["error"]["message"], row["budget"]) == ("asked", "429", "service")
    assert row["due_in_s"] > 3_000
    assert calls == ["one"]


@pytest.mark.parametrize("executor", ["threads", "async", "processes"])
def test_the_real_cost_is_charged(kafka, executor):
    """The first record costs a thousand seconds of the budget: no other one starts."""
    topic = kafka.topic(1)
    kafka.fill(topic, [{"value": b"v", "key": f"{n}"} for n in range(10)])
    app = kafka.app()
    budget = perkey.Budget("tokens", per_s=10, in_flight=1, cost=_costs_one)
    handler = _charges_later if executor == "async" else _charges
    app.consume(topic, executor=executor, concurrency=2, budget=budget)(handler)
    run = kafka.start(app)
    wait_for(lambda: any(one.get("due_in_s", 0) > 100 for one in halts(run)), WAIT_S)
    assert run.snapshot()["handlers"][handler.__name__]["done"] <= 1


def _costs_one(record):
    return 1.0


def _charges(record):
    record.charge(5)
    record.charge(10_000)


async def _charges_later(record):
    _charges(record)


def test_a_charge_that_is_none_fails_the_attempt(kafka):
    """With one clear error, which the dead letter has."""
    topic, letters = kafka.topic(1), kafka.topic(1)
    kafka.fill(topic, [{"value": b"v", "key": "k"}])
    app, errors = kafka.app(), []

    @app.consume(
        topic, budget=perkey.Budget("b", per_s=10), retry=perkey.Retry(1),
        on_exhausted=perkey.DeadLetter(letters),
    )  # fmt: skip
    def handler(record):
        try:
            record.charge(-1)
        except perkey.ConfigError as error:
            errors.append(str(error))
            raise

    run = kafka.start(app)
    wait_for(lambda: run.snapshot()["handlers"]["handler"]["dead_lettered"] == 1, WAIT_S)
    assert "give what the call costs in all" in errors[0]


def test_values_of_by_have_their_turns(kafka):
    """A tenant's one record does not wait for another's hundred."""
    topic, service = kafka.topic(1), Service()
    kafka.fill(topic, [{"value": b"v", "key": f"big-{n}"} for n in range(100)])
    kafka.fill(topic, [{"value": b"v", "key": "small-0"}])
    app, order = kafka.app(), []
    by = lambda record: record.key.split(b"-")[0]  # noqa: E731  # as users write it

    @app.consume(topic, concurrency=20, budget=perkey.Budget("b", in_flight=1, by=by))
    def handler(record):
        if not order:
            service.gate.wait(WAIT_S)  # until all of them are there
        order.append(record.key)

    run = kafka.start(app)
    waiting = lambda: sum(p["places"]["budget"] for p in run.snapshot()["partitions"])  # noqa: E731  # asked often
    wait_for(lambda: waiting() == 100, WAIT_S)
    service.gate.set()
    wait_for(lambda: run.snapshot()["handlers"]["handler"]["done"] == 101, WAIT_S)
    assert order.index(b"small-0") <= 2


def test_two_members_have_a_share_each(kafka):
    """Of two partitions each has one: half of the calls; together never more than declared."""
    topic, service = kafka.topic(2), Service()
    records = [{"value": b"v", "key": f"{n}", "partition": n % 2} for n in range(80)]
    runs, group = [], kafka.name("g")
    for _ in range(2):
        app = kafka.app(group=group)

        @app.consume(topic, concurrency=20, budget=perkey.Budget("service", in_flight=4))
        def handler(record):
            service.begin()
            service.gate.wait(WAIT_S)
            service.end()

        runs.append(kafka.start(app))
    wait_for(lambda: all(len(run.snapshot()["partitions"]) == 1 for run in runs), WAIT_S)
    kafka.fill(topic, records)
    wait_for(lambda: all(halts(run) and halts(run)[0]["calls"] == 2 for run in runs), WAIT_S)
    assert [halts(run)[0]["share"] for run in runs] == [0.5, 0.5]
    wait_for(lambda: service.now == 4, WAIT_S)
    service.gate.set()
    wait_for(lambda: service.all == 80, WAIT_S)
    assert service.most == 4
