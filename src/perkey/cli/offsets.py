"""`perkey offsets`: decode, show and move a group's committed offsets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perkey.account.shown import counted, runs
from perkey.cli import cluster
from perkey.codec import OffsetMap, UnreadableMap
from perkey.codec import decode as decode_map
from perkey.errors import ConfigError
from perkey.kafka.group_offsets import GroupOffsets, Move, chosen, plan_move

app = typer.Typer(no_args_is_help=True)

#: runs of offsets shown in a table; further ones are only counted
_RUNS_SHOWN = 8
#: the last UNIX millisecond of the year 9999
_LAST_MS = 253_402_300_799_999

_Group = Annotated[
    str, typer.Option("--group", callback=cluster.group_named, help="The consumer group.")
]


@app.callback()
def _offsets() -> None:
    """Decode, show and move committed offsets, including offset maps.

    Example: perkey offsets show --group geofence --bootstrap-servers localhost:9092
    """


@app.command()
def decode(
    metadata: Annotated[str, typer.Argument(help='The metadata text of the commit; may be "".')],
    offset: Annotated[int, typer.Option(min=0, help="The committed offset.")],
    as_json: cluster.Json = False,
) -> None:
    """Decode the metadata of a commit: the offsets not done.

    Example: perkey offsets decode --offset 100 bAAK3AMA --json
    """
    try:
        found = decode_map(offset, metadata)
    except UnreadableMap as reason:
        raise ConfigError(f"this metadata is not an offset map: {reason}") from None
    if as_json:
        typer.echo(json.dumps(_as_json(found)))
        return
    typer.echo(f"encoding:     {found.encoding}")
    typer.echo(f"frontier:     {found.frontier}")
    typer.echo(f"highest seen: {found.highest_seen}")
    typer.echo(f"not done:     {_runs(found.not_done) or 'none'}")
    for one in found.rider.entries:
        # What a commit remembers of a record, as words
        failed = {0: "not tried", 1: "1 failed attempt"}.get(one.attempts)
        until = "" if one.until_s is None else datetime.fromtimestamp(one.until_s, UTC).isoformat()
        words: tuple[str | bool, ...] = (
            failed or f"{one.attempts} failed attempts",
            one.parked and "parked" + (one.exhausted_by and f" ({one.exhausted_by})"),
            one.held and "held",
            until and f"until {until}",
            one.error is not None and f"error {one.error:08x}",
        )
        known = ", ".join(str(word) for word in words if word)
        typer.echo(f"record {one.offset}: {known}")
    if found.rider.problem:
        typer.echo(f"warning: {found.rider.problem}", err=True)


@app.command()
def show(
    group: _Group,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> None:
    """Show a group's commits: frontier, records done beyond it, lag.

    Example: perkey offsets show --group geofence --bootstrap-servers localhost:9092 --json
    """
    with GroupOffsets(bootstrap_servers, group, cluster.properties_of(x, config)) as offsets:
        found = offsets.progress(offsets.partitions())
        if not found and offsets.members() is None:
            raise _no_group(offsets)
    if as_json:
        rows = []
        for one in found:
            error = {"error": one.unreadable} if one.unreadable else {}
            where = {"topic": one.topic, "partition": one.partition}
            rows.append({**where, **_as_json(one.map), "lag": one.lag, **error})
        typer.echo(json.dumps(rows))
        return
    table = Table("topic", "partition", "frontier", "lag", "done beyond", "not done", "map")
    for one in found:
        beyond = one.map.highest_seen - one.map.frontier + 1 - len(one.map.not_done)
        numbers = (one.partition, one.map.frontier, one.lag, beyond)
        waiting = _runs(one.map.not_done)
        why = f"unreadable: {one.unreadable}" if one.unreadable else one.map.encoding
        table.add_row(escape(one.topic), *map(str, numbers), waiting, escape(why))
    Console().print(table)


@app.command("set")
def set_(
    group: _Group,
    topic: Annotated[str, typer.Option(help="The topic.")],
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    partition: Annotated[
        int | None, typer.Option(min=0, help="The partition. Default: all partitions of the topic.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The next offset to process; requires --partition.")
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Process everything that is still in the log.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Skip everything that is in the log now.")
    ] = False,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Process from this time on: UNIX milliseconds or ISO 8601."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply the change. Default: dry run.")] = (
        False
    ),
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> None:
    """Move a group without members to other offsets. Without --yes it is a dry run.

    The new commit has no offset map: records finished beyond the new offset are processed again.

    Example: perkey offsets set --group geofence --bootstrap-servers localhost:9092
    --topic gps.positions --partition 0 --offset 120 --yes
    """
    timestamp_ms = _timestamp_ms(to_timestamp)
    given = (offset is not None, to_earliest, to_latest, timestamp_ms is not None)
    if sum(given) != 1:
        raise ConfigError("give one of --offset, --to-earliest, --to-latest, --to-timestamp")
    if offset is not None and partition is None:
        raise ConfigError("--offset applies to one partition: give --partition too")
    with GroupOffsets(bootstrap_servers, group, cluster.properties_of(x, config)) as offsets:
        count = sum(one[0] == topic for one in offsets.partitions())
        where = chosen(topic, partition, count, offsets.bootstrap)
        # ConfigError if the group has members, as they would undo the change
        members = offsets.members()
        if members:
            raise ConfigError(
                f"group {offsets.group} has {counted(members, 'member')}: stop them first"
            )
        spans = offsets.spans(where)
        known = {(one.topic, one.partition): one for one in offsets.progress(where)}
        at = offsets.offsets_at(where, timestamp_ms) if timestamp_ms is not None else {}
        moves = []
        for one in where:
            span = spans[one]
            after = offset if offset is not None else span.end if to_latest else span.start
            if one in at:  # -1: all records are earlier
                after = at[one] if at[one] >= 0 else span.end
            if not span.start <= after <= span.end:
                raise ConfigError(
                    f"{one[0]}[{one[1]}] holds offsets {span.start} to {span.end}, not {after}"
                )
            moves.append(plan_move(known.get(one), span, one, after))
        if yes:
            offsets.store(moves)
    if members is None:
        verb = "is new" if yes else "does not exist yet: --yes creates it with these commits"
        typer.echo(f"perkey: group {group} {verb}", err=True)
    _print_moves(moves, yes, as_json)


def _no_group(offsets: GroupOffsets) -> ConfigError:
    return ConfigError(f"group {offsets.group} does not exist at {offsets.bootstrap}")


def _print_moves(moves: Sequence[Move], is_done: bool, as_json: bool) -> None:
    """Print the moves that were, or would be, made."""
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "topic": move.topic,
                        "partition": move.partition,
                        "before": move.before,
                        "after": move.after,
                        "repeated": move.repeated,
                        "repeated_beyond": move.repeated_beyond,
                        "skipped": move.skipped,
                        "applied": is_done,
                    }
                    for move in moves
                ]
            )
        )
        return
    for move in moves:
        before = "no commit" if move.before is None else str(move.before)
        typer.echo(
            f"{move.topic}[{move.partition}]: {before} -> {move.after}: "
            f"up to {move.repeated} done records processed again "
            f"({move.repeated_beyond} of them done beyond the frontier), "
            f"up to {move.skipped} unfinished records skipped"
        )
    if not is_done:
        typer.echo("Nothing was changed: add --yes to apply it.", err=True)


def _timestamp_ms(text: str | None) -> int | None:
    """UNIX milliseconds of the option's text; a time without a zone is UTC."""
    if text is None:
        return None
    try:
        if text.isdecimal():
            found = int(text)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            found = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--to-timestamp {text!r:.60} is not a time: write 1767225600000 or "
            "2026-01-01T00:00:00Z"
        ) from None
    if found > _LAST_MS:  # micro- or nanoseconds would skip everything
        raise ConfigError(f"--to-timestamp {text:.60} is past the year 9999: give milliseconds")
    return found


def _as_json(found: OffsetMap) -> dict[str, Any]:
    """The map in the format of `decode --json`; `remembered` only where the commit has a rider."""
    remembered = [one._asdict() for one in found.rider.entries]
    return {
        "encoding": found.encoding,
        "frontier": found.frontier,
        "highest_seen": found.highest_seen,
        "not_done": list(found.not_done),
        **({"remembered": remembered} if remembered else {}),
    }


def _runs(offsets: Sequence[int]) -> str:
    """Offsets as ranges, such as 3-5, 9; ranges beyond _RUNS_SHOWN are only counted."""
    found = runs(offsets)
    more = len(found) - _RUNS_SHOWN
    return ", ".join(found[:_RUNS_SHOWN]) + (f" and {more} more runs" if more > 0 else "")
