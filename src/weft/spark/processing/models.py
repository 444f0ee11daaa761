"""A pydantic model as columns: of what a handler returns (`schema=`) or gets (`value=`)."""

from __future__ import annotations

import datetime as dt
import types
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from weft.errors import ConfigError

#: The first that a type is a kind of; True is an int, and a time is a date.
_PLAIN: tuple[tuple[type, DataType], ...] = (
    (bool, BooleanType()),
    (int, LongType()),
    (float, DoubleType()),
    (Decimal, DecimalType(38, 18)),
    (dt.datetime, TimestampType()),
    (dt.date, DateType()),
    (str, StringType()),
)


def is_model(value: object) -> bool:
    """Whether it is a pydantic model's class."""
    return isinstance(value, type) and hasattr(value, "model_fields")


def columns_of_model(model: Any) -> StructType:
    """The model's fields as Spark has them; ConfigError for a type that has no column."""
    fields = []
    for name, field in model.model_fields.items():
        said = field.serialization_alias or name
        kind = _type_of(field.annotation, f"{model.__name__}.{name}", columns_of_model)
        fields.append(StructField(said, kind))
    return StructType(fields)


def columns_read(model: Any) -> StructType:
    """The columns that a value of the model can be made of.

    One that may be missing is nullable; where the model does not tell a type it is NullType.
    """
    fields = []
    for name, field in model.model_fields.items():
        said = field.validation_alias
        try:
            kind = _type_of(field.annotation, name, columns_read)
        except ConfigError:
            kind = NullType()
        column = said if isinstance(said, str) else name
        fields.append(StructField(column, kind, not field.is_required()))
    return StructType(fields)


Columns = Callable[[Any], StructType]


def _type_of(annotation: Any, where: str, inside: Columns) -> DataType:
    """`inside`: the columns of a model within this one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_of(arguments[0], where, inside)
    if origin in (Union, types.UnionType):
        some = [one for one in arguments if one is not type(None)]
        if len(some) != 1:
            return _refused(annotation, where)
        return _type_of(some[0], where, inside)
    if origin is Literal:
        kinds = {type(one) for one in arguments}
        if len(kinds) != 1:
            return _refused(annotation, where)
        return _type_of(kinds.pop(), where, inside)
    if origin in (list, set, frozenset) and arguments:
        return ArrayType(_type_of(arguments[0], where, inside))
    if origin is dict and arguments[0] is str:
        return MapType(StringType(), _type_of(arguments[1], where, inside))
    return _of_class(annotation, where, inside)


def _of_class(kind: Any, where: str, inside: Columns) -> DataType:
    if is_model(kind):
        return inside(kind)
    if isinstance(kind, type):
        if issubclass(kind, Enum) and not issubclass(kind, (str, int)):
            return _refused(kind, where)
        for python, column in _PLAIN:
            if issubclass(kind, python):
                return column
    return _refused(kind, where)


def _refused(annotation: Any, where: str) -> DataType:
    raise ConfigError(
        f"schema=: {where} is {annotation!r:.80}, which has no column: give a DDL text or a "
        "StructType instead"
    )
