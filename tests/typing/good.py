"""What users write, and what must pass: type-checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import pydantic

import perkey

app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})


class Position(pydantic.BaseModel):
    """A value."""

    speed_kmh: float


@app.consume("t")
def nothing(record: perkey.Record) -> None:
    """Plain `Record` is a record of anything."""
    record.value.whatever()


@app.consume("t", value=Position, ordering="partition", executor="threads", concurrency=10)
def typed(record: perkey.Record[Position]) -> perkey.Produce | None:
    """`Record[T]` says what the value is."""
    assert_type(record.value, Position)
    assert_type(record.key, bytes | None)
    return perkey.Produce(record.value) if record.value.speed_kmh > 130 else None


@app.consume(["a", "b"], retry=perkey.Retry(attempts=None), on_exhausted=perkey.DeadLetter("d"))
async def later(record: perkey.Record[bytes]) -> list[perkey.Produce]:
    """An `async def` returns several."""
    return [perkey.Produce(record.value, topic="x"), perkey.Produce(None, key=None)]


def decide(record: perkey.Record[Any], error: BaseException) -> perkey.Park | perkey.Retry:
    """What becomes of an exhausted record."""
    return perkey.Retry() if isinstance(error, OSError) else perkey.Park()


@app.consume("t", on_exhausted=decide)
def decided(record: perkey.Record) -> None:
    """A function is a policy."""


@app.consume("t")
def generates(record: perkey.Record) -> Iterator[perkey.Produce]:
    """Generators yield outputs."""
    yield perkey.Produce(b"")


@app.consume("t", output="out")
def text(record: perkey.Record) -> str:
    """With `output=` plain values have a place."""
    return "x"


@app.consume("t", output="out")
async def several_kinds(record: perkey.Record[Position]) -> Position | dict[str, Any] | None:
    """So have models and what JSON can hold."""
    return record.value


@app.consume("t", ledger=perkey.SqlLedger("sqlite:///x.db"))
def with_tx(record: perkey.Record, tx: Any) -> None:
    """A ledger brings a transaction."""


@app.consume("t", batch=perkey.Batch(ack="explicit", by="key"))
async def batch(records: perkey.RecordBatch[Position]) -> None:
    """A batch is a sequence of records."""
    for record in records:
        assert_type(record, perkey.Record[Position])
        records.ack(record)


@app.consume("t", batch=perkey.Batch(), ledger=perkey.SqlLedger("sqlite:///x.db"))
def batch_with_tx(records: perkey.RecordBatch, tx: Any) -> None:
    """Both at once."""


assert_type(typed(perkey.Record("t", 0, 0, 0, None, Position(speed_kmh=1))), perkey.Produce | None)
assert_type(app.run(until="drained"), perkey.RunReport)
