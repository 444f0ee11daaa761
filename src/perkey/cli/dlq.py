"""`perkey dlq`: the letters in a dead-letter topic, written by Perkey or by other programs."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any, Literal

import typer

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.cli.dlq_box import (
    Group,
    Where,
    connected,
    cut,
    opened,
    parse_where,
    shown,
)
from perkey.cli.dlq_replay import replay
from perkey.cli.tables import folded, numbers, print_table, whole
from perkey.cli.topics import check_topic
from perkey.dlq.letters import Letter, Place
from perkey.dlq.not_back import NotBack
from perkey.dlq.replay import Box, group_of
from perkey.errors import ConfigError
from perkey.observe.asking import question
from perkey.types import Record

VALUE_CHARS_MAX = 200
MINUTE_CHARS = len("2026-03-01T10:00")
SHOWN_CHARS_MAX = 2_000
KEY_CHARS_MAX = 40
LIMIT = 20

By = Literal["type", "topic", "group", "handler", "key", "day", "hour"]

app = typer.Typer(no_args_is_help=True)
app.command("replay")(replay)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]


@app.callback()
def _dlq() -> None:
    """Show dead letters and replay them. Formats: Perkey, Spring, Kafka Connect and KIP-1191.

    Example: perkey dlq stats orders.dlq
    """


@app.command()
@cluster.spread
def ls(
    topic: Topic,
    kafka: cluster.Cluster,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Only the newest N.")] = LIMIT,
    values: Annotated[bool, typer.Option("--values", help="Show values, escaped, cut.")] = False,
    group: Group = None,
    as_json: cluster.Json = False,
) -> None:
    """List dead letters, newest first.

    Shows time, source, key, error, and whether each was replayed.

    Example: perkey dlq ls orders.dlq --where 'error.type == "Timeout" and attempts >= 5'
    """
    condition = None if where is None else parse_where(where)
    with opened(topic, kafka, group) as box:
        found = [one for one in box.letters if condition is None or condition.matches(one.field)]
        newest = _newest(found, limit)
        held = _values(box, newest) if values else {}
        rows = [_row(box, one, held.get(one.at)) for one in newest]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    lines = list[tuple[str, ...]]()
    for one, row in zip(newest, rows, strict=True):
        error = ": ".join(filter(None, (one.error_type, one.error_message))) or "?"
        cells = (
            f"{one.at.partition}:{one.at.offset}", _time(one.time_ms),
            shown(one.key, KEY_CHARS_MAX),
            cut(error, VALUE_CHARS_MAX),
            "-" if one.attempts is None else str(one.attempts), str(one.replays),
            "yes" if row["brought_back"] else "",
        )  # fmt: skip
        lines.append(cells)
        if values and one.at in held:
            lines.append(("", "", "", shown(held[one.at].value, VALUE_CHARS_MAX)))
    print_table([*whole("letter", "time"), "key", "error", "attempts", "replays", "back"], lines)
    typer.echo(f"{counted(len(found), 'letter')} of {len(box.letters):,} in {topic}")


@app.command()
@cluster.spread
def show(
    letter: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION[:OFFSET]]", help="The letter, or which.")
    ],
    kafka: cluster.Cluster,
    limit: Annotated[int, typer.Option(min=1, help="Only the newest N.")] = LIMIT,
    values: Annotated[
        bool, typer.Option("--values", help="Show the value and the headers' values, escaped, cut.")
    ] = False,
    group: Group = None,
    as_json: cluster.Json = False,
) -> None:
    """Show dead letters in full: source, error and headers.

    --json prints a list, and one object for TOPIC:PARTITION:OFFSET.

    Example: perkey dlq show orders.dlq:2:17 --values
    """
    asked = question(letter, None)
    topic = str(asked.topic)
    with opened(topic, kafka, group) as box:
        meant = [one for one in box.letters if asked.partition in (None, one.at.partition)]
        if asked.offset is not None:
            meant = [one for one in meant if one.at.offset == asked.offset]
            if not meant:
                raise ConfigError(f"there is no letter {letter}: perkey dlq ls {topic} lists them")
        newest = _newest(meant, limit)
        held = _values(box, newest) if values else {}
        rows = [_row(box, one, held.get(one.at)) for one in newest]
    for one, row in zip(newest, rows, strict=True):
        own = {name for name, _ in one.own_headers}  # not those that were added with the letter
        row["headers"] = [
            [name, shown(value, SHOWN_CHARS_MAX) if values or name not in own else "…"]
            for name, value in one.headers
        ]
    if as_json:
        typer.echo(json.dumps(rows if asked.offset is None else rows[0]))
        return
    for number, (one, row) in enumerate(zip(newest, rows, strict=True)):
        if number:
            typer.echo()
        for name, value in row.items():
            if name not in ("headers", "value"):
                typer.echo(f"{name + ':':<15}{cut(str(value), SHOWN_CHARS_MAX)}")
        for name, text in row["headers"]:
            typer.echo(f"  {cut(name, KEY_CHARS_MAX * 2)} = {text}")
        if (record := held.get(one.at)) is not None:
            typer.echo(f"value ({len(record.value or b''):,} bytes):")
            typer.echo(shown(record.value, SHOWN_CHARS_MAX))
    if asked.offset is None:
        typer.echo(f"{len(rows):,} of {counted(len(meant), 'letter')} in {letter}")


def _newest(letters: Sequence[Letter], limit: int) -> list[Letter]:
    return sorted(letters, key=lambda one: (one.time_ms, one.at), reverse=True)[:limit]


@app.command()
@cluster.spread
def stats(
    topic: Topic,
    kafka: cluster.Cluster,
    by: Annotated[By, typer.Option(help="What to count by.")] = "type",
    where: Where = None,
    group: Group = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the number not replayed, by type: /metrics (Prometheus) and /letters.",
        ),
    ] = None,
    as_json: cluster.Json = False,
) -> None:
    """Count dead letters by error type or another field.

    Counts those that are not replayed yet, too.

    Example: perkey dlq stats orders.dlq --by hour --where 'error.type == "Timeout"'
    """
    condition = None if where is None else parse_where(where)
    if listen is not None:
        if by != "type" or as_json:
            raise ConfigError("--listen counts by type and prints nothing: leave --by, --json out")
        from perkey.observe.lag_server import MEASURED_EVERY_S, LettersBoard, serve

        check_topic(topic)
        reader = group or group_of(topic, None)
        with cluster.answering(), closing(Box(connected(kafka, reader), topic)) as box:
            not_back = NotBack(box, reader, condition)
            board = LettersBoard(not_back.measure, topic, MEASURED_EVERY_S)
            serve(board, listen, lambda place: typer.echo(f"perkey: {place}", err=True))
        return
    with opened(topic, kafka, group) as box:
        if box.letters and all(one.dialect is None for one in box.letters):
            raise ConfigError(
                f"{topic} is no dead-letter topic: none of its {len(box.letters):,} records has "
                "the headers of a dead letter"
            )
        found = [one for one in box.letters if condition is None or condition.matches(one.field)]
        rows = _counts(box, found, by)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    columns = numbers("letters", "not back", "again", "first (UTC)", "last (UTC)")
    print_table([*folded(by), *columns], [
        (
            cut(str(row[by]), VALUE_CHARS_MAX),
            *(f"{row[name]:,}" for name in ("letters", "not_back", "failed_again")),
            *(_time(row[name])[:MINUTE_CHARS] for name in ("first_ms", "last_ms")),
        )
        for row in rows
    ], edge=False)  # fmt: skip
    left = sum(row["not_back"] for row in rows)
    typer.echo(f"{counted(len(found), 'letter')} in {topic}, {left:,} not brought back")


def _counts(box: Box, letters: Sequence[Letter], by: By) -> list[dict[str, Any]]:
    groups: dict[str, list[Letter]] = {}
    for one in letters:
        if by in ("day", "hour"):
            name: object = _time(one.time_ms)[: 10 if by == "day" else 13]
        else:
            name = one.field("error.type" if by == "type" else by)
        groups.setdefault("?" if name is None else str(name), []).append(one)
    counts = Counter({name: len(some) for name, some in groups.items()})
    return [
        {
            by: name,
            "letters": count,
            "not_back": sum(not box.is_brought(one) for one in groups[name]),
            "failed_again": sum(one.replays > 0 for one in groups[name]),
            "first_ms": min(one.time_ms for one in groups[name]),
            "last_ms": max(one.time_ms for one in groups[name]),
        }
        for name, count in counts.most_common()
    ]


def _values(box: Box, letters: Sequence[Letter]) -> dict[Place, Record[Any]]:
    places = {one.at for one in letters}
    return {Place(one.topic, one.partition, one.offset): one for one in box.fetch(places)}


def _row(box: Box, one: Letter, record: Record[Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "letter": str(one.at),
        "source": None if one.source is None else str(one.source),
        "time": _time(one.time_ms),
        "key": None if one.key is None else shown(one.key, SHOWN_CHARS_MAX),
        "error_type": one.error_type,
        "error_message": one.error_message,
        "group": one.group,
        "handler": one.handler,
        "attempts": one.attempts,
        "replays": one.replays,
        "brought_back": box.is_brought(one),
        "written_by": None if one.dialect is None else one.dialect.name,
    }
    if record is not None:
        row["value"] = None if record.value is None else shown(record.value, SHOWN_CHARS_MAX)
    return row


def _time(time_ms: int) -> str:
    """UTC, to the second."""
    if time_ms < 0:
        return "?"
    try:
        return dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
