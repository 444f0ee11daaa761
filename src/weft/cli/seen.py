"""`weft status` and `weft why`: what runs, how far it is, and what holds it up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from weft.account.account import PLACES
from weft.account.snapshot import total
from weft.cli import cluster
from weft.cli.sources import (
    REPORTS,
    Group,
    Reports,
    Servers,
    Shown,
    TokenFile,
    Url,
    Where,
)
from weft.errors import WeftError
from weft.observe.asking import question
from weft.observe.overview import HELD, most_left
from weft.observe.sentences import seconds, shown

WATCH_EVERY_S = 2.0
PARTITIONS_MAX = 40
BLOCKERS_MAX = 5
SENTENCES_MAX = 100

Watch = Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")]
Row = Mapping[str, Any]


def status(
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    watch: Watch = False,
    as_json: cluster.Json = False,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Show the runs on this machine: partitions, rates, what is left, what holds up most.

    Every run of yours that `weft run` started is found by itself.

    Example: weft status --watch
    """
    properties = cluster.properties_of(x, config)
    where_from = Where(url, token_file, group, bootstrap_servers, reports, properties)
    _repeat(
        watch,
        lambda: _asked(where_from.runs(), {"ask": "snapshot"}),
        _json if as_json else _status_shown,
    )


def why(
    where: Annotated[
        str | None, typer.Argument(metavar="[TOPIC[:PARTITION[:OFFSET]]]", help="What is stuck.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Records of this key.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    watch: Watch = False,
    as_json: cluster.Json = False,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Say in one sentence what holds up a commit, where a record is, and what to do next.

    Without an argument: why nothing starts, and the three worst records.

    Example: weft why gps.positions:3
    """
    question(where, key)  # a bad one is refused before anybody is asked
    asked = {"ask": "why", "where": where, "key": key}
    properties = cluster.properties_of(x, config)
    where_from = Where(url, token_file, group, bootstrap_servers, reports, properties)
    _repeat(
        watch,
        lambda: _asked(where_from.runs(), asked),
        _json if as_json else _why_shown,
    )


Answers = list[tuple[str, dict[str, Any]]]


def _asked(runs: Sequence[Shown], asked: Row) -> Answers:
    """The answers of all; what goes wrong with one alone is its answer."""
    if len(runs) == 1:
        return [(runs[0].name, runs[0].ask(asked))]
    answers = []
    for one in runs:
        try:
            answers.append((one.name, one.ask(asked)))
        except WeftError as error:
            answers.append((one.name, {"error": str(error)}))
    return answers


def _repeat(watch: bool, ask: Callable[[], Answers], show: Callable[[Answers], Any]) -> None:
    shown = show(ask())
    if not watch:
        _print(shown)
    elif isinstance(shown, str):
        while True:
            typer.echo(shown)
            time.sleep(WATCH_EVERY_S)
            shown = show(ask())
    else:
        with Live(shown, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_EVERY_S)
                live.update(show(ask()), refresh=True)


def _print(shown: str | RenderableType) -> None:
    if isinstance(shown, str):
        typer.echo(shown)
    else:
        Console(soft_wrap=not Console().is_terminal).print(shown)


def _json(answers: Answers) -> str:
    """One object a run, in a list: the same shape for one run as for many."""
    return json.dumps([answer for _, answer in answers])


def _why_shown(answers: Answers) -> Stack:
    lines: list[RenderableType] = []
    several, answers = len(answers) > 1, _told_once(answers)
    for name, told in answers:
        if several:
            lines.append(Text(name, style="bold"))
        if told.get("silent_s"):
            lines.append(Text(f"silent for {seconds(told['silent_s'])}: killed, or cut off"))
        if "error" in told:
            lines.append(Text(told["error"], style="red"))
        sentences = _said(told)
        for one in sentences[:SENTENCES_MAX]:
            lines.append(Text(one["text"]))
            if one["next"]:
                lines.append(Text(f"  Next: {one['next']}", style="cyan"))
        if (more := len(sentences) - SENTENCES_MAX) > 0:
            lines.append(Text(f"and {more:,} more: name a partition, or see --json"))
        for row in told.get("found", ()):
            lines += [
                Text(f"  {_at(event['at'])} {event['what']}") for event in row.get("story", ())
            ]
        if not told.get("sentences") and "error" not in told:
            lines.append(Text("No such record is held here: it is done, or of another member."))
    return Stack(*lines)


#: durations differ by the moment at which each run was asked
_DURATION = re.compile(r"[\d.,]+ (ms|s|min|h|d)\b")
_OF_RECORDS = {place.name for place in PLACES} | {"unfetched"}


def _told_once(answers: Answers) -> Answers:
    """Runs of one group know of each other: what one has said the others need not say again.

    Nor that a record is elsewhere, or nothing, where another has told where it is.
    """
    known = any(one["about"] in _OF_RECORDS for _, told in answers for one in _said(told))
    said: set[str] = set()
    kept = []
    for name, told in answers:
        fresh = []
        for one in _said(told):
            text = _DURATION.sub("", one["text"])
            of_one = one["about"] in _OF_RECORDS or text.startswith("Member ")
            if not of_one or text not in said:
                fresh.append(one)
            said.add(text)
        if known:
            fresh = [one for one in fresh if one["about"] != "elsewhere"]
        if fresh or not known or "error" in told:
            kept.append((name, {**told, "sentences": fresh}))
    return kept


def _said(told: Row) -> Sequence[Row]:
    sentences: Sequence[Row] = told.get("sentences", ())
    return sentences


def _at(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def _status_shown(answers: Answers) -> Stack:
    heard = {
        _where(row)
        for _, shot in answers
        if "error" not in shot and not shot.get("silent_s")
        for row in shot["partitions"]
    }
    return Stack(*(part for name, shot in answers for part in _run_shown(name, shot, heard)))


def _where(row: Row) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _silent_shown(name: str, shot: Row, heard: set[tuple[str, int]]) -> list[RenderableType]:
    """A member that says nothing any more: of what it said last only what nobody else has said."""
    app = shot.get("app", {})
    head = f"{app.get('group', name)}  {app.get('member', '')}  SILENT: killed, or cut off"
    head += f"; last heard {seconds(shot['silent_s'])} ago"
    rows = [row for row in shot["partitions"] if _where(row) not in heard]
    if not rows:
        return [Text(f"{head}; others have its partitions", style="bright_black")]
    left = total(rows, "remaining")
    head += f" with {shown(left)} remaining in {len(rows):,} partitions that nobody else reports"
    gone = [{**row, **dict.fromkeys(HELD)} for row in rows]
    return [Text(head, style="bold"), _partitions(gone)]


def _run_shown(name: str, shot: Row, heard: set[tuple[str, int]]) -> list[RenderableType]:
    """One run: a line, its handlers, its partitions with most left, its worst records."""
    if "error" in shot:
        return [Text(f"{name}: {shot['error']}", style="red")]
    if shot.get("silent_s"):
        return _silent_shown(name, shot, heard)
    app = shot.get("app", {})
    left = total(shot["partitions"], "remaining")
    head = f"{app.get('group', name)}  {app.get('member', '')}  {shot['state']}"
    head += f"  {shown(left)} remaining in {len(shot['partitions']):,} partitions"
    parts: list[RenderableType] = [Text(head, style="bold"), _handlers(shot["handlers"])]
    parts.append(_partitions(shot["partitions"]))
    halts = [halt for halt in shot.get("halts", ()) if halt["cause"] not in ("slots", "buffers")]
    parts += [Text(f"halted: {halt['cause']}", style="yellow") for halt in halts]
    for row in [row for row in shot.get("blockers", ()) if _weighs(row)][:BLOCKERS_MAX]:
        key = "" if row["key"] is None else f" key {row['key']}"
        waits = "" if row["for_s"] is None else f" for {seconds(row['for_s'])}"
        text = f"{row['topic']}[{row['partition']}]@{row['offset']}{key}: {row['place']}{waits}, "
        text += f"{row['waiting_behind']:,} behind it, {row['done_beyond']:,} done beyond it"
        parts.append(Text(text))
    return parts


def _weighs(row: Row) -> bool:
    return bool(row["waiting_behind"] or row["done_beyond"])


def _handlers(rows: Mapping[str, Row]) -> Table:
    table = Table("handler", "rate/s", "p50 ms", "p99 ms", "in flight", "done", "failed attempts")
    for name, row in rows.items():
        latency = row.get("latency_ms", {})
        cells = [
            f"{row.get('rate_per_s', 0):,.1f}",
            _ms(latency.get("p50")),
            _ms(latency.get("p99")),
        ]
        cells.append(f"{row['in_flight']}/{row['concurrency']}")
        table.add_row(escape(name), *cells, f"{row['done']:,}", f"{row['failures']:,}")
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _partitions(rows: Sequence[Row]) -> Table:
    """Those with most left first; what does not fit is counted."""
    table = Table("topic", "p", "committed", "remaining", "lag", "buffered", "retry", "park", "age")
    ordered = sorted(rows, key=most_left)
    for row in ordered[:PARTITIONS_MAX]:
        age = "-" if row["oldest_age_s"] is None else seconds(row["oldest_age_s"])
        numbers = ("committed", "remaining", "lag", "buffered", "retrying", "parked")
        cells = ["-" if row[name] is None else f"{row[name]:,}" for name in numbers]
        table.add_row(escape(row["topic"]), str(row["partition"]), *cells, age)
    if len(ordered) > PARTITIONS_MAX:
        table.caption = f"and {len(ordered) - PARTITIONS_MAX:,} more partitions: see --json"
    return table
