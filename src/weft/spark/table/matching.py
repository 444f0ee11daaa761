"""Whether a table has the columns that a run writes, and rows in its order."""

from __future__ import annotations

import pyarrow as pa

from weft.errors import ConfigError
from weft.spark.table.rows import PLACE


def plain(schema: pa.Schema) -> pa.Schema:
    """Names and types alone; of types that only differ in how Arrow lays them out, one."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain(one.type)) for one in kind])
    return kind


def check_same(table: str, theirs: pa.Schema, ours: pa.Schema) -> None:
    """Raise ConfigError unless the table has the columns of handlers' values, and no others.

    Those of the record it may lack.
    """
    found, wanted = _named(theirs), _named(plain(ours))
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


def _named(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def in_order(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """The rows with the table's columns alone, in its order and types."""
    return rows.select(columns.names).cast(columns)
