"""Prefetch beside time-outs and rest: nothing it loads for is held for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

import perkey
from perkey.testing import MemoryKafka, run

ONCE_MORE: dict[str, Any] = {
    "timeout_s": 0.05,
    "retry": perkey.Retry(attempts=2, delay_s=0),
    "on_exhausted": perkey.Skip(),
}
BATCHES = pytest.mark.parametrize("batch", [None, perkey.Batch(max_records=4, linger_s=0.01)])


def make_app(bootstrap: str = "nowhere:9092") -> perkey.App:
    """An app on this cluster."""
    return perkey.App(group="g", kafka={"bootstrap.servers": bootstrap})


@BATCHES
def test_an_async_prefetch_that_never_answers_is_timed_out(batch: perkey.Batch | None) -> None:
    """timeout_s ends the load, too: a hung service holds no record for ever."""
    app = make_app()

    async def load(records: Sequence[perkey.Record]) -> list[Any]:
        await asyncio.Event().wait()
        return []

    @app.consume("orders", prefetch=load, batch=batch, **ONCE_MORE)
    async def handle(got: Any) -> None:
        raise AssertionError("called without what it needs")

    (result,) = run(app, [b"1"])
    assert result.outcome == "skipped"
    assert result.error is not None
    assert result.error.message == "prefetch: no answer within timeout_s=0.05"


@BATCHES
def test_a_time_out_that_came_during_prefetch_ends_the_call(batch: perkey.Batch | None) -> None:
    """It counts again from when the record is handed on, with every loader at rest."""
    app = make_app()

    def load(records: Sequence[perkey.Record]) -> list[int]:
        time.sleep(0.2)  # longer than timeout_s: the engine's time-out comes meanwhile
        return [1] * len(records)

    @app.consume("orders", prefetch=load, batch=batch, **ONCE_MORE)
    async def handle(got: Any) -> None:
        await asyncio.Event().wait()

    (result,) = run(app, [b"1"])
    assert result.outcome == "skipped"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_generator_releases_though_no_further_record_comes(
    kind: str, memory_broker: MemoryKafka
) -> None:
    """What it loaded is released once its records are finished with, not with the next load."""
    memory_broker.create_topic("orders")
    memory_broker.produce("orders", b"1")
    app, released = make_app(memory_broker.bootstrap), threading.Event()

    def load(records: Sequence[perkey.Record]) -> Iterator[list[int]]:
        yield [1] * len(records)
        released.set()

    async def load_async(records: Sequence[perkey.Record]) -> AsyncIterator[list[int]]:
        yield [1] * len(records)
        released.set()

    @app.consume("orders", prefetch=load if kind == "plain" else load_async)
    def handle(record: perkey.Record) -> None: ...

    running = app.start()
    try:
        assert released.wait(20)
    finally:
        running.stop()
        running.wait()
