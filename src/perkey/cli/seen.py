"""`perkey status` and `perkey why`: running apps, their progress, and what blocks it."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from perkey.account.shown import counted
from perkey.account.snapshot import is_away, total
from perkey.cli import cluster
from perkey.cli.sources import (
    REPORTS,
    Group,
    Killed,
    Reports,
    Servers,
    Shown,
    TokenFile,
    Url,
    Where,
)
from perkey.cli.top_lines import middle
from perkey.errors import PerkeyError
from perkey.observe.asking import question
from perkey.observe.overview import HELD, NOT_BAD, severity, worst_first
from perkey.observe.sentences import Sentence, percent, seconds
from perkey.observe.why import why as why_sentences
from perkey.reasons import FULL, MEMBER, PLACES, WELL

WATCH_EVERY_S = 2.0
PARTITIONS_MAX = 10
SENTENCES_MAX = 100
LINES_MAX = 24
#: offsets named of records that wait behind the same one
OFFSETS_SHOWN = 5
#: width of output that does not go to a terminal
WIDTH_MAX = 10_000
NAME_MIN = 12

Watch = Annotated[bool, typer.Option("--watch", help="Refresh every 2 s.")]
Row = Mapping[str, Any]


def status(
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    watch: Watch = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show every member and partition, not only the worst 24 lines."),
    ] = False,
    as_json: cluster.Json = False,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> int:
    """Show the runs on this machine, worst first.

    Runs started with `perkey run` are discovered automatically. Healthy ones share one line.

    Example: perkey status --watch
    """
    properties = cluster.properties_of(x, config)
    where_from = Where(url, token_file, group, bootstrap_servers, reports, properties, config)
    console = Console()

    def shown(answers: Answers) -> Stack:
        width = console.width if console.is_terminal else None
        return _status_shown(answers, every=every, width=width, complete=where_from.completed)

    return _repeat(
        watch,
        lambda: _asked(where_from.runs(), {"ask": "snapshot"}),
        _json if as_json else shown,
    )


def why(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[:PARTITION[:OFFSET]]]", help="The stuck topic, partition or record."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Explain the records of this key.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    group: Group = None,
    bootstrap_servers: Servers = None,
    reports: Reports = REPORTS,
    watch: Watch = False,
    as_json: cluster.Json = False,
    x: cluster.Properties = None,
    config: cluster.ConfigFile = None,
) -> int:
    """Explain what blocks a commit, and what to do next.

    With a record or a key: where its records are. Without an argument: why no record starts, and
    the three worst records.

    Example: perkey why gps.positions:3
    """
    question(where, key)  # refuse a bad argument before asking any run
    asked = {"ask": "why", "where": where, "key": key}
    properties = cluster.properties_of(x, config)
    where_from = Where(url, token_file, group, bootstrap_servers, reports, properties, config)
    return _repeat(
        watch,
        lambda: _asked(where_from.runs(), asked),
        _json if as_json else _why_shown,
    )


Answers = list[tuple[str, dict[str, Any]]]


def _asked(runs: Sequence[Shown], asked: Row) -> Answers:
    """The answers of all runs; one run's error is its answer."""
    if len(runs) == 1:
        return [(runs[0].name, runs[0].ask(asked))]
    answers = []
    for one in runs:
        try:
            answers.append((one.name, one.ask(asked)))
        except Killed as error:
            answers.append((one.name, {"error": str(error), "killed": True}))
        except PerkeyError as error:
            answers.append((one.name, {"error": str(error)}))
    return answers


def _repeat(watch: bool, ask: Callable[[], Answers], show: Callable[[Answers], Any]) -> int:
    """Show the answers; the exit code: 1 where no run has answered."""
    answers = ask()
    shown = show(answers)
    if not watch:
        if isinstance(shown, str):
            typer.echo(shown)
        else:
            Console(soft_wrap=not Console().is_terminal).print(shown)
        return int(bool(answers) and all("error" in answer for _, answer in answers))
    if isinstance(shown, str):
        while True:
            typer.echo(shown)
            time.sleep(WATCH_EVERY_S)
            shown = show(ask())
    else:
        with Live(shown, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_EVERY_S)
                live.update(show(ask()), refresh=True)


def _json(answers: Answers) -> str:
    """A list with one object per run: the same shape for one run and for many."""
    return json.dumps([answer for _, answer in answers])


def _why_shown(answers: Answers) -> Stack:
    lines: list[RenderableType] = []
    several = len(answers) > 1
    # Leave out sentences that another run has already reported
    known = any(one["about"] in _OF_RECORDS for _, answer in answers for one in _sentences(answer))
    seen: set[str] = set()
    kept = []
    for name, answer in answers:
        fresh = []
        for one in _sentences(answer):
            text = _DURATION.sub("", one["text"])
            of_one = one["about"] in {*_OF_RECORDS, "elsewhere"} or text.startswith("Member ")
            if not of_one or text not in seen:
                fresh.append(one)
            seen.add(text)
        if known:
            fresh = [one for one in fresh if one["about"] != "elsewhere"]
        if fresh or (not known and not _sentences(answer)) or "error" in answer:
            rank = min((one.get("rank", WELL) for one in fresh), default=WELL)
            rank = MEMBER if "error" in answer else rank
            rank = WELL + 1 if "killed" in answer else rank
            kept.append((rank, name, {**answer, "sentences": fresh}))
    answers = [(name, answer) for _, name, answer in sorted(kept, key=lambda one: one[0])]
    about = {one["about"] for _, answer in answers for one in _sentences(answer)}
    several = several and about != {"elsewhere"}
    for name, answer in answers:
        if several and "killed" not in answer:
            known_as = [answer[one] for one in ("group", "member") if answer.get(one)]
            lines.append(Text("  ".join(known_as) or name, style="bold"))
        if answer.get("silent_s"):
            lines.append(
                Text(f"silent for {seconds(answer['silent_s'])}: killed, suspended or disconnected")
            )
        if "error" in answer:
            lines.append(Text(answer["error"], style="red"))
        sentences = _alike(answer)
        for one in sentences[:SENTENCES_MAX]:
            lines.append(Text(one["text"]))
            if one["next"]:
                lines.append(Text(f"  Next: {one['next']}", style="cyan"))
            if one is sentences[0]:
                lines += [Text(f"    {line}", "bright_black") for line in one.get("stack") or ()]
        if (more := len(sentences) - SENTENCES_MAX) > 0:
            lines.append(Text(f"and {more:,} more: name a partition, or see --json"))
        history = dict.fromkeys(
            (event["at"], event["what"])
            for row in answer.get("found", ())
            for event in row.get("story", ())  # of the record, or of the one in front of it
        )
        for at, what in history:
            lines.append(Text(f"  {time.strftime('%H:%M:%S', time.localtime(at))} {what}"))
        if not answer.get("sentences") and "error" not in answer:
            lines.append(Text("This run holds no such record: it is done, or in another member."))
    return Stack(*lines)


def _alike(answer: Row) -> list[Row]:
    """Records that are queued behind the same one share a sentence; repeated advice is left out."""
    shown: list[Row] = []
    queued: dict[tuple[Any, ...], tuple[Row, list[str]]] = {}
    advice = None
    for one, row in zip_longest(_sentences(answer), answer.get("found") or ()):
        if one is None:  # from an older version: records without a sentence
            break
        head = (row or {}).get("behind")
        where = (row["topic"], row["partition"], head["offset"]) if head else None
        if where in queued:
            queued[where][1].append(f"{row['offset']:,}")
            continue
        shown.append({**one, "next": ""} if one["next"] == advice else one)
        advice = one["next"]
        if where is not None:
            queued[where] = shown[-1], []
    for one, more in queued.values():
        if more:
            dots = ", …" * (len(more) > OFFSETS_SHOWN)
            text = (
                f"{one['text']} So are {len(more):,} more: {', '.join(more[:OFFSETS_SHOWN])}{dots}"
            )
            shown[shown.index(one)] = {**one, "text": text}
    return shown


#: durations differ by the moment of each answer
_DURATION = re.compile(r"[\d.,]+ (ms|s|min|h|d)\b")
_OF_RECORDS = {place.name for place in PLACES} | {"unfetched"}


def _sentences(answer: Row) -> Sequence[Row]:
    sentences: Sequence[Row] = answer.get("sentences", ())
    return sentences


# -- status ----------------------------------------------------------------------------------------


def _status_shown(
    answers: Answers,
    *,
    every: bool = False,
    width: int | None = None,
    complete: Callable[..., str] = lambda text, *_: text,
) -> Stack:
    """The worst run first, healthy ones in one line; LINES_MAX lines without `every`.

    `complete`: see `Where.completed`.
    """
    width = width or WIDTH_MAX
    answered = {
        _where(row)
        for _, shot in answers
        if "error" not in shot and not shot.get("silent_s")
        for row in shot["partitions"]
    }
    # With the first sentence of `perkey why` for each run
    ranked = []
    for name, shot in answers:
        if "error" in shot:
            rank = WELL + 1 if "killed" in shot else MEMBER
            first = Sentence(shot["error"], "", "error", rank=rank)
        elif shot.get("silent_s"):
            alone = any(_where(row) not in answered for row in shot["partitions"])
            first = Sentence("", "", "silent", rank=MEMBER if alone else WELL)
        else:
            first = why_sentences(shot)[0]
            group = shot.get("app", {}).get("group", "")
            first = first._replace(next=complete(first.next, group, shot.get("control")))
        ranked.append((first, name, shot))
    ranked.sort(key=lambda one: one[0].rank)
    well = [
        shot
        for first, _, shot in ranked
        if first.rank >= FULL and "error" not in shot and not shot.get("silent_s")
    ]
    fold = len(well) > 1 and not every
    lines = [
        line
        for first, name, shot in ranked
        if not (fold and shot in well)
        for line in _run_shown(name, shot, first, answered, width, every=every)
    ]
    if fold:
        # Several healthy runs in one line
        rows = [row for shot in well for row in shot["partitions"]]
        apps = [shot.get("app", {}) for shot in well[:3]]
        names = ", ".join(f"{app.get('group', '')} {app.get('member', '')}" for app in apps)
        more = f" and {len(well) - 3} more" if len(well) > 3 else ""
        rate = sum(row.get("rate_per_s", 0.0) for shot in well for row in shot["handlers"].values())
        left = f"{_left(rows)} remaining in {counted(len(rows), 'partition')}, {rate:,.1f}/s"
        lines.append(Text(f"well: {names}{more}: {left}", style="green"))
    if not every and len(lines) > LINES_MAX:
        hidden = len(lines) - LINES_MAX + 1
        lines = [*lines[: LINES_MAX - 1], Text(f"and {hidden:,} more lines: --all, or --json")]
    return Stack(*lines)


def _where(row: Row) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _left(rows: Sequence[Row]) -> str:
    """The remaining records, if known."""
    known = total(rows, "remaining")
    return "unknown" if known is None else f"{known:,}"


def _run_shown(
    name: str,
    shot: Row,
    first: Sentence,
    answered: set[tuple[str, int]],
    width: int,
    *,
    every: bool,
) -> list[Text]:
    """One run: its state, what blocks it, its handlers, its partitions with the worst first."""
    if "error" in shot:
        of = "" if "killed" in shot else f"{name}: "
        return _wrapped(f"{of}{shot['error']}", width, "red")
    if shot.get("silent_s"):
        # A silent member: of its last report, only what no other member has reported
        app = shot.get("app", {})
        head = f"{app.get('group', name)}  {app.get('member', '')}  SILENT: "
        head += f"killed, suspended or disconnected; last report {seconds(shot['silent_s'])} ago"
        rows = [row for row in shot["partitions"] if _where(row) not in answered]
        if not rows:
            return [Text(f"{head}; others own its partitions", style="bright_black")]
        head += f" with {_left(rows)} remaining in {len(rows):,} partitions that no other member "
        head += "reports"
        gone = [{**row, **dict.fromkeys(HELD), "past_map": None, "silent": True} for row in rows]
        return [*_wrapped(head, width, "bold"), *_partitions(gone, width, every=every)]
    app, rows = shot.get("app", {}), shot["partitions"]
    away = is_away(shot)
    left = "unknown" if away and not rows else _left(rows)
    head = f"{app.get('group', name)}  {app.get('member', '')}  {shot['state']}"
    head += f"  {left} remaining in {counted(len(rows), 'partition')}"
    head += " at the last broker response" if away and rows else ""
    lines = _wrapped(head, width, "bold")
    if first.rank < FULL:
        lines += _wrapped(first.text, width, "red")
        lines += _wrapped(f"  Next: {first.next}", width, "cyan") if first.next else []
    lines += _handlers(shot["handlers"], width) if shot["handlers"] else []
    return lines + _partitions(rows, width, every=every)


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """Wrapped to the width; nothing is truncated."""
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
    """Unhealthy partitions, the worst first; healthy ones in one line."""
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
    """Aligned columns; the first takes the remaining width and shortens names in the middle."""
    wide = [max(len(row[at]) for row in (names, *rows)) for at in range(len(names))]
    wide[0] = max(NAME_MIN, min(wide[0], width - sum(wide[1:]) - 2 * len(wide[1:])))

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(most) for cell, most in zip(row[1:], wide[1:], strict=True)]
        return "  ".join([middle(row[0], wide[0]).ljust(wide[0]), *cells])

    return [Text(line(names), style="bright_black"), *(Text(line(row)) for row in rows)]
