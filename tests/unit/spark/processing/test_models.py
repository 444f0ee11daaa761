"""Pydantic models as columns of what a handler returns."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from perkey.errors import ConfigError
from perkey.spark.processing.typed import columns_of_model


class Colour(StrEnum):
    """Text in JSON."""

    RED = "red"


class Mixed(Enum):
    """May be anything in JSON."""

    ONE = 1
    TWO = "two"


class Place(BaseModel):
    """A model inside of one."""

    zone: str | None
    since: dt.date


class Checked(BaseModel):
    """What a handler returns."""

    ride: int
    inside: bool
    cost: Annotated[float, Field(ge=0)]
    exact: Decimal
    at: dt.datetime
    place: Place
    before: list[Place]
    tags: dict[str, int]
    colour: Colour
    kind: Literal["a", "b"]


def test_fields_become_columns() -> None:
    """Names and types, also of models inside."""
    place = "struct<zone:string,since:date>"
    assert columns_of_model(Checked).simpleString() == (
        "struct<ride:bigint,inside:boolean,cost:double,exact:decimal(38,18),at:timestamp,"
        f"place:{place},before:array<{place}>,tags:map<string,bigint>,colour:string,kind:string>"
    )


@pytest.mark.parametrize("kind", [Any, int | str, bytes, Mixed, dict[int, int], Literal[1, "a"]])
def test_what_has_no_column_is_named(kind) -> None:
    """One line with the field, before any job starts."""
    model = type("Odd", (BaseModel,), {"__annotations__": {"odd": kind}})
    with pytest.raises(ConfigError, match=r"Odd\.odd is .*, which has no column"):
        columns_of_model(model)
