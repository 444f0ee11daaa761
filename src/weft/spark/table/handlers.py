"""The app's handlers as a fleet with a table runs them: what they return are rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.errors import ConfigError
from weft.options import HandlerOptions
from weft.spark.table.sink import TABLE


def with_table(app: Any) -> Any:
    """The app as it travels; raises ConfigError for a handler that cannot feed a table."""
    handlers = [_feeding(handler) for handler in app.handlers]
    copy = object.__new__(type(app))
    copy.__setstate__({**app.__getstate__(), "handlers": handlers})
    return copy


def without_table(handlers: Sequence[HandlerOptions]) -> list[HandlerOptions]:
    """The same for who looks whether the topics of outputs are there."""
    return [replace(one, output=None) if one.output == TABLE else one for one in handlers]


def _feeding(handler: HandlerOptions) -> HandlerOptions:
    """One transaction holds offsets and rows: the protocol of exactly_once, whatever was given."""
    where = f"sink: @app.consume on {handler.name}:"
    if handler.delivery == "at_most_once":
        raise ConfigError(f'{where} delivery="at_most_once" cannot feed a table: leave it out')
    if handler.ledger is not None:
        raise ConfigError(f"{where} a handler with a ledger has no outputs: leave sink= out")
    if handler.batch is not None:
        raise ConfigError(
            f"{where} what a batch handler returns belongs to no single record, so its rows could "
            "not be recognised: leave batch= out, or take a topic between"
        )
    if handler.commit.each:
        raise ConfigError(
            f"{where} Commit(each=True) would add to the table for each record: leave it out; "
            "interval_s= of the table says how often"
        )
    return replace(handler, delivery="exactly_once", output=TABLE)
