"""`weft redo`: handle again what is done, in place and in one group only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from weft.cli import cluster
from weft.cli.control import Control, DryRun, Reason, reached
from weft.cli.dlq_box import opened, parse_where
from weft.cli.parked import OfGroup
from weft.cli.records import each, places_of
from weft.cli.sources import TokenFile, Url
from weft.errors import ConfigError

#: of one command: the answer waits for the calls
REDO_MAX = 100


def redo(
    reason: Reason,
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC:PARTITION:OFFSET…", help="The records."),
    ] = None,
    group: OfGroup = "",
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
    dry_run: DryRun = False,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Handle records again that are done, in place: from their topic, and in this group only.

    Each has one call, in the order of its key with what is in flight. The answer has its outcome.

    Example: weft redo orders:2:17 --group billing --reason "the invoice was wrong"
    """
    if bool(records) == (dlq is not None):
        raise ConfigError("redo takes TOPIC:PARTITION:OFFSET… or --dlq TOPIC")
    if where is not None and dlq is None:
        raise ConfigError("--where selects letters: give --dlq TOPIC")
    if dlq is None:
        places = places_of(records or ())
    else:
        places = _of_letters(dlq, where, group, bootstrap_servers, x, config)
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return each("redo", places, reason, dry_run, runs, as_json=as_json, most=REDO_MAX)


def _of_letters(
    topic: str, where: str | None, group: str, bootstrap: str, x: Sequence[str] | None, config: Any
) -> list[tuple[str, int, int]]:
    """Where the records of the group's letters are."""
    condition = None if where is None else parse_where(where)
    with opened(topic, bootstrap, x, config, None) as box:
        meant = [one for one in box.letters if condition is None or condition.matches(one.field)]
    found = [one.source for one in meant if one.group == group and one.source is not None]
    if others := len(meant) - len(found):
        typer.echo(f"weft: {others:,} letters left out: not of group {group}", err=True)
    return [tuple(one) for one in found]  # type: ignore[misc]  # three of them
