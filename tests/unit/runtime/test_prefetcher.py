"""What becomes of records that wait to be loaded, or were loaded too late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.bench import Bench

import perkey
from perkey.account.begun import waits
from perkey.core import states
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.runtime.calls import prefetch
from perkey.runtime.calls.prefetch import Prefetcher
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan


class Inner(Executor):
    """The executor behind: what it was asked for."""

    def __init__(self) -> None:
        self.started: list[list[Work]] = []
        self.cancelled: list[Work] = []
        self.warned: list[Sequence[Partition] | None] = []
        self.closed = False

    def start(self, works: Sequence[Work]) -> None:
        """Keep them."""
        self.started.append(list(works))

    start_batch = start

    def cancel(self, work: Work) -> None:
        """Keep it."""
        self.cancelled.append(work)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Keep them."""
        self.warned.append(partitions)

    def stack(self, where: tuple[str, int, int]) -> list[str]:
        """Nothing is called."""
        return []

    def close(self) -> None:
        """Keep it."""
        self.closed = True


class Clock:
    """The module's clock, in the hands of a test."""

    now = 100.0

    def monotonic(self) -> float:
        """The time."""
        return self.now


class Loading:
    """A prefetcher without loaders: the test is the loader."""

    def __init__(self, **spec: Any) -> None:
        self.inner = Inner()

        def make(plan: HandlerPlan, door: Door) -> Prefetcher:
            plan.prefetch = lambda records: [record.offset for record in records]
            prefetcher = Prefetcher(plan, door, None)
            prefetcher.inner = self.inner
            return prefetcher

        self.bench = Bench(make, **spec)
        self.prefetcher: Prefetcher = self.bench.executor

    def load(self) -> None:
        """One round of a loader."""
        works = self.prefetcher._queue.get_nowait()
        assert works
        self.prefetcher._load_for(works)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time stands still unless a test moves it; nothing is loaded but by a test."""
    monkeypatch.setattr(prefetch, "LOADERS", 0)
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    return clock


pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.parametrize("all_of_them", [False, True])
def test_what_waits_to_be_loaded_is_given_back(all_of_them: bool) -> None:
    """Of the partitions that go, or of all when the run stops; the others keep their order."""
    loading = Loading(concurrency=8)
    works = loading.bench.poll(6, partitions=2)
    going = works[0].partition
    loading.bench.door.call(lambda engine, now: engine.halt(now, "test", on=True))
    loading.prefetcher.warn(None if all_of_them else [going])
    back = [work for work in works if all_of_them or work.partition is going]
    assert [w for w in works if w.state == states.QUEUED] == back
    while loading.prefetcher._queue.qsize():
        loading.load()
    handed_on = [work for call in loading.inner.started for work in call]
    assert handed_on == [work for work in works if work not in back]
    assert loading.inner.warned == [None if all_of_them else [going]]


def test_a_batch_that_waits_to_be_loaded_is_given_back_whole() -> None:
    """Its slot is free again, and its records start a batch again, as their first attempt."""
    loading = Loading(concurrency=1, batch=perkey.Batch(max_records=3, linger_s=0))
    works = loading.bench.poll(3)
    slots = loading.bench.door.engine.state.handlers[0].slots
    loading.bench.door.call(lambda engine, now: engine.halt(now, "test", on=True))
    assert slots.free == 0
    loading.prefetcher.warn([works[0].partition])
    assert (slots.free, {work.state for work in works}) == (1, {states.QUEUED})
    loading.bench.door.call(lambda engine, now: engine.halt(now, "test", on=False))
    loading.load()
    assert [set(call) for call in loading.inner.started] == [set(works)]
    assert {work.record.attempt for work in works} == {1}


def test_a_recall_leaves_what_is_not_its_own_in_the_queue() -> None:
    """The word that ends a loader, and the one that wakes it, are still there."""
    loading = Loading(concurrency=2)
    works = loading.bench.poll(1)
    loading.prefetcher._queue.put(None)
    loading.prefetcher._queue.put([])
    loading.bench.door.call(lambda engine, now: engine.halt(now, "test", on=True))
    loading.prefetcher.warn([works[0].partition])
    left = [loading.prefetcher._queue.get_nowait() for _ in range(2)]
    assert left == [None, []]
    assert loading.prefetcher._queue.empty()


def test_each_record_gets_its_value() -> None:
    """In the order of the records."""
    loading = Loading(concurrency=4)
    works = loading.bench.poll(3)
    for _ in works:
        loading.load()
    assert [work.record.prefetched for work in works] == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_values_fails_the_attempt(count: int) -> None:
    """One for each record, neither more nor fewer."""
    loading = Loading(concurrency=1, batch=perkey.Batch(max_records=2, linger_s=0))
    works = loading.bench.poll(2)
    loading.prefetcher._function = lambda _: [1] * count
    loading.load()
    assert loading.inner.started == []
    assert {w.failure.error.type for w in works if w.failure and w.failure.error} == {"BadPrefetch"}


def test_gathered_for_one_load() -> None:
    """Records that are there are loaded together, up to the limit; the end waits its turn."""
    loading = Loading(concurrency=60)
    works = loading.bench.poll(40)
    prefetcher = loading.prefetcher
    prefetcher._queue.put(None)
    first, second = prefetcher._next(), prefetcher._next()
    third = prefetcher._next()
    assert first == works[:15]  # a quarter of the slots
    assert second == works[15:30]
    assert third == works[30:]
    assert prefetcher._next() is None


def test_closing_ends_the_executor_behind() -> None:
    """Loaders first, then what they hand on to."""
    loading = Loading(concurrency=1)
    loading.prefetcher.close()
    assert loading.inner.closed


def test_what_is_loaded_for_has_not_begun() -> None:
    """It is the prefetch that takes long, not the handler; also without a time-out."""
    desk = Loading()
    (work,) = desk.bench.poll(1)
    waited = []

    def load(records: Sequence[perkey.Record]) -> Sequence[perkey.Record]:
        waited.append(waits(work))
        return records

    desk.prefetcher._function = load
    desk.load()
    assert (waited, waits(work)) == ([True], False)


def test_only_a_call_that_was_handed_on_is_ended() -> None:
    """Loading ends by itself; what was returned before that is no longer loading."""
    loading = Loading(concurrency=1)
    (work,) = loading.bench.poll(1)
    loading.prefetcher.cancel(work)
    assert loading.inner.cancelled == []
    loading.load()
    loading.prefetcher.cancel(work)
    assert loading.inner.cancelled == [work]
