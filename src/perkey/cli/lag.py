"""`perkey lag`: the true lag of a group, read from Kafka alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.errors import ConfigError
from perkey.kafka.group_lag import GroupLag, PartitionLag

WATCH_EVERY_S = 2.0
ROWS_MAX = 40
WIDTH_MAX = 10_000


def lag(
    group: Annotated[
        str, typer.Option("--group", callback=cluster.group_named, help="The consumer group.")
    ],
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every 2 s.")] = False,
    as_json: cluster.Json = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve /metrics (Prometheus) and /lag (KEDA) instead."
        ),
    ] = None,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Show the true lag of a group: the records that remain.

    Those finished beyond the commit are not counted. Works for any group with offset maps, also of
    the Java Parallel Consumer, without joining it.

    Example: perkey lag --group geofence --bootstrap-servers localhost:9092 --json
    """
    if listen is not None and (watch or as_json):
        raise ConfigError("--listen serves metrics: omit --watch and --json, which print the lag")
    with GroupLag(bootstrap_servers, group, cluster.properties_of(x, config)) as measured:
        if listen is not None:
            from perkey.observe.lag_server import MEASURED_EVERY_S, LagBoard, serve

            board = LagBoard(measured.measure, group, MEASURED_EVERY_S)
            serve(board, listen, lambda where: typer.echo(f"perkey: {where}", err=True))
        elif watch:
            _watch(measured, as_json=as_json)
        else:
            rows = _measured(measured)
            if as_json:
                typer.echo(json.dumps(lag_json(group, rows)))
            else:
                Console().print(LagTable(group, rows))


def _measured(measured: GroupLag) -> list[PartitionLag]:
    """One measurement; ConfigError for a group that has committed nothing."""
    rows = measured.measure()
    if not rows:
        group, bootstrap = measured.group, measured.bootstrap
        if measured.members() is None:
            raise ConfigError(f"group {group} does not exist at {bootstrap}")
        raise ConfigError(f"group {group} has committed nothing yet at {bootstrap}")
    return rows


def _watch(measured: GroupLag, *, as_json: bool) -> None:
    """Until Ctrl-C; JSON is one line per refresh."""
    rows = _measured(measured)
    if as_json:
        while True:
            typer.echo(json.dumps(lag_json(measured.group, rows)))
            time.sleep(WATCH_EVERY_S)
            rows = measured.measure()
    with Live(LagTable(measured.group, rows), auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(WATCH_EVERY_S)
            live.update(LagTable(measured.group, measured.measure()), refresh=True)


def lag_json(group: str, rows: Sequence[PartitionLag]) -> dict[str, Any]:
    """The JSON format of the contract."""
    remaining = sum(row.remaining or 0 for row in rows)
    return {"group": group, "remaining": remaining, "partitions": [row.row() for row in rows]}


class LagTable:
    """The partitions with the highest lag first; those beyond ROWS_MAX are only counted.

    Text is never truncated: on a narrow screen, the topic and its problem get a separate line
    above the numbers.
    """

    def __init__(self, group: str, rows: Sequence[PartitionLag]) -> None:
        ordered = sorted(rows, key=lambda row: (row.problem is None, -(row.remaining or 0)))
        self._rows, self._left_out = ordered[:ROWS_MAX], ordered[ROWS_MAX:]
        total = sum(row.remaining or 0 for row in rows)
        self._title = f"group {group}: {total:,} remaining in {counted(len(rows), 'partition')}"
        parked, held = (sum(getattr(row, name) for row in rows) for name in ("parked", "held"))
        if parked or held:
            self._title += f"; {parked:,} parked, {held:,} held:\nperkey parked ls --group {group}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The wide table if it fits, else the narrow one."""
        table = _table(self._rows, Column("topic"), Column("problem"))
        yield Text(self._title)
        wished = Measurement.get(console, options.update(width=WIDTH_MAX), table).maximum
        if wished <= options.max_width:
            yield table
        else:
            alike: dict[tuple[str, str | None], list[PartitionLag]] = {}
            for row in self._rows:
                alike.setdefault((row.topic, row.problem), []).append(row)
            for (topic, problem), rows in alike.items():
                heading = f"{topic}: {problem}" if problem else topic
                yield Text(heading, overflow="fold")
                yield _table(rows)
        if self._left_out:
            yield Text(f"and {len(self._left_out):,} more partitions: see --json")


def _table(rows: Sequence[PartitionLag], *named: Column) -> Table:
    """The numbers, between the columns for topic and problem if those are given."""
    names = "partition", "end", "committed", "done beyond", "remaining", "oldest", "age", "map"
    numbers = [Column(name, justify="right", overflow="fold") for name in names]
    table = Table(*named[:1], *numbers, *named[1:], box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        age = None if row.oldest_age_s is None else f"{row.oldest_age_s:,.0f} s"
        cells = (
            row.partition, row.end, row.committed, row.done_beyond, row.remaining,
            row.oldest_not_done,
        )  # fmt: skip
        shown = ["-" if cell is None else f"{cell:,}" for cell in cells]
        shown += [age or "-", f"{row.map_chars:,}"]
        if named:
            shown = [escape(row.topic), *shown, escape(row.problem or "")]
        table.add_row(*shown)
    return table
