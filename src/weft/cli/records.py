"""`weft key`, `weft record`, `weft parked release|skip|export`: act on lanes and records."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer

from weft.cli import cluster
from weft.cli.control import Control, DryRun, For, Group, Reached, Reason, reached, send
from weft.cli.dlq_box import place_of
from weft.cli.parked import OfGroup, OfPlace, Where, found_of, opened
from weft.cli.parked import app as parked_app
from weft.cli.sources import TokenFile, Url
from weft.errors import ConfigError
from weft.kafka.group_rider import Kept
from weft.observe.orders import RECORDS_MAX
from weft.types import Record

key_app = typer.Typer(no_args_is_help=True)
record_app = typer.Typer(no_args_is_help=True)

Topic = Annotated[str, typer.Option(help="The topic.")]
Key = Annotated[str, typer.Option(help="The key, as text.")]
Places = Annotated[
    list[str], typer.Argument(metavar="TOPIC:PARTITION:OFFSET…", help="The records.")
]


@key_app.callback()
def _key() -> None:
    """Act on all records of one key: hold them back, let them go, try them now.

    Example: weft key hold --topic orders --key cust-17 --reason "being repaired" --for 2h
    """


@record_app.callback()
def _record() -> None:
    """Act on single records: try them now, or skip them.

    Example: weft record skip orders:2:17 --reason "the order was cancelled"
    """


@key_app.command("hold")
def key_hold(
    topic: Topic,
    key: Key,
    reason: Reason,
    for_: For = "1h",
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Start no record of this key until it expires, also of those that come later.

    Example: weft key hold --topic orders --key cust-17 --reason "being repaired" --for 2h
    """
    order = {"action": "hold", "topic": topic, "key": key}
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return send(order, reason, for_, dry_run, runs, as_json=as_json)


@key_app.command("release")
def key_release(
    topic: Topic,
    key: Key,
    reason: Reason,
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """End the hold of a key; a parked record of it gets new attempts.

    Example: weft key release --topic orders --key cust-17 --reason "repaired"
    """
    order = {"action": "release", "topic": topic, "key": key}
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return send(order, reason, None, dry_run, runs, as_json=as_json)


@key_app.command("retry")
def key_retry(
    topic: Topic,
    key: Key,
    reason: Reason,
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Try the first record of a key now, which waits for its next attempt or is parked.

    Example: weft key retry --topic orders --key cust-17 --reason "the service is back"
    """
    order = {"action": "retry", "topic": topic, "key": key}
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return send(order, reason, None, dry_run, runs, as_json=as_json)


@key_app.command("skip")
def key_skip(
    topic: Topic,
    key: Key,
    reason: Reason,
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Name the first record of a key, for `weft record skip`: no more than one is skipped by key.

    Example: weft key skip --topic orders --key cust-17 --reason "cancelled"
    """
    order = {"action": "skip", "topic": topic, "key": key}
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return send(order, reason, None, dry_run, runs, as_json=as_json)


@record_app.command("retry")
def record_retry(
    records: Places,
    reason: Reason,
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Try records now that wait for their next attempt or are parked.

    Example: weft record retry orders:2:17 --reason "the service is back"
    """
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return each("retry", places_of(records), reason, dry_run, runs, as_json=as_json)


@record_app.command("skip")
def record_skip(
    records: Places,
    reason: Reason,
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Count records as done without handling them; the answer comes when that is committed.

    Example: weft record skip orders:2:17 --reason "the order was cancelled"
    """
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return each("skip", places_of(records), reason, dry_run, runs, as_json=as_json)


@parked_app.command()
def release(
    reason: Reason,
    group: OfGroup = "",
    place: OfPlace = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    where: Where = None,
    dry_run: DryRun = False,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Release parked and held records: they start with new attempts, in key order.

    Which there are is read from the group's commits; its running members obey.

    Example: weft parked release orders --group billing --where 'key =~ "cust-" ' --reason "fixed"
    """
    with opened(bootstrap_servers, x, config, group) as source:
        found, _ = found_of(source, place, where)
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return each("release", [one.place for one in found], reason, dry_run, runs, as_json=as_json)


@parked_app.command()
def skip(
    reason: Reason,
    group: OfGroup = "",
    place: OfPlace = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    where: Where = None,
    dry_run: DryRun = False,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Count parked and held records as done without handling them. Export them first.

    Example: weft parked skip orders:2 --group billing --reason "cancelled" --dry-run
    """
    if place is None and where is None:
        raise ConfigError("skip takes TOPIC[:PARTITION[:OFFSET]] or --where: it cannot be undone")
    with opened(bootstrap_servers, x, config, group) as source:
        found, _ = found_of(source, place, where)
    runs = reached(url, token_file, group, control, bootstrap_servers, x, config)
    return each("skip", [one.place for one in found], reason, dry_run, runs, as_json=as_json)


@parked_app.command()
def export(
    group: OfGroup = "",
    place: OfPlace = None,
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    where: Where = None,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Print parked and held records with their values, one JSON object per line.

    Text is as it is; what is not UTF-8 is in `key_base64` and `value_base64`.

    Example: weft parked export orders --group billing > parked.jsonl
    """
    with opened(bootstrap_servers, x, config, group) as source:
        found, _ = found_of(source, place, where)
        known = {one.place: one for one in found}
        for record in source.records(set(known)):
            at = (record.topic, record.partition, record.offset)
            typer.echo(json.dumps(_line(record, known[at])))


@key_app.command("export")
def key_export(
    topic: Topic,
    key: Key,
    group: OfGroup = "",
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Print the parked and held records of a key with their values, one JSON object per line.

    Example: weft key export --topic orders --key cust-17 --group billing
    """
    where = f"key == {json.dumps(key, ensure_ascii=False)}"
    export(group, topic, bootstrap_servers, where, x, config)


@record_app.command("export")
def record_export(
    records: Places,
    group: OfGroup = "",
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Print records with their values, parked or not, one JSON object per line.

    Example: weft record export orders:2:17 --group billing
    """
    places = set(places_of(records))
    with opened(bootstrap_servers, x, config, group) as source:
        for topic, partition in sorted({place[:2] for place in places}):
            source.check(topic, partition)
        found = {(one.topic, one.partition, one.offset) for one in _echoed(source.records(places))}
    if missing := sorted(places - found):
        raise ConfigError(f"{':'.join(map(str, missing[0]))} is not in its topic (any more)")


def _echoed(records: Iterator[Record[Any]]) -> Iterator[Record[Any]]:
    for record in records:
        typer.echo(json.dumps(_line(record, None)))
        yield record


def _line(record: Record[Any], kept: Kept | None) -> dict[str, Any]:
    line: dict[str, Any] = {
        "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "timestamp_ms": record.timestamp_ms, **_plain("key", record.key),
        **_plain("value", record.value),
        "headers": [{"name": name, **_plain("value", value)} for name, value in record.headers],
    }  # fmt: skip
    if kept is not None:
        line["attempts"], line["held"] = kept.known.attempts, kept.known.held
    return line


def _plain(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


def places_of(words: Sequence[str]) -> list[tuple[str, int, int]]:
    """`TOPIC:PARTITION:OFFSET`, each."""
    return [tuple(place_of(word)) for word in words]  # type: ignore[misc]  # three of them


def each(
    action: str,
    places: Sequence[tuple[str, int, int]],
    reason: str,
    dry_run: bool,
    runs: Reached,
    *,
    as_json: bool,
    most: int = RECORDS_MAX,
) -> int:
    """One command for each topic, in pieces of so many records; the worst exit code."""
    if not places and not as_json:
        typer.echo("0 records: nothing to do")
    code = 0
    for topic, group in groupby(sorted(set(places)), key=lambda place: place[0]):
        records = [place[1:] for place in group]
        for start in range(0, len(records), most):
            some = [list(one) for one in records[start : start + most]]
            order = {"action": action, "topic": topic, "records": some}
            code = max(code, send(order, reason, None, dry_run, runs, as_json=as_json))
    return code
