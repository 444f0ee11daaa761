"""Values that are columns already: no bytes and no JSON before the handler.

A struct column `value` is the value, with `value=Model` (pydantic) or `value="json"` (a dict). For
a DataFrame without a column `value` the model's fields are separate columns.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import types
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name every Spark job gives it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from perkey.errors import ConfigError

# -- models ----------------------------------------------------------------------------------------
# A pydantic model as columns: for a handler's results (`schema=`) or values (`value=`).

#: The first one that matches a type; bool is checked before int, and a time before a date.
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
    """Whether it is the class of a pydantic model."""
    return isinstance(value, type) and hasattr(value, "model_fields")


def columns_of_model(model: Any) -> StructType:
    """The model's fields as a Spark schema; ConfigError for a type that has no column."""
    fields = []
    for name, field in model.model_fields.items():
        alias = field.serialization_alias or name
        kind = _type_of(field.annotation, f"{model.__name__}.{name}", columns_of_model)
        fields.append(StructField(alias, kind))
    return StructType(fields)


def columns_read(model: Any) -> StructType:
    """The columns from which a value of the model can be built.

    A field that may be missing is nullable; NullType if the model has no type for it.
    """
    fields = []
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        try:
            kind = _type_of(field.annotation, name, columns_read)
        except ConfigError:
            kind = NullType()
        column = alias if isinstance(alias, str) else name
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
    if is_model(annotation):
        return inside(annotation)
    if isinstance(annotation, type) and (
        not issubclass(annotation, Enum) or issubclass(annotation, (str, int))
    ):
        for python, column in _PLAIN:
            if issubclass(annotation, python):
                return column
    return _refused(annotation, where)


def _refused(annotation: Any, where: str) -> DataType:
    raise ConfigError(
        f"schema=: {where} is {annotation!r:.80}, which has no column: give a DDL text or a "
        "StructType instead"
    )


# -- values ----------------------------------------------------------------------------------------

#: Columns of the record itself: a model's field of such a name must be in a struct.
RECORD = frozenset({"topic", "partition", "offset", "key", "timestamp", "headers"})

#: Column type of a model -> other types whose values it accepts.
_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    LongType: (IntegralType,),
    DoubleType: (FloatType, IntegralType, DecimalType),
    DecimalType: (IntegralType,),
    TimestampType: (TimestampNTZType,),
}


def typed_value(schema: StructType, kind: Any, where: str) -> Column | None:
    """The value as one struct; None if it is bytes or text. ConfigError if it does not fit.

    `kind` is the option `value=`.
    """
    found = next((field.dataType for field in schema.fields if field.name == "value"), None)
    if found is None and is_model(kind):
        if own := sorted(RECORD.intersection(columns_read(kind).names)):
            raise ConfigError(
                f"{where}: value={kind.__name__} has the field {own[0]}, which is a column of the"
                " record too: put the model's fields into a struct column value,"
                ' df.withColumn("value", struct(…))'
            )
        names = _fitting(kind, schema, "", where)
        return F.struct(*(F.col(quoted(name)).alias(name) for name in names)).alias("value")
    if not isinstance(found, StructType):
        return None
    if kind == "json":
        return F.col("value")
    if not is_model(kind):
        raise ConfigError(
            f"{where}: column value is a struct and value={kind!r:.40}: give value=Model (pydantic)"
            ' for an object of it, or value="json" for a dict'
        )
    names = _fitting(kind, found, "value.", where)
    if names == found.names:
        return F.col("value")
    fields = F.struct(*(F.col("value").getField(name).alias(name) for name in names))
    return F.when(F.col("value").isNotNull(), fields).alias("value")


def _fitting(model: Any, found: StructType, prefix: str, where: str) -> list[str]:
    """The names of the model's fields that exist; ConfigError if one is missing or wrong."""
    wanted = columns_read(model)
    if wrong := _misfit_inside(wanted, found, prefix):
        raise ConfigError(f"{where}: value={model.__name__} {wrong}")
    there = set(found.names)
    names = [name for name in wanted.names if name in there]
    if not names:
        raise ConfigError(f"{where}: no column is a field of value={model.__name__}")
    return names


def _misfit_inside(wanted: StructType, found: StructType, prefix: str) -> str:
    """What is missing or has the wrong type among these fields; "" if nothing."""
    there = {field.name: field.dataType for field in found.fields}
    for field in wanted.fields:
        column = f"{prefix}{field.name}"
        if field.name in there:
            if wrong := _misfit(field.dataType, there[field.name], column):
                return wrong
        elif not field.nullable:
            return f"needs column {column}, which is not there: add it, or give the field a default"
    return ""


def _misfit(wanted: DataType, found: DataType, column: str) -> str:
    match wanted, found:
        case StructType(), StructType():
            return _misfit_inside(wanted, found, f"{column}.")
        case ArrayType(), ArrayType():
            return _misfit(wanted.elementType, found.elementType, f"{column}[]")
        case MapType(), MapType():
            return _misfit(wanted.valueType, found.valueType, f"{column}[]")
        case NullType(), _:
            return ""
    if isinstance(found, (type(wanted), *_WIDER.get(type(wanted), ()))):
        return ""
    shown = found.simpleString()
    return f"needs column {column} as {wanted.simpleString()}, and it is {shown}: cast it"


def ddl(kind: DataType) -> str:
    """A type as the text of a schema, whatever its fields are called."""
    match kind:
        case StructType():
            fields = (f"{quoted(field.name)}: {ddl(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case ArrayType():
            return f"array<{ddl(kind.elementType)}>"
        case MapType():
            return f"map<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    """A column's name, quoted for Spark."""
    return f"`{name.replace('`', '``')}`"


# -- in a task -------------------------------------------------------------------------------------


def as_json(value: dict[str, Any] | None) -> bytes | None:
    """Fields as JSON for a topic, for example in a dead letter."""
    if value is None:
        return None
    return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> str:
    """Values that JSON does not have: times, decimals, bytes."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
