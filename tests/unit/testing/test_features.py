"""Every way to run a handler works in memory too: batches, prefetch, processes, ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import perkey
from perkey.testing import VirtualClock, run

RECORDS = [(f"key {number % 3}", number) for number in range(12)]


def make_app() -> perkey.App:
    """An app whose cluster does not exist."""
    return perkey.App(group="g", kafka={"bootstrap.servers": "nowhere:9092"})


def process_id(record: perkey.Record) -> perkey.Produce:
    """A handler that another process can import."""
    return perkey.Produce(str(os.getpid()), topic="out")


def test_a_batch_lingers_on_the_virtual_clock() -> None:
    """Two full batches at once, the rest after a minute that costs nothing."""
    app, clock = make_app(), VirtualClock()
    sizes: list[int] = []

    @app.consume("orders", batch=perkey.Batch(max_records=5, linger_s=60))
    async def handle(batch: perkey.RecordBatch) -> None:
        sizes.append(len(batch))

    results = run(app, RECORDS, clock=clock)
    assert sizes == [5, 5, 2]
    assert len(results) == 12
    assert clock.elapsed_s >= 60


def test_prefetched_values_arrive() -> None:
    """What the prefetch function returned stands on the record."""
    app = make_app()
    seen: list[tuple[int, Any]] = []

    def load(records: list[perkey.Record]) -> list[int]:
        return [10 * record.offset for record in records]

    @app.consume("orders", prefetch=load)
    def handle(record: perkey.Record) -> None:
        seen.append((record.offset, record.prefetched))

    run(app, RECORDS)
    assert sorted(seen) == [(number, 10 * number) for number in range(12)]


def test_processes_run_elsewhere() -> None:
    """The handler runs in another process, its outputs come back."""
    app = make_app()
    app.consume("orders", executor="processes", concurrency=1)(process_id)
    results = run(app, RECORDS)
    assert [result.outcome for result in results] == ["done"] * 12
    assert {result.returned.value for result in results}.isdisjoint({str(os.getpid())})


@perkey.decoder
async def after_an_outage(record: perkey.Record) -> str:
    """A decoder whose registry is away at a record's first attempt."""
    if record.attempt == 1:
        raise ConnectionError("away")
    return record.value.decode() + record.topic


@pytest.mark.parametrize("batch", [None, perkey.Batch(max_records=4)])
def test_decoders_are_awaited_in_worker_processes(batch: perkey.Batch | None) -> None:
    """An outage is a failed attempt there too; keys are decoded, outputs keep their bytes."""
    app = make_app()
    function = decoded_pair if batch is None else decoded_pairs
    options: dict[str, Any] = {"batch": batch, "retry": perkey.Retry(delay_s=0)}
    app.consume(
        "orders",
        executor="processes",
        concurrency=1,
        key="json",
        value=after_an_outage,
        **options,
    )(function)
    results = run(app, [("1", "a"), ("2", "b")])
    assert [(one.outcome, one.attempts) for one in results] == [("done", 2)] * 2
    sent = {output.key for result in results for output in result.outputs}
    assert sent == ({b"1", b"2"} if batch is None else {b"1"})


def decoded_pair(record: perkey.Record) -> perkey.Produce:
    """A handler that another process can import."""
    assert (type(record.key), record.value[1:]) == (int, "orders")
    return perkey.Produce(record.value, topic="out")


def decoded_pairs(batch: perkey.RecordBatch) -> list[perkey.Produce]:
    """The same of batches."""
    return [decoded_pair(record) for record in batch][:1]


def test_a_ledger_recognises_repeats(tmp_path: Path) -> None:
    """A second group of runs on the same database handles nothing twice."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    handled: list[int] = []
    for _ in range(2):
        app = make_app()
        ledger = perkey.SqlLedger(f"sqlite:///{tmp_path}/ledger.db", id=lambda record: record.value.decode())  # fmt: skip

        @app.consume("orders", ledger=ledger)
        def handle(record: perkey.Record, tx: Any) -> None:
            tx.execute(sqlalchemy.text("select 1"))
            handled.append(record.offset)

        assert {result.outcome for result in run(app, RECORDS, ledger=ledger)} == {"done"}
    assert sorted(handled) == list(range(12))


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
def test_every_delivery_works(delivery: str) -> None:
    """Each record is handled once and its output is there."""
    app = make_app()
    options: dict[str, Any] = {}
    if delivery == "at_most_once":
        options = {"retry": perkey.Retry(attempts=1), "on_exhausted": perkey.Skip()}

    @app.consume("orders", output="out", delivery=delivery, **options)
    async def handle(record: perkey.Record) -> bytes:
        return record.value

    results = run(app, RECORDS)
    assert [result.outcome for result in results] == ["done"] * 12
    assert len({result.outputs[0].offset for result in results}) == 12
