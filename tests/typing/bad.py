"""What a type checker must underline: every line that is marked, and no other. Never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import perkey

app = perkey.App(group="g", kafka={"bootstrap.servers": "localhost:9092"})
LEDGER = perkey.SqlLedger("sqlite:///x.db")


@app.consume("t")  # wrong: plain values need output=
def text(record: perkey.Record) -> str:
    """Returns what has no destination."""
    return "x"


@app.consume("t")  # wrong: plain values need output=
async def later(record: perkey.Record) -> dict[str, Any]:
    """The same as a coroutine."""
    return {}


@app.consume("t")  # wrong: an async generator
async def generates(record: perkey.Record) -> AsyncIterator[perkey.Produce]:
    """Cannot be awaited."""
    yield perkey.Produce(b"")


@app.consume("t", output="o")  # wrong: an async generator, output= or not
async def generates_values(record: perkey.Record) -> AsyncIterator[str]:
    """Cannot be awaited."""
    yield "x"


@app.consume("t")  # wrong: no record
def takes_a_dict(record: dict[str, Any]) -> None:
    """Is called with a record."""


@app.consume("t")  # wrong: two parameters without a ledger
def two(record: perkey.Record, tx: Any) -> None:
    """Is called with one."""


@app.consume("t", ledger=LEDGER)  # wrong: a ledger brings tx
def one(record: perkey.Record) -> None:
    """Is called with two."""


@app.consume("t", ledger=LEDGER)  # wrong: no outputs with a ledger
def produces(record: perkey.Record, tx: Any) -> perkey.Produce:
    """They could be lost."""
    return perkey.Produce(b"")


@app.consume("t", batch=perkey.Batch())  # wrong: a batch handler takes a RecordBatch
def takes_a_record(record: perkey.Record) -> None:
    """Is called with a batch."""


app.consume("t", ordering="keys")  # wrong: no such ordering
app.consume("t", delivery="exactly-once")  # wrong: no such delivery
app.consume("t", executor="process")  # wrong: no such executor
app.consume("t", value="jsn")  # wrong: no such value
app.consume("t", ledger=LEDGER, output="o")  # wrong: no outputs with a ledger
perkey.Batch(ack="each")  # wrong: no such acknowledgement
perkey.DeadLetter("d", on_missing="make")  # wrong: no such word
app.run(until="drain")  # wrong: no such end


def reads(record: perkey.Record[int]) -> str:
    """`Record[T]` is not a record of anything."""
    return record.value  # wrong: an int
