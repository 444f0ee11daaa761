"""Preloading on the real broker: every sentence of the contract's section on `prefetch`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

import pytest
from tests.integration.app.conftest import Kafka
from tests.integration.delivery.test_batches import InOrder, keyed
from tests.support.waiting import wait_for

import perkey

pytestmark = pytest.mark.push

COUNT = 400


class Loader:
    """The four forms of a prefetch function, and what they saw."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.threads: set[str] = set()
        self.released: Counter[int] = Counter()
        self.loaded: Counter[int] = Counter()

    def _load(self, records: Sequence[perkey.Record]) -> list[int]:
        self.sizes.append(len(records))
        self.threads.add(threading.current_thread().name)
        values = [int(record.value) for record in records]
        self.loaded.update(values)
        return [10 * value for value in values]

    def plain(self, records: list[perkey.Record]) -> list[int]:
        time.sleep(0.001)  # its work
        return self._load(records)

    async def waiting(self, records: list[perkey.Record]) -> tuple[int, ...]:
        await asyncio.sleep(0.001)
        return tuple(self._load(records))

    def generator(self, records: list[perkey.Record]) -> Generator[list[int], None, None]:
        values = self._load(records)
        yield values
        self.released.update(value // 10 for value in values)

    async def async_generator(
        self, records: list[perkey.Record]
    ) -> AsyncGenerator[list[int], None]:
        await asyncio.sleep(0.001)
        values = self._load(records)
        yield values
        self.released.update(value // 10 for value in values)


FORMS = ("plain", "waiting", "generator", "async_generator")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["async", "threads"])
def test_each_record_has_its_own_value(kafka: Kafka, form: str, kind: str) -> None:
    """By list, tuple and generator, plain and async, with both executors; lanes keep their order."""
    topic = kafka.topic(2)
    kafka.fill(topic, keyed(COUNT, 40))
    app, loader, order, wrong = kafka.app(), Loader(), InOrder(), []

    def check(record: perkey.Record) -> None:
        order.take(record)
        if record.prefetched != 10 * int(record.value):
            wrong.append(record)

    async def asynchronous(record: perkey.Record) -> None:
        check(record)

    app.consume(topic, concurrency=40, prefetch=getattr(loader, form))(
        asynchronous if kind == "async" else check
    )
    assert kafka.drain(app).done == COUNT
    assert (wrong, order.broken) == ([], [])
    assert order.seen == loader.loaded == Counter(range(COUNT))
    assert max(loader.sizes) <= 10
    assert "perkey-poll" not in loader.threads
    if "generator" in form:
        wait_for(lambda: loader.released == Counter(range(COUNT)))


@pytest.mark.parametrize(
    ("concurrency", "most"), [(1, 1), (8, 8), (39, 10), (40, 10), (44, 11), (400, 100)]
)
def test_how_many_are_loaded_together(kafka: Kafka, concurrency: int, most: int) -> None:
    """At most max(10, concurrency // 4), and no more than there are slots."""
    topic = kafka.topic()
    count = 20 * most
    kafka.fill(topic, keyed(count, count))
    app, loader = kafka.app(), Loader()

    @app.consume(topic, concurrency=concurrency, prefetch=loader.plain)
    async def handler(record: perkey.Record) -> None:
        await asyncio.sleep(0.001)

    kafka.drain(app, 60)
    assert max(loader.sizes) == most


def test_a_lone_record_waits_five_milliseconds_at_most(kafka: Kafka) -> None:
    """It is loaded and handled without company: no longer linger than that."""
    topic = kafka.topic()
    app, waits = kafka.app(), []

    def load(records: list[perkey.Record]) -> list[float]:
        return [time.monotonic()] * len(records)

    @app.consume(topic, prefetch=load)
    async def handler(record: perkey.Record) -> None:
        waits.append(
            (time.monotonic() - record.prefetched, time.time() - record.timestamp_ms / 1000)
        )

    kafka.start(app)
    wait_for(lambda: app.snapshot()["partitions"])
    for number in range(20):
        kafka.fill(topic, [b"%d" % number])
        wait_for(lambda at=number: len(waits) > at)
    print(f"from sent to handled, seconds: {sorted(round(w, 4) for _, w in waits)}")
    assert sorted(wait for _, wait in waits)[10] < 1.0  # 5 ms on a quiet machine


@pytest.mark.parametrize("form", ["raises", "short", "long", "none", "empty generator"])
@pytest.mark.parametrize("batch", [None, perkey.Batch(5)])
def test_a_failing_prefetch_is_a_failed_attempt_of_its_records(
    kafka: Kafka, form: str, batch: Any
) -> None:
    """Raised, the wrong length, no sequence, or nothing yielded; the next attempt loads again."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(5, 5))
    app, calls, handled = kafka.app(), [], Counter[int]()

    def load(records: list[perkey.Record]) -> Any:
        calls.append(records)
        if any(record.attempt > 1 for record in records):
            return [record.attempt for record in records]
        if form == "raises":
            raise ConnectionError("the cache is away")
        return {"short": [1] * (len(records) - 1), "long": [1] * (len(records) + 1)}.get(form)

    def empty(records: list[perkey.Record]) -> Generator[list[int], None, None]:
        calls.append(records)
        if any(record.attempt > 1 for record in records):
            yield [record.attempt for record in records]

    def handle(given: Any) -> None:
        for record in given if batch else [given]:
            assert record.prefetched == record.attempt > 1
            handled[int(record.value)] += 1

    app.consume(
        topic,
        batch=batch,
        prefetch=empty if form == "empty generator" else load,
        retry=perkey.Retry(attempts=4, delay_s=0.01),
    )(handle)
    results = app.results()
    report = kafka.drain(app)
    assert (report.done, handled) == (5, Counter(range(5)))
    assert report.failed_attempts >= 5
    assert {result.attempts for result in results} <= {2, 3, 4}


def test_a_failing_prefetch_names_the_cure(kafka: Kafka) -> None:
    """The wrong length is told with both numbers."""
    topic = kafka.topic()
    kafka.fill(topic, [b"0"])
    app = kafka.app()

    @app.consume(
        topic,
        prefetch=lambda records: [],
        retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.Skip(),
    )
    async def handler(record: perkey.Record) -> None:
        raise AssertionError("called without what it needs")

    results = app.results()
    kafka.drain(app)
    (result,) = results
    assert result.error.type == "BadPrefetch"
    assert "0 values for 1 records" in result.error.message


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_generator_continues_when_its_records_are_finished_with(
    kafka: Kafka, ending: str
) -> None:
    """Not before the last of them ended, however it ended; what it raises then is no failure."""
    topic = kafka.topic()
    kafka.fill(topic, keyed(8, 8))
    app, running, early = kafka.app(), set[int](), []
    released: list[set[int]] = []

    def load(records: list[perkey.Record]) -> Generator[list[None], None, None]:
        mine = {record.offset for record in records}
        running.update(mine)
        yield [None] * len(records)
        early.append(running & mine)
        released.append(mine)
        raise OSError("closing failed")

    @app.consume(topic, prefetch=load, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Skip())
    async def handler(record: perkey.Record) -> None:
        await asyncio.sleep(0.01 * record.offset)
        running.discard(record.offset)
        if ending == "raises":
            raise ValueError("bad")

    report = kafka.drain(app)
    assert (report.done, report.skipped) == ((8, 0) if ending == "returns" else (0, 8))
    wait_for(lambda: set().union(*released) == set(range(8)))
    assert not any(early)
