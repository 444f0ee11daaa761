"""The table as the fleet gets it, once the driver has found it in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weft.errors import ConfigError
from weft.spark.processing.models import columns_of_model, is_model
from weft.spark.table.committer import Committer
from weft.spark.table.line import TablePlan
from weft.spark.table.rows import PLACE, columns_of
from weft.spark.table.sink import TableSink

if TYPE_CHECKING:
    from weft.spark.fleet.roster import Receivers
    from weft.spark.table.store import Store


def served(
    sink: TableSink | None, group: str, spark: Any, receivers: Receivers
) -> tuple[TablePlan | None, Committer | None]:
    """The same, with its one writer started; None where results go to topics."""
    if sink is None:
        return None, None
    plan, store = planned(sink, group, spark)
    committer = Committer(store, sink.interval_s, lambda reason: receivers.fatal(1, reason, None))
    committer.start()
    receivers.table = committer.take
    return plan, committer


def planned(sink: TableSink, group: str, spark: Any) -> tuple[TablePlan, Store]:
    """What members must know, and the open table; raises ConfigError in one line."""
    columns = None if sink.schema is None else columns_of(_fields(sink.schema, spark))
    store = sink.opened(columns, group)
    if columns is None:
        columns = columns_of(
            pa.schema([field for field in store.columns if field.name not in PLACE.names])
        )
    return TablePlan(columns.serialize().to_pybytes(), sink.interval_s), store


def _fields(schema: Any, spark: Any) -> pa.Schema:
    """The user's columns as Arrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if is_model(schema):
        schema = columns_of_model(schema)
    try:
        struct = spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema
        return to_arrow_schema(struct, timezone="UTC")
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        raise ConfigError(f"sink: schema={schema!r:.80} cannot be read: {reason:.200}") from error
