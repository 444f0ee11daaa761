"""`perkey parked`: the parked and held records of a group, from Kafka alone."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Column

from perkey.cli import cluster
from perkey.cli.control import Reach, Runs
from perkey.cli.dlq_box import connected, cut, shown
from perkey.cli.tables import folded, numbers, print_table, whole
from perkey.errors import ConfigError
from perkey.kafka.group_rider import GroupRider, Kept, Part
from perkey.observe import local
from perkey.observe.asking import question
from perkey.observe.kept_records import KEPT_FIELDS, chosen, hash_of, records_of, state_of
from perkey.types import Record
from perkey.where import parse

KEY_CHARS_MAX = 40
SHOWN_CHARS_MAX = 2_000
app = typer.Typer(no_args_is_help=True)


def _group_of(context: typer.Context, given: str) -> str:
    """The group: --group, or else the one whose members run on this machine."""
    source = context.get_parameter_source("group")
    if source is not None and source.name == "COMMANDLINE":
        cluster.group_named(given)
    if given or context.resilient_parsing:
        return given
    found = Runs(None, None, None).known() if local.runs() else []
    if not found:
        raise ConfigError("give --group NAME: no Perkey app runs on this machine")
    answer = found[0][2]
    return cluster.GroupOfRun.found(context, str(answer["group"]), answer.get("kafka", {}))


OfGroup = Annotated[
    str,
    typer.Option(
        "--group", callback=_group_of, show_default=False, is_eager=True,
        help="The consumer group. Default: the one that runs on this machine, at its brokers.",
    ),
]  # fmt: skip
OfPlace = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC[:PARTITION[:OFFSET]]", help="Only these records."),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help='Such as \'state == "parked" and header.tenant == "acme"\'. Reads the records.',
    ),
]


@dataclass(frozen=True)
class OfReach(Reach):
    """Like Reach, for commands that also read a group's commits: the group is required or found."""

    group: OfGroup = ""

    def _note_unused(self) -> None:
        """The commits are read there."""


@app.callback()
def _parked() -> None:
    """Show and release parked and held records.

    Example: perkey parked ls --group geofence --bootstrap-servers localhost:9092
    """


@app.command()
@cluster.spread
def ls(
    kafka: cluster.Cluster,
    group: OfGroup = "",
    place: OfPlace = None,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Show the first N in the table.")] = 50,
    as_json: cluster.Json = False,
) -> None:
    """List parked and held records: attempts, until when, error hash.

    They are read from the group's commits. Keys are read from the topics, by offset. --json prints
    every record, without keys.

    Example: perkey parked ls orders --group billing --bootstrap-servers localhost:9092
    """
    with opened(kafka, group) as source:
        found, parts = found_of(source, place, where)
        records = {} if as_json else records_of(source, found[:limit])
    if as_json:
        typer.echo(json.dumps([_row(one) for one in found]))
        return
    if found:
        kept = found[:limit]
        columns = [
            *folded("record"),  # the longest, and its parts are known
            *whole("state", "until"), *numbers("attempts"), *whole("by", "error"),
            Column("key", overflow="fold", min_width=len("deleted")),
        ]  # fmt: skip
        rows = []
        for one in kept:
            known, record = one.known, records.get(one.place)
            key = "deleted" if record is None else shown(record.key, KEY_CHARS_MAX)
            cells = (
                f"{one.topic}:{one.partition}:{known.offset}", state_of(known),
                "-" if known.until_s is None else _time(known.until_s), f"{known.attempts:,}",
                known.exhausted_by or "-", hash_of(known) or "-", key,
            )  # fmt: skip
            rows.append(cells)
        print_table(columns, rows, edge=False)
    if len(found) > limit:
        typer.echo(f"and {len(found) - limit:,} more: --limit {len(found)}, or --json")
    typer.echo(_counted(found, parts, group))


@app.command()
@cluster.spread
def show(
    kafka: cluster.Cluster,
    group: OfGroup = "",
    place: OfPlace = None,
    values: Annotated[
        bool, typer.Option("--values", help="Show the value and the headers' values, escaped, cut.")
    ] = False,
    as_json: cluster.Json = False,
) -> None:
    """Show parked and held records in full, with key and headers.

    --json prints a list, and one object for TOPIC:PARTITION:OFFSET.

    Example: perkey parked show orders:2:17 --group billing --values
    """
    offset = question(place, None).offset
    with opened(kafka, group) as source:
        found, parts = found_of(source, place, None, warn=offset is None)
        if offset is not None and not found:
            raise ConfigError(_why_not(parts[0], offset, group))
        records = records_of(source, found)
    rows = [_whole(one, records.get(one.place), values=values) for one in found]
    if as_json:
        typer.echo(json.dumps(rows if offset is None else rows[0]))
        return
    for number, row in enumerate(rows):
        if number:
            typer.echo()
        for name, value in row.items():
            if name not in ("headers", "value"):
                text = _time(value) if name == "held_until" and value is not None else str(value)
                cell = "-" if value is None else cut(text, SHOWN_CHARS_MAX)
                typer.echo(f"{name + ':':<14}{cell}")
        for name, text in row.get("headers", ()):
            typer.echo(f"  {name} = {text}")
        if "value" in row:
            typer.echo(f"value:        {row['value']}")
        if not row["in_log"]:
            typer.echo("warning: retention or compaction deleted the record: skip it", err=True)
    if offset is None:
        typer.echo(_counted(found, parts, group))


def _whole(one: Kept, record: Record[Any] | None, *, values: bool) -> dict[str, Any]:
    """All that is known of a record; `record`: as its topic has it."""
    row = _row(one) | {
        "state": state_of(one.known),
        "exhausted_by": one.known.exhausted_by or None,
        "in_log": record is not None,
    }
    if record is not None:
        row["key"] = None if record.key is None else shown(record.key, SHOWN_CHARS_MAX)
        row["time"] = _time(record.timestamp_ms / 1e3) if record.timestamp_ms >= 0 else None
        row["headers"] = [
            [cut(name, SHOWN_CHARS_MAX), shown(value, SHOWN_CHARS_MAX) if values else "…"]
            for name, value in record.headers
        ]
        if values:
            row["value"] = shown(record.value, SHOWN_CHARS_MAX)
    return row


@contextmanager
def opened(kafka: cluster.Cluster, group: str) -> Iterator[GroupRider]:
    """The commits of a group, read without joining it."""
    connection = connected(kafka, group)
    with cluster.answering(), GroupRider(connection, group) as source:
        yield source


def found_of(
    source: GroupRider, place: str | None, where: str | None, *, warn: bool = True
) -> tuple[list[Kept], list[Part]]:
    """The selected parked and held records, and the commits; warns if some may be missing."""
    asked = question(place, None)
    try:
        condition = None if where is None else parse(where, KEPT_FIELDS)
    except ConfigError as error:
        raise ConfigError(f"--where: {error}") from None
    parts = source.read(asked.topic, asked.partition)
    found = chosen(source, parts, asked.offset, condition)
    if warn:
        for part in parts:
            if part.problem:
                line = f"warning: {part.topic}[{part.partition}]: {part.problem}"
                typer.echo(f"perkey: {line}", err=True)
    return found, parts


def _row(one: Kept) -> dict[str, Any]:
    """The JSON format of the contract."""
    return {
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.known.offset,
        "attempts": one.known.attempts,
        "error_hash": hash_of(one.known),
        "held_until": one.known.until_s,
    }


def _counted(found: Sequence[Kept], parts: Sequence[Part], group: str) -> str:
    held = sum(one.known.held for one in found)
    others = [one.known for part in parts for one in part.kept]
    others = [known for known in others if not (known.parked or known.held)]
    ended = sum(bool(known.exhausted_by) for known in others)
    text = f"{len(found) - held:,} parked, {held:,} held in group {group}"
    if failing := len(others) - ended:
        text += f"; {failing:,} more failed and will be tried again"
    return f"{text}; {ended:,} more are being given up" if ended else text


def _why_not(part: Part, offset: int, group: str) -> str:
    """Why a record is not among the remembered ones."""
    where = f"{part.topic}:{part.partition}:{offset}"
    if part.problem:
        return f"{where}: not known: {part.problem}"
    if offset < part.frontier or (offset <= part.highest_seen and offset not in part.not_done):
        return f"{where} is done in group {group}"
    return (
        f"{where} is neither parked nor held in group {group}: perkey parked ls --group {group} "
        "lists those that are"
    )


def _time(when_s: float) -> str:
    """UTC, to the second."""
    try:
        return dt.datetime.fromtimestamp(int(when_s), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(when_s)
