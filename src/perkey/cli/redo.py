"""`perkey redo`: handle finished records again, in place and in one group only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from perkey.cli import cluster
from perkey.cli.control import Reason
from perkey.cli.dlq_box import opened, parse_where
from perkey.cli.parked import OfReach
from perkey.cli.records import each, places_of
from perkey.errors import ConfigError

#: most records of one command: its answer waits for their calls
REDO_MAX = 100


@dataclass(frozen=True)
class RedoReach(OfReach):
    """Like OfReach; the reason may be left out."""

    reason: Reason = "none given"


@cluster.spread
def redo(
    reach: RedoReach,
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC:PARTITION:OFFSET…", help="The records."),
    ] = None,
    dlq: Annotated[
        str | None,
        typer.Option(
            "--dlq", metavar="TOPIC", help="The records of this group's letters in that topic."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="With --dlq: only letters like 'error.type == \"Timeout\"'."
        ),
    ] = None,
) -> int:
    """Handle finished records again, in this group only.

    They are read from their topic. Each is called once, in key order with the records in flight.
    The answer has its outcome.

    Example: perkey redo orders:2:17 --group billing --reason "the invoice was wrong"
    """
    if bool(records) == (dlq is not None):
        raise ConfigError("redo takes TOPIC:PARTITION:OFFSET… or --dlq TOPIC")
    if where is not None and dlq is None:
        raise ConfigError("--where selects letters: give --dlq TOPIC")
    if dlq is None:
        return each("redo", places_of(records or ()), reach, REDO_MAX)
    condition = None if where is None else parse_where(where)
    with opened(dlq, reach.cluster, None) as box:
        meant = [one for one in box.letters if condition is None or condition.matches(one.field)]
    places = [one.source for one in meant if one.group == reach.group and one.source is not None]
    if others := len(meant) - len(places):
        typer.echo(f"perkey: {others:,} letters left out: not of group {reach.group}", err=True)
    return each("redo", places, reach, REDO_MAX)
