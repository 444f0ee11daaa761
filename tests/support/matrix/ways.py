"""The ways a record can be delivered: each one's handler, options and what may repeat.

Worker processes import this module, so the handlers stand at its top and learn by the environment
where their log is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from tests.support.handler_log import Entry, Kind

import perkey

LOG, RUN = "PERKEY_MATRIX_LOG", "PERKEY_MATRIX_RUN"  # a file, and which run of the cell this is
HELD = "PERKEY_MATRIX_HELD"  # a file: before it is there, records from this number on wait
HELD_FROM = 60
CONCURRENCY = 4
WORK_S = 0.004
BATCH = 8


def name_of(record: perkey.Record) -> tuple[int, int]:
    """What the record is called: the topic's incarnation and its number, whatever its offset."""
    incarnation, number, *_ = record.value.split()
    return int(incarnation), int(number)


def output_of(record: perkey.Record) -> perkey.Produce:
    """The effect of handling it."""
    incarnation, number = name_of(record)
    return perkey.Produce(b"%d %d" % (incarnation, number), key=record.key)


@cache
def _log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(kind: Kind, record: perkey.Record) -> None:
    """A line for the judge; a lane is of one incarnation."""
    incarnation, number = name_of(record)
    run = int(os.environ[RUN])
    key = (record.key or b"").decode()
    entry = Entry(kind, time.monotonic(), run, incarnation, incarnation, number, key)
    os.write(_log(os.environ[LOG]), entry.line().encode())


def held(record: perkey.Record) -> bool:
    """Whether the fault wants it to wait, so that it strikes in the middle of the work."""
    path, (_, number) = os.environ.get(HELD, ""), name_of(record)
    return bool(path) and number >= HELD_FROM and not Path(path).exists()


async def single(record: perkey.Record) -> perkey.Produce:
    """An `async def` handler."""
    note("S", record)
    try:
        await asyncio.sleep(WORK_S)
        while held(record):  # noqa: ASYNC110  # what releases it is a file
            await asyncio.sleep(WORK_S)
    except BaseException:
        note("F", record)
        raise
    note("E", record)
    return output_of(record)


def blocking(record: perkey.Record) -> perkey.Produce:
    """A plain one, for worker processes."""
    note("S", record)
    time.sleep(WORK_S)  # its work
    while held(record):
        time.sleep(WORK_S)  # its work, which lasts
    note("E", record)
    return output_of(record)


async def together(batch: perkey.RecordBatch) -> list[perkey.Produce]:
    """A batch: one record after another."""
    await asyncio.sleep(WORK_S)
    while any(map(held, batch)):  # noqa: ASYNC110  # what releases it is a file
        await asyncio.sleep(WORK_S)
    for record in batch:
        note("S", record)
        note("E", record)
    return [output_of(record) for record in batch]


def booked(record: perkey.Record, tx: Connection) -> None:
    """With a ledger: a row is its effect."""
    note("S", record)
    while held(record):
        time.sleep(WORK_S)  # its work, which lasts
    incarnation, number = name_of(record)
    row = {"incarnation": incarnation, "number": number}
    tx.execute(text("insert into effects values (:incarnation, :number)"), row)
    note("E", record)


@dataclass(frozen=True)
class Way:
    """One way of delivery."""

    name: str
    handler: Callable[..., Any] = single
    options: dict[str, Any] = field(default_factory=dict)
    #: no record is begun twice
    starts_once: bool = False
    #: no effect is there twice
    effects_once: bool = False
    #: a run that ends by itself may cost so many completed records another call; None: what was
    #: completed since its last commit
    repeats_max: int | None = None


WAYS = (
    Way(
        "at_most_once",
        options={
            "delivery": "at_most_once",
            "retry": perkey.Retry(attempts=1),
            "on_exhausted": perkey.Skip(),
        },
        starts_once=True,
        effects_once=True,
    ),
    Way("at_least_once"),
    Way("each", options={"commit": perkey.Commit(each=True)}, repeats_max=CONCURRENCY),
    Way("exactly_once", options={"delivery": "exactly_once"}, effects_once=True),
    Way("ledger", booked, effects_once=True),
    Way("batch", together, {"batch": perkey.Batch(BATCH, linger_s=0.01)}),
    Way("processes", blocking, {"executor": "processes", "concurrency": 2}),
)
