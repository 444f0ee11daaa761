"""`perkey key`, `perkey record`, `perkey parked release|skip|export`: act on lanes and records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

import typer

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.cli.control import EXIT_NOT_ALL, For, Reach
from perkey.cli.dlq_box import place_of
from perkey.cli.parked import OfGroup, OfPlace, OfReach, Where, found_of, opened
from perkey.cli.parked import app as parked_app
from perkey.dlq.letters import Place
from perkey.errors import ConfigError
from perkey.kafka.group_rider import GroupRider, Kept, Part
from perkey.observe.asking import question
from perkey.observe.kept_records import line_of
from perkey.observe.orders import HERE_FIELDS, RECORDS_MAX
from perkey.where import parse

key_app = typer.Typer(no_args_is_help=True)
record_app = typer.Typer(no_args_is_help=True)

#: the names of a record's place in a line of JSON
PLACE = ("topic", "partition", "offset")

Topic = Annotated[str, typer.Option(help="The topic.")]
Key = Annotated[str | None, typer.Option(help="The key, as text.")]
Here = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Instead of --key: the keys of records that a member holds now, such as "
        '\'error.type == "Timeout" and header.tenant == "acme"\'.',
    ),
]
Places = Annotated[
    list[str], typer.Argument(metavar="TOPIC:PARTITION:OFFSET…", help="The records.")
]


@key_app.callback()
def _key() -> None:
    """Hold, release, retry, skip or export the records of one key.

    Example: perkey key hold --topic orders --key cust-17 --reason "being repaired" --for 2h
    """


@record_app.callback()
def _record() -> None:
    """Retry, skip or export single records.

    Example: perkey record skip orders:2:17 --reason "the order was cancelled"
    """


@key_app.command("hold")
@cluster.spread
def key_hold(
    topic: Topic, reach: Reach, key: Key = None, where: Here = None, for_: For = "1h"
) -> int:
    """Start no record of this key until the hold expires.

    Later records of the key wait, too.

    Example: perkey key hold --topic orders --key cust-17 --reason "being repaired" --for 2h
    """
    order = _of_key("hold", topic, key, where)
    return reach.send(order, for_=for_)


@key_app.command("release")
@cluster.spread
def key_release(topic: Topic, reach: Reach, key: Key = None, where: Here = None) -> int:
    """End the hold of a key; a parked record of it gets new attempts.

    Example: perkey key release --topic orders --where 'error.type == "Timeout"' --reason "repaired"
    """
    order = _of_key("release", topic, key, where)
    return reach.send(order)


@key_app.command("retry")
@cluster.spread
def key_retry(topic: Topic, reach: Reach, key: Key = None, where: Here = None) -> int:
    """Retry the first record of a key now.

    It waits for its next attempt, or is parked.

    Example: perkey key retry --topic orders --key cust-17 --reason "the service is back"
    """
    order = _of_key("retry", topic, key, where)
    return reach.send(order)


@key_app.command("skip")
@cluster.spread
def key_skip(topic: Topic, reach: Reach, key: Key = None, where: Here = None) -> int:
    """Count the first record of a key as done without handling it.

    It waits or is parked. The answer names it, after the commit. With --where: the first one of
    each key.

    Example: perkey key skip --topic orders --key cust-17 --reason "cancelled"
    """
    order = _of_key("skip", topic, key, where)
    if reach.dry_run:
        return reach.send(order)
    answers = reach.looked(order)  # then by record, so that a repeat skips the same record
    rows = [row for one in answers for row in one["rows"]]
    first = [one for one in rows if one["outcome"] == "skipped"]
    if not first:  # nothing is skipped; the answers give the reason
        return reach.send({**order, "dry_run": True})
    code = each("skip", [(topic, one["partition"], one["offset"]) for one in first], reach)
    for one in (one for one in rows if one["outcome"] == "refused"):
        code = EXIT_NOT_ALL
        where = f"{topic}:{one['partition']}:{one['offset']}"
        typer.echo(f"perkey: {where} refused: {one['detail']}", err=True)
    return code


@record_app.command("retry")
@cluster.spread
def record_retry(records: Places, reach: Reach) -> int:
    """Retry records now that wait for their next attempt or are parked.

    Example: perkey record retry orders:2:17 --reason "the service is back"
    """
    return each("retry", places_of(records), reach)


@record_app.command("skip")
@cluster.spread
def record_skip(records: Places, reach: Reach) -> int:
    """Count records as done without handling them.

    The answer comes after the commit.

    Example: perkey record skip orders:2:17 --reason "the order was cancelled"
    """
    return each("skip", places_of(records), reach)


@parked_app.command()
@cluster.spread
def release(reach: OfReach, place: OfPlace = None, where: Where = None) -> int:
    """Release parked and held records with new attempts, in key order.

    The records are read from the group's commits; its running members obey. If a commit has no
    room for all, the members are queried for the ones that they hold.

    Example: perkey parked release orders --group billing --where 'key =~ "cust-"' --reason "fixed"
    """
    with opened(reach.cluster, reach.group) as source:
        found, parts = found_of(source, place, where, warn=False)
    rest, unasked = _rest(parts, place, where)
    if reach.dry_run:  # the members hold everything that a commit lists
        found = [one for one in found if one.topic not in {order["topic"] for order in rest}]
    code = each("release", [one.place for one in found], reach, rest=rest)
    return max(code, _left(unasked, reach))


@parked_app.command()
@cluster.spread
def skip(reach: OfReach, place: OfPlace = None, where: Where = None) -> int:
    """Count parked and held records as done without handling them. Export them first.

    Example: perkey parked skip orders:2 --group billing --reason "cancelled" --dry-run
    """
    if place is None and where is None:
        raise ConfigError("skip takes TOPIC[:PARTITION[:OFFSET]] or --where: it cannot be undone")
    asked, known = question(place, None), set[tuple[str, int, int]]()
    code = 0
    with opened(reach.cluster, reach.group) as source:
        while True:
            found, parts = found_of(source, place, where, warn=False)
            places = [one.place for one in found if one.place not in known]
            short = [one for one in parts if one.problem]
            if asked.offset is not None and short and not places and where is None:
                places = [(str(asked.topic), asked.partition or 0, asked.offset)]  # its owner knows
            if places or not known:
                code = max(code, each("skip", places, reach))
            # What is skipped makes room in the commits, which then name more
            once = asked.offset is not None or reach.dry_run or reach.as_json  # one JSON document
            if once or not short or not places or code:
                break
            known.update(places)
    return max(code, _left(short if asked.offset is None else [], reach))


@dataclass(frozen=True)
class Export(cluster.Cluster):
    """The options of an export: which group, and how the records are printed."""

    group: OfGroup = ""
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why: printed with the count on stderr.")
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print which records, without keys and values.")
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON list, not one object per line.")
    ] = False

    def write(self, lines: Iterator[dict[str, Any]], places: AbstractSet[Place]) -> set[Place]:
        """Print the records, or with --dry-run the places; returns the places that were printed."""
        if self.dry_run:
            lines = (dict(zip(PLACE, place, strict=True)) for place in sorted(places))
        found, written = [], set()
        for line in lines:
            written.add(Place(*(line[name] for name in PLACE)))
            if self.as_json:
                found.append(line)
            else:
                typer.echo(json.dumps(line))
        if self.as_json:
            typer.echo(json.dumps(found))
        if self.reason is not None:
            typer.echo(f"perkey: {counted(len(written), 'record')}: {self.reason}", err=True)
        return written


@parked_app.command()
@cluster.spread
def export(options: Export, place: OfPlace = None, where: Where = None) -> None:
    """Print parked and held records as JSON, with their values.

    One object per line. Text is printed as it is; bytes that are not UTF-8 are in `key_base64` and
    `value_base64`.

    Example: perkey parked export orders --group billing > parked.jsonl
    """
    _export(options, place, where)


@key_app.command("export")
@cluster.spread
def key_export(topic: Topic, options: Export, key: Key = None, where: Where = None) -> None:
    """Print the parked and held records of a key as JSON, with values.

    One object per line.

    Example: perkey key export --topic orders --key cust-17 --group billing
    """
    _one_of(key, where)
    if key is not None:
        where = f"key == {json.dumps(key, ensure_ascii=False)}"
    _export(options, topic, where)


@record_app.command("export")
@cluster.spread
def record_export(records: Places, options: Export) -> None:
    """Print records as JSON, with their values, parked or not.

    One object per line.

    Example: perkey record export orders:2:17 --group billing
    """
    places = set(places_of(records))
    with opened(options, options.group) as source:
        for topic, partition in sorted({place[:2] for place in places}):
            source.check(topic, partition)
        missing = places - options.write(_lines(source, places), places)
    if missing:
        raise ConfigError(f"{':'.join(map(str, min(missing)))} is not in its topic (any more)")


def _export(options: Export, place: str | None, where: str | None) -> None:
    with opened(options, options.group) as source:
        found, _ = found_of(source, place, where)
        known = {Place(*one.place): one for one in found}
        gone = len(known) - len(options.write(_lines(source, set(known), known), set(known)))
    if not known:
        typer.echo(f"perkey: no such record is parked or held in group {options.group}", err=True)
    if gone:
        text = f"perkey: {gone:,} of {len(known):,} records are in their topic no more: not printed"
        typer.echo(text, err=True)


def _lines(
    source: GroupRider, places: AbstractSet[Place], known: Mapping[Place, Kept] | None = None
) -> Iterator[dict[str, Any]]:
    for record in source.records(places):
        at = Place(record.topic, record.partition, record.offset)
        yield line_of(record, (known or {}).get(at))


def _of_key(action: str, topic: str, key: str | None, where: str | None) -> dict[str, Any]:
    _one_of(key, where)
    return {"action": action, "topic": topic, "key": key, "where": where}


def _one_of(key: str | None, where: str | None) -> None:
    if (key is None) == (where is None):
        raise ConfigError("give --key KEY, or --where CONDITION in place of it")


def places_of(words: Sequence[str]) -> list[Place]:
    """`TOPIC:PARTITION:OFFSET`, each."""
    return [place_of(word) for word in words]


def _rest(
    parts: Sequence[Part], place: str | None, where: str | None
) -> tuple[list[dict[str, Any]], list[Part]]:
    """Commands for records that the commits have no room for, and the parts that need other tools.

    Members do not know the error hash.
    """
    asked, parts = question(place, None), [one for one in parts if one.problem]
    terms = ['(state == "parked" or state == "held")']
    if asked.partition is not None:
        terms.append(f"partition == {asked.partition}")
    if asked.offset is not None:
        terms.append(f"offset == {asked.offset}")
    text = " and ".join([*terms, f"({where})"] if where is not None else terms)
    try:
        parse(text, HERE_FIELDS)
    except ConfigError:
        return [], parts
    topics = sorted({one.topic for one in parts})
    return [{"action": "release", "topic": topic, "where": text} for topic in topics], []


def _left(parts: Sequence[Part], reach: OfReach) -> int:
    """Print one line about records that may be missing; returns the exit code."""
    if not parts or reach.dry_run:
        return 0
    one, more = parts[0], len(parts) - 1
    others = f" (and {more:,} more partitions)" if more else ""
    typer.echo(
        f"perkey: {one.topic}[{one.partition}]{others}: {one.problem}: give the command again; "
        f"perkey parked ls {one.topic} --group {reach.group} lists the rest",
        err=True,
    )
    return EXIT_NOT_ALL


def each(
    action: str,
    places: Sequence[tuple[str, int, int]],
    reach: Reach,
    rest: Sequence[dict[str, Any]] = (),
) -> int:
    """One command per topic, in pieces of limited size, then `rest`; the worst exit code."""
    if not places and not rest and not reach.as_json:
        typer.echo("0 records: nothing to do")
    orders = []
    for topic, group in groupby(sorted(set(places)), key=lambda place: place[0]):
        records = [place[1:] for place in group]
        for start in range(0, len(records), RECORDS_MAX):
            some = [list(one) for one in records[start : start + RECORDS_MAX]]
            orders.append({"action": action, "topic": topic, "records": some})
    return reach.send(*orders, rest=rest)
