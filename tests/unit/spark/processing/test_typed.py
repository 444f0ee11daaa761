"""Values that are columns: what fits a model, and what a task makes of them."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel, Field
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from tests.unit.spark.processing import seen

import perkey
from perkey.spark.processing.typed import _misfit_inside, as_json, columns_read, ddl


class Place(BaseModel):
    """A model inside of one."""

    zone: str


class Ride(BaseModel):
    """What a handler gets."""

    ride: int
    cost: float = Field(alias="Cost")
    place: Place | None = None
    tags: dict[str, int] = {}
    before: list[Place] = []
    anything: Any = None


def struct(**fields):
    """A struct of these columns."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    "found",
    [
        struct(ride=LongType(), Cost=DoubleType()),
        struct(ride=IntegerType(), Cost=LongType(), other=StringType()),
        struct(ride=LongType(), Cost=DoubleType(), anything=ArrayType(StringType())),
        struct(ride=LongType(), Cost=DoubleType(), place=struct(zone=StringType())),
        struct(ride=LongType(), Cost=DoubleType(), tags=MapType(StringType(), IntegerType())),
    ],
)
def test_columns_that_hold_what_the_model_takes(found):
    """By name or alias; wider types take narrower ones; what has a default may be missing."""
    assert _misfit_inside(columns_read(Ride), found, "") == ""


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (struct(ride=LongType()), "needs column value.Cost"),
        (struct(ride=LongType(), cost=DoubleType()), "needs column value.Cost"),
        (struct(ride=StringType(), Cost=DoubleType()), "needs column value.ride as bigint"),
        (struct(ride=DoubleType(), Cost=DoubleType()), "ride as bigint, and it is double: cast it"),
        (
            struct(ride=LongType(), Cost=DoubleType(), place=struct(id=LongType())),
            r"needs column value.place.zone",
        ),
        (
            struct(ride=LongType(), Cost=DoubleType(), before=ArrayType(struct(zone=LongType()))),
            r"needs column value.before\[\].zone as string, and it is bigint",
        ),
    ],
)
def test_what_does_not_fit_is_named(found, told):
    """The column, also inside of others, and what to do."""
    assert re.search(told, _misfit_inside(columns_read(Ride), found, "value."))


def test_a_schema_has_any_name():
    """Names with blanks, dots and back ticks."""
    kind = ArrayType(struct(**{"a b": LongType(), "c`d": MapType(StringType(), LongType())}))
    assert ddl(kind) == "array<struct<`a b`: bigint, `c``d`: map<string, bigint>>>"


def test_fields_for_a_topic_are_json():
    """Times and decimals as text; no value stays none."""
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    value = {"n": 1, "at": at, "cost": Decimal("1.50"), "raw": b"\x00"}
    assert json.loads(as_json(value)) == {
        "n": 1, "at": "2026-01-02T00:00:00+00:00", "cost": "1.50", "raw": "AA==",
    }  # fmt: skip
    assert as_json(None) is None


VALUE = pa.struct(
    [
        ("ride", pa.int64()),
        ("Cost", pa.float64()),
        ("tags", pa.map_(pa.string(), pa.int64())),
    ]
)


@pytest.fixture
def typed_rows(task):
    """Rows of a task whose values are fields, by offset."""

    def run(handler, values, **options):
        count = len(values)
        columns = {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, VALUE),
        }
        batches = task(handler, [pa.record_batch(columns)], typed=True, **options)
        return [row for batch in batches for row in batch.to_pylist()]

    return run


GOOD = {"ride": 1, "Cost": 2.5, "tags": {"a": 1}}


def test_a_handler_gets_the_model(typed_rows):
    """Made of the fields; a null is a tombstone; what the model refuses is a failed row."""

    def handler(record):
        ride = record.value
        return None if ride is None else {"is": type(ride).__name__, "tags": ride.tags}

    rows = typed_rows(handler, [GOOD, None, {**GOOD, "ride": None}], value=Ride)
    assert [row["status"] for row in rows] == ["done", "done", "failed"]
    assert json.loads(rows[0]["outputs"][0]["value"]) == {"is": "Ride", "tags": {"a": 1}}
    assert "ride: Input should be a valid integer" in rows[2]["error"]


def test_a_handler_gets_a_dict(typed_rows):
    """value="json": each attempt its own."""
    seen.FACTS.clear()

    def handler(record):
        seen.tell(dict(record.value))
        record.value.clear()
        if record.attempt == 1:
            raise ValueError

    retry = perkey.Retry(attempts=2, delay_s=0)
    assert typed_rows(handler, [GOOD], value="json", retry=retry)[0]["status"] == "done"
    assert seen.FACTS == [GOOD, GOOD]


def test_fields_are_carried_as_they_are(typed_rows):
    """So that a table of failed rows can be handled again; a dead letter has JSON."""

    def handler(record):
        raise ValueError

    rows = typed_rows(
        handler, [GOOD], value=Ride, carry="failed", retry=perkey.Retry(attempts=1),
        on_exhausted=perkey.DeadLetter("{topic}.dlq"),
    )  # fmt: skip
    assert rows[0]["value"] == {**GOOD, "tags": [("a", 1)]}
    assert json.loads(rows[0]["outputs"][0]["value"]) == GOOD
