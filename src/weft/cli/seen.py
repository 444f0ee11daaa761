"""`weft status` and `weft why`: what runs, how far it is, and what holds it up."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
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
from weft.cli.top_lines import middle
from weft.errors import WeftError
from weft.observe.asking import question
from weft.observe.overview import HELD, NOT_BAD, severity, worst_first
from weft.observe.sentences import FULL, MEMBER, WELL, Sentence, percent, seconds
from weft.observe.why import why as why_sentences

WATCH_EVERY_S = 2.0
PARTITIONS_MAX = 10
SENTENCES_MAX = 100
LINES_MAX = 24
#: of what is no terminal
WIDTH_MAX = 10_000
NAME_MIN = 12

Watch = Annotated[bool, typer.Option("--watch", help="Look again every two seconds.")]
Row = Mapping[str, Any]


def status(
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    watch: Watch = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every member and partition, not the worst 24 lines.")
    ] = False,
    as_json: cluster.Json = False,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> None:
    """Show the runs on this machine, the worst first: what holds up, partitions, rates.

    Runs started with `weft run` are discovered automatically. What is well is one line.

    Example: weft status --watch
    """
    properties = cluster.properties_of(x, config)
    where_from = Where(url, token_file, group, bootstrap_servers, reports, properties)
    _repeat(
        watch,
        lambda: _asked(where_from.runs(), {"ask": "snapshot"}),
        _json if as_json else lambda answers: _status_shown(answers, every=every, width=_width()),
    )


def _width() -> int:
    """What the terminal has room for; of a pipe there is no end."""
    console = Console()
    return console.width if console.is_terminal else WIDTH_MAX


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
    several = len(answers) > 1
    answers = sorted(_told_once(answers), key=lambda one: _rank(one[1]))
    about = {one["about"] for _, told in answers for one in _said(told)}
    several = several and about != {"elsewhere"}
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
            if one is sentences[0]:
                lines += [Text(f"    {line}", "bright_black") for line in one.get("stack") or ()]
        if (more := len(sentences) - SENTENCES_MAX) > 0:
            lines.append(Text(f"and {more:,} more: name a partition, or see --json"))
        for row in told.get("found", ()):
            lines += [
                Text(f"  {_at(event['at'])} {event['what']}") for event in row.get("story", ())
            ]
        if not told.get("sentences") and "error" not in told:
            lines.append(Text("No such record is held here: it is done, or of another member."))
    return Stack(*lines)


def _rank(told: Row) -> int:
    """What an answer begins with: the worst comes first."""
    if "error" in told:
        return MEMBER
    return min((one.get("rank", WELL) for one in _said(told)), default=WELL)


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
            of_one = one["about"] in {*_OF_RECORDS, "elsewhere"} or text.startswith("Member ")
            if not of_one or text not in said:
                fresh.append(one)
            said.add(text)
        if known:
            fresh = [one for one in fresh if one["about"] != "elsewhere"]
        if fresh or (not known and not _said(told)) or "error" in told:
            kept.append((name, {**told, "sentences": fresh}))
    return kept


def _said(told: Row) -> Sequence[Row]:
    sentences: Sequence[Row] = told.get("sentences", ())
    return sentences


def _at(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


# -- status ----------------------------------------------------------------------------------------


def _status_shown(answers: Answers, *, every: bool = False, width: int | None = None) -> Stack:
    """The worst first, what is well in one line; without `every` in LINES_MAX lines."""
    width = width or WIDTH_MAX
    heard = {
        _where(row)
        for _, shot in answers
        if "error" not in shot and not shot.get("silent_s")
        for row in shot["partitions"]
    }
    told = sorted(
        ((_first(shot, heard), name, shot) for name, shot in answers), key=lambda one: one[0].rank
    )
    well = [shot for first, _, shot in told if first.rank >= FULL and "error" not in shot]
    fold = len(well) > 1 and not every
    lines = [
        line
        for first, name, shot in told
        if not (fold and shot in well)
        for line in _run_shown(name, shot, first, heard, width, every=every)
    ]
    if fold:
        lines.append(_members_folded(well))
    if not every and len(lines) > LINES_MAX:
        hidden = len(lines) - LINES_MAX + 1
        lines = [*lines[: LINES_MAX - 1], Text(f"and {hidden:,} more lines: --all, or --json")]
    return Stack(*lines)


def _where(row: Row) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _first(shot: Row, heard: set[tuple[str, int]]) -> Sentence:
    """What `weft why` says first of this run."""
    if "error" in shot:
        return Sentence(shot["error"], "", "error", rank=MEMBER)
    if shot.get("silent_s"):
        alone = [row for row in shot["partitions"] if _where(row) not in heard]
        return Sentence("", "", "silent", rank=MEMBER if alone else WELL)
    return why_sentences(shot)[0]


def _members_folded(shots: Sequence[Row]) -> Text:
    """Several that are well, in one line."""
    rows = [row for shot in shots for row in shot["partitions"]]
    apps = [shot.get("app", {}) for shot in shots[:3]]
    names = ", ".join(f"{app.get('group', '')} {app.get('member', '')}" for app in apps)
    more = f" and {len(shots) - 3} more" if len(shots) > 3 else ""
    rate = sum(row.get("rate_per_s", 0.0) for shot in shots for row in shot["handlers"].values())
    left = f"{_left(rows)} remaining in {len(rows):,} partitions, {rate:,.1f}/s"
    return Text(f"well: {names}{more}: {left}", style="green")


def _left(rows: Sequence[Row]) -> str:
    """What remains there, as far as that is known."""
    known = total(rows, "remaining")
    return "unknown" if known is None else f"{known:,}"


def _silent_shown(
    name: str, shot: Row, heard: set[tuple[str, int]], width: int, *, every: bool
) -> list[Text]:
    """A member that says nothing any more: of what it said last only what nobody else has said."""
    app = shot.get("app", {})
    head = f"{app.get('group', name)}  {app.get('member', '')}  SILENT: killed, or cut off"
    head += f"; last heard {seconds(shot['silent_s'])} ago"
    rows = [row for row in shot["partitions"] if _where(row) not in heard]
    if not rows:
        return [Text(f"{head}; others have its partitions", style="bright_black")]
    head += f" with {_left(rows)} remaining in {len(rows):,} partitions that nobody else reports"
    gone = [{**row, **dict.fromkeys(HELD), "past_map": None, "silent": True} for row in rows]
    return [*_wrapped(head, width, "bold"), *_partitions(gone, width, every=every)]


def _run_shown(
    name: str, shot: Row, first: Sentence, heard: set[tuple[str, int]], width: int, *, every: bool
) -> list[Text]:
    """One run: a line, what holds it up, its handlers, its partitions with the worst first."""
    if "error" in shot:
        return _wrapped(f"{name}: {shot['error']}", width, "red")
    if shot.get("silent_s"):
        return _silent_shown(name, shot, heard, width, every=every)
    app, rows = shot.get("app", {}), shot["partitions"]
    away = any(halt["cause"] in ("broker", "refused") for halt in shot.get("halts", ()))
    left = "unknown" if away and not rows else _left(rows)
    head = f"{app.get('group', name)}  {app.get('member', '')}  {shot['state']}"
    head += f"  {left} remaining in {len(rows):,} partitions"
    head += " when a broker answered last" if away and rows else ""
    lines = _wrapped(head, width, "bold")
    if first.rank < FULL:
        lines += _wrapped(first.text, width, "red")
        lines += _wrapped(f"  Next: {first.next}", width, "cyan") if first.next else []
    lines += _handlers(shot["handlers"], width)
    return lines + _partitions(rows, width, every=every)


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """In as many lines as the width asks for; nothing is cut."""
    return [Text(line, style=style) for line in textwrap.wrap(text, width) or [""]]


def _handlers(rows: Mapping[str, Row], width: int) -> list[Text]:
    names = ("handler", "rate/s", "p50 ms", "p99 ms", "in flight", "done", "failed")
    found = []
    for name, row in rows.items():
        latency = row.get("latency_ms", {})
        found.append(
            [
                name,
                f"{row.get('rate_per_s', 0):,.1f}",
                _ms(latency.get("p50")),
                _ms(latency.get("p99")),
                f"{row['in_flight']}/{row['concurrency']}",
                f"{row['done']:,}",
                f"{row['failures']:,}",
            ]
        )
    return _columns(names, found, width)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _partitions(rows: Sequence[Row], width: int, *, every: bool) -> list[Text]:
    """Those that are not well, the worst first; the others in one line."""
    ordered = sorted(rows, key=worst_first)
    bad = [row for row in ordered if every or severity(row) < NOT_BAD]
    shown = bad if every else bad[:PARTITIONS_MAX]
    names = (
        "partition", "remaining", "committed", "past map", "map", "run", "retry", "park", "age",
    )  # fmt: skip
    cells = [
        [
            f"{row['topic']}[{row['partition']}]",
            *(_number(row[name]) for name in ("remaining", "committed", "past_map")),
            percent(row),
            *(_number(row[name]) for name in ("in_flight", "retrying", "parked")),
            "-" if row["oldest_age_s"] is None else seconds(row["oldest_age_s"]),
        ]
        for row in ({"past_map": 0, **row} for row in shown)
    ]
    lines = _columns(names, cells, width) if cells else []
    if more := bad[len(shown) :]:
        lines.append(Text(f"and {len(more):,} more like these, {_left(more)} remaining: --all"))
    if well := ordered[len(bad) :]:
        text = f"well: {len(well):,} partitions, {_left(well)} remaining"
        lines.append(Text(text, style="green"))
    return lines


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[Text]:
    """The first column as wide as there is room, a name too long for it shorter in its middle."""
    wide = [max(len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    wide[0] = max(NAME_MIN, min(wide[0], width - sum(wide[1:]) - 2 * len(wide[1:])))

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(most) for cell, most in zip(row[1:], wide[1:], strict=True)]
        return "  ".join([middle(row[0], wide[0]).ljust(wide[0]), *cells])

    return [Text(line(names), style="bright_black"), *(Text(line(row)) for row in rows)]
