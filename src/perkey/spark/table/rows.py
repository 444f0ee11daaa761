"""From handlers' results to rows: Arrow parses JSON values into the table's columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.json as pj

from perkey.errors import ConfigError
from perkey.kafka.ports import OutMessage
from perkey.types import ErrorInfo, Record

REFUSED = "NotARow"
#: columns of every row that come from its record
PLACE = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)


class Row(OutMessage):
    """An output for the table, with its record."""

    record: Record


def row_of(message: OutMessage, record: Record) -> Row:
    """The output as a row."""
    row = Row(*message)
    row.record = record
    return row


def columns_of(fields: pa.Schema) -> pa.Schema:
    """All columns of the table; ConfigError for an invalid one, or a record's name."""
    names = [*PLACE.names, *fields.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"sink: schema= has {', '.join(twice)} twice, or as a column that every table has "
            f"({', '.join(PLACE.names)}): name it otherwise"
        )
    try:
        _read([b"{}"], fields)
    except pa.ArrowException as error:
        raise ConfigError(
            f"sink: schema= cannot be read from JSON: {error}: give arrays or structs instead"
        ) from error
    return pa.schema([*PLACE, *(field.with_nullable(True) for field in fields)])


def values_of(columns: pa.Schema) -> pa.Schema:
    """The columns that are parsed from values."""
    return pa.schema(list(columns)[len(PLACE) :])


def as_rows(rows: Sequence[Row], columns: pa.Schema) -> tuple[pa.Table | None, dict[int, str]]:
    """The rows; or by index the errors of those that are invalid, and no rows."""
    if not rows:
        return columns.empty_table(), {}
    fields = values_of(columns)
    try:
        values = _read([row.value for row in rows], fields)
    except (pa.ArrowException, ValueError, TypeError):
        alone: list[pa.Table] = []
        bad: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                alone.append(_read([row.value], fields))
            except (pa.ArrowException, ValueError, TypeError) as error:
                # The error of a value, without the value.
                text = " ".join(str(error).split())[:300]
                if text.startswith("Failed to convert"):
                    text = text.split(": ")[0].split(", couldn't")[0]
                bad[index] = text
        if bad:
            return None, bad
        values = pa.concat_tables(alone)
    records = [row.record for row in rows]
    places = [
        [r.topic for r in records],
        [r.partition for r in records],
        [r.offset for r in records],
        [row.key for row in rows],
        [None if r.timestamp_ms < 0 else r.timestamp_ms * 1_000 for r in records],
    ]
    own = [pa.array(one, kind) for one, kind in zip(places, PLACE.types, strict=True)]
    return pa.table([*own, *values.columns], schema=columns), {}


def _read(values: Sequence[bytes | None], fields: pa.Schema) -> pa.Table:
    """One row per value; raises if that is not so."""
    if any(value is None for value in values):
        raise ValueError("null is no row: return a JSON object")
    text = b"\n".join(values)  # type: ignore[arg-type]  # as just seen
    found = pj.read_json(
        io.BytesIO(text),
        # One block: a value across two could not be parsed.
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            # Arrow reads dates of JSON as numbers: read as times they may be text.
            explicit_schema=mapped(
                fields, lambda kind: pa.timestamp("s") if pa.types.is_date(kind) else kind
            ),
            newlines_in_values=True,
            unexpected_field_behavior="error",
        ),
    )
    if found.num_rows != len(values):
        raise ValueError("not one JSON object")
    return found.select(fields.names).cast(fields)


def refusal(reason: str, fields: Sequence[str]) -> ErrorInfo:
    """The error of a record whose result is no row."""
    return ErrorInfo(
        REFUSED,
        f"what the handler returned is no row of the table ({reason}): return a dict or model with "
        f"its columns, {', '.join(fields)}",
    )


# -- matching --------------------------------------------------------------------------------------
# Whether a table has the columns that a run writes, and rows in its order.


def mapped(schema: pa.Schema, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Names and types only; each type, also inside lists and structs, mapped by `leaf`."""

    def typed(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.list_(pa.field("element", typed(kind.value_type)))
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(one.name, typed(one.type)) for one in kind])
        return leaf(kind)

    return pa.schema([pa.field(field.name, typed(field.type)) for field in schema])


def plain(kind: pa.DataType) -> pa.DataType:
    """A common type for types that differ only in Arrow's layout."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def check_same(table: str, theirs: pa.Schema, ours: pa.Schema) -> None:
    """Raise ConfigError unless the table has the columns of handlers' values, and no others.

    The record's own columns may be missing.
    """
    found = {field.name: str(field.type) for field in theirs}
    wanted = {field.name: str(field.type) for field in mapped(ours, plain)}
    wrong = {name for name in PLACE.names if name in found and found[name] != wanted[name]}
    less = [f"{n} {k}" for n, k in found.items() if wanted.get(n) != k]
    more = [
        f"{n} {k}"
        for n, k in wanted.items()
        if found.get(n) != k and (n not in PLACE.names or n in wrong)
    ]
    if not less and not more:
        return
    both = [f"it has {', '.join(less)}"] if less else []
    both += [f"this run has {', '.join(more)}"] if more else []
    raise ConfigError(
        f"sink: {table} has another schema: {' and '.join(both)}: give its schema, or another table"
    )


def in_order(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """The rows with only the table's columns, in its order and types."""
    return rows.select(columns.names).cast(columns)
