"""Crash points: what is lost, what is kept, and what is repeated after each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import perkey
from perkey.testing import MemoryKafka
from perkey.testing.crash import POINTS

RECORDS, KEYS, CONCURRENCY = 60, 7, 4
SOON = perkey.Commit(interval_s=0.01, max_records=5)


class Orders:
    """An app that copies orders to `out`, and what its handler has seen."""

    def __init__(self, broker: MemoryKafka, kind: str, **options: Any) -> None:
        self.broker = broker
        self.calls: list[tuple[int, int]] = []
        #: what happens at the nth call
        self.at_call: dict[int, Callable[[], None]] = {}
        self.lanes: defaultdict[bytes | None, list[int]] = defaultdict(list)
        self.app = perkey.App(group="g", kafka={"bootstrap.servers": broker.bootstrap})
        broker.create_topic("orders", 3)
        broker.create_topic("out")
        for number in range(RECORDS):
            broker.produce("orders", str(number), key=f"key {number % KEYS}")
        handler = self.on_loop if kind == "async" else self.on_thread
        self.app.consume("orders", output="out", concurrency=CONCURRENCY, commit=SOON, **options)(
            handler
        )

    def _note(self, record: perkey.Record) -> bytes:
        self.calls.append((record.partition, record.offset))
        self.at_call.pop(len(self.calls), lambda: None)()
        self.lanes[record.key].append(int(record.value))
        return record.value

    async def on_loop(self, record: perkey.Record) -> bytes:
        await asyncio.sleep(0.0005)
        return self._note(record)

    def on_thread(self, record: perkey.Record) -> bytes:
        return self._note(record)

    def run(self) -> perkey.RunReport:
        return self.app.run(until="drained")


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_lost_at_any_point(memory_broker: MemoryKafka, point: Any, kind: str) -> None:
    """Killed there and started again: every record is handled, and its output is there."""
    orders = Orders(memory_broker, kind)
    when = 0 if point == "assigned" else 30
    orders.at_call[when] = lambda: memory_broker.crash_at(point)
    orders.at_call.pop(0, lambda: None)()
    first = orders.run()
    assert (first.exit_code, memory_broker.crashes) == (1, [point])
    assert point in first.reason
    assert orders.run().exit_code == 0
    assert len(set(orders.calls)) == RECORDS
    values = {record.value for record in memory_broker.records("out")}
    assert values == {b"%d" % number for number in range(RECORDS)}
    for partition in range(3):
        assert memory_broker.committed("g", "orders", partition).not_done == ()


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_order_holds_across_a_crash(memory_broker: MemoryKafka, kind: str) -> None:
    """In each key, a record is handled again only from where the group knew it to be done."""
    orders = Orders(memory_broker, kind)
    memory_broker.crash_at("after_handler", 30)
    orders.run()
    cut = {key: len(lane) for key, lane in orders.lanes.items()}
    orders.run()
    for key, lane in orders.lanes.items():
        before, after = lane[: cut.get(key, 0)], lane[cut.get(key, 0) :]
        assert before == sorted(before)
        assert after == sorted(after)


def test_what_was_committed_is_not_repeated(memory_broker: MemoryKafka) -> None:
    """After a commit that the broker stored but could not answer, its records stay done."""
    orders = Orders(memory_broker, "async")
    orders.at_call[30] = lambda: memory_broker.crash_at("commit_stored")
    assert orders.run().exit_code == 1
    done: set[tuple[int, int]] = set()
    for partition in range(3):
        held = memory_broker.committed("g", "orders", partition)
        upto = range(held.highest_seen + 1)
        done |= {(partition, n) for n in upto if n < held.frontier or n not in held.not_done}
    assert done
    first = len(orders.calls)
    orders.run()
    assert done.isdisjoint(orders.calls[first:])


def test_only_in_flight_records_repeat_with_commit_each(memory_broker: MemoryKafka) -> None:
    """`Commit(each=True)`: a kill repeats at most what was in flight."""
    memory_broker.create_topic("orders", 1)
    for number in range(RECORDS):
        memory_broker.produce("orders", str(number), key=str(number))
    app = perkey.App(group="g", kafka={"bootstrap.servers": memory_broker.bootstrap})
    calls: Counter[int] = Counter()

    @app.consume("orders", concurrency=CONCURRENCY, commit=perkey.Commit(each=True))
    async def handle(record: perkey.Record) -> None:
        calls[record.offset] += 1

    memory_broker.crash_at("after_handler", 25)
    assert app.run(until="drained").exit_code == 1
    assert app.run(until="drained").exit_code == 0
    assert set(calls) == set(range(RECORDS))
    assert sum(count - 1 for count in calls.values()) <= CONCURRENCY


def test_a_thousand_and_50_ms_of_work_repeat_with_the_default_commit(
    memory_broker: MemoryKafka,
) -> None:
    """Besides what was in flight; a commit and the thread that sends it get 0.2 s."""
    count, slack_s = 2_600, 0.2
    memory_broker.create_topic("orders", 1)
    for number in range(count):
        memory_broker.produce("orders", str(number), key=str(number))
    app = perkey.App(group="g", kafka={"bootstrap.servers": memory_broker.bootstrap})
    calls: Counter[int] = Counter()
    ended: list[float] = []

    @app.consume("orders", concurrency=CONCURRENCY)
    async def handle(record: perkey.Record) -> None:
        await asyncio.sleep(0.0005)
        calls[record.offset] += 1
        ended.append(time.monotonic())

    memory_broker.crash_at("after_handler", 2_500)
    assert app.run(until="drained").exit_code == 1
    recent = sum(at > ended[-1] - 0.05 - slack_s for at in ended)
    assert app.run(until="drained").exit_code == 0
    assert set(calls) == set(range(count))
    repeated = sum(calls.values()) - count
    assert 0 < repeated <= CONCURRENCY + 1_000 + recent


@pytest.mark.parametrize(
    "point", ["before_output", "output_stored", "before_commit", "commit_stored"]
)
def test_exactly_once_survives_every_point(memory_broker: MemoryKafka, point: Any) -> None:
    """A transaction cut off anywhere: its reader sees every result once, in order."""
    orders = Orders(memory_broker, "async", delivery="exactly_once")
    orders.at_call[30] = lambda: memory_broker.crash_at(point)
    assert orders.run().exit_code == 1
    assert orders.run().exit_code == 0
    values = [int(record.value) for record in memory_broker.records("out")]
    assert sorted(values) == list(range(RECORDS))
    for key in range(KEYS):
        lane = [value for value in values if value % KEYS == key]
        assert lane == sorted(lane)


def test_at_most_once_never_repeats(memory_broker: MemoryKafka) -> None:
    """Marked before it is handled: a crash may skip records, and repeats none."""
    memory_broker.create_topic("orders", 2)
    for number in range(RECORDS):
        memory_broker.produce("orders", str(number), key=str(number % KEYS))
    app = perkey.App(group="g", kafka={"bootstrap.servers": memory_broker.bootstrap})
    calls: Counter[tuple[int, int]] = Counter()

    @app.consume("orders", concurrency=CONCURRENCY, delivery="at_most_once", retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())  # fmt: skip
    async def handle(record: perkey.Record) -> None:
        calls[record.partition, record.offset] += 1

    memory_broker.crash_at("before_handler", 20)
    assert app.run(until="drained").exit_code == 1
    assert app.run(until="drained").exit_code == 0
    assert max(calls.values()) == 1
    assert RECORDS - CONCURRENCY <= len(calls) < RECORDS


@pytest.mark.parametrize(("point", "nth"), [("nowhere", 1), ("revoked", 0)])
def test_bad_points_are_refused(memory_broker: MemoryKafka, point: Any, nth: int) -> None:
    """One line that names the choices."""
    with pytest.raises(perkey.ConfigError, match="crash_at"):
        memory_broker.crash_at(point, nth)
