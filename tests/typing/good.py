"""What users write, and what must pass: type-checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import pydantic

import weft

app = weft.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})


class Position(pydantic.BaseModel):
    """A value."""

    speed_kmh: float


@app.consume("t")
def nothing(record: weft.Record) -> None:
    """Plain `Record` is a record of anything."""
    record.value.whatever()


@app.consume("t", value=Position, ordering="partition", executor="threads", concurrency=10)
def typed(record: weft.Record[Position]) -> weft.Produce | None:
    """`Record[T]` says what the value is."""
    assert_type(record.value, Position)
    assert_type(record.key, bytes | None)
    return weft.Produce(record.value) if record.value.speed_kmh > 130 else None


@app.consume(["a", "b"], retry=weft.Retry(attempts=None), on_exhausted=weft.DeadLetter("d"))
async def later(record: weft.Record[bytes]) -> list[weft.Produce]:
    """An `async def` returns several."""
    return [weft.Produce(record.value, topic="x"), weft.Produce(None, key=None)]


def decide(record: weft.Record[Any], error: BaseException) -> weft.Park | weft.Retry:
    """What becomes of an exhausted record."""
    return weft.Retry() if isinstance(error, OSError) else weft.Park()


@app.consume("t", on_exhausted=decide)
def decided(record: weft.Record) -> None:
    """A function is a policy."""


@app.consume("t")
def generates(record: weft.Record) -> Iterator[weft.Produce]:
    """Generators yield outputs."""
    yield weft.Produce(b"")


@app.consume("t", output="out")
def text(record: weft.Record) -> str:
    """With `output=` plain values have a place."""
    return "x"


@app.consume("t", output="out")
async def several_kinds(record: weft.Record[Position]) -> Position | dict[str, Any] | None:
    """So have models and what JSON can hold."""
    return record.value


@app.consume("t", ledger=weft.SqlLedger("sqlite:///x.db"))
def with_tx(record: weft.Record, tx: Any) -> None:
    """A ledger brings a transaction."""


@app.consume("t", batch=weft.Batch(ack="explicit", by="key"))
async def batch(records: weft.RecordBatch[Position]) -> None:
    """A batch is a sequence of records."""
    for record in records:
        assert_type(record, weft.Record[Position])
        records.ack(record)


@app.consume("t", batch=weft.Batch(), ledger=weft.SqlLedger("sqlite:///x.db"))
def batch_with_tx(records: weft.RecordBatch, tx: Any) -> None:
    """Both at once."""


assert_type(typed(weft.Record("t", 0, 0, 0, None, Position(speed_kmh=1))), weft.Produce | None)
assert_type(app.run(until="drained"), weft.RunReport)
