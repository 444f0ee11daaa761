"""`perkey pause`, `resume`, `set`, `stop`, `control log`: commands to running members."""

from __future__ import annotations

import getpass
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.text import Text

from perkey.cli import cluster
from perkey.cli.sources import TokenFile, Url, by_url, check_token_file
from perkey.cli.tables import folded, print_table, whole
from perkey.errors import ConfigError, PerkeyError
from perkey.observe import local
from perkey.observe.orders import (
    FOR_S,
    RECORD_ACTIONS,
    Order,
    checked_reason,
    order_of,
    seconds_of,
    settings_of,
)

if TYPE_CHECKING:
    from perkey.cli.control_group import ByTopic

EXIT_NOT_ALL = 1

Row = dict[str, Any]

Topic = Annotated[str | None, typer.Option(help="Only records of this topic.")]
Handler = Annotated[str | None, typer.Option(help="Only records of this handler.")]
Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why: it is logged, and shown by perkey why.")
]
For = Annotated[
    str, typer.Option("--for", metavar="TIME", help="Until it expires: 90s, 30m, 2h, 1d.")
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        callback=cluster.group_named,
        help="Only members of this group; required where several run.",
    ),
]
Control = Annotated[
    str | None,
    typer.Option(
        "--control", metavar="TOPIC", help="Reach a whole --group by its topic, App(control=…)."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what it would affect.")]

log_app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class Reach:
    """The options of a command that acts: the reason, the members, and how they are reached."""

    reason: Reason
    dry_run: DryRun = False
    group: Group = None
    url: Url = None
    token_file: TokenFile = None
    control: Control = None
    bootstrap_servers: cluster.Bootstrap = cluster.LOCAL_BROKER
    x: cluster.Properties = None
    config: cluster.ConfigFile = None
    as_json: cluster.Json = False

    def __post_init__(self) -> None:
        """Note what has no effect."""
        if self.control is None:
            self._note_unused()

    @property
    def cluster(self) -> cluster.Cluster:
        """How to connect to Kafka."""
        return cluster.Cluster(self.bootstrap_servers, self.x, self.config)

    def send(self, *orders: Row, for_: str | None = None, rest: Sequence[Row] = ()) -> int:
        """Send the commands to every member and print the answers; returns the worst exit code.

        `rest`: commands to send after these, which may match no record.
        """
        given = [self._completed(order, for_) for order in (*orders, *rest)]
        every: list[Row] = []
        code = 0
        for number, order in enumerate(given):
            answers, missing = self._reached().asked(order)
            answers += [{"outcome": "no answer", "until": None, **one} for one in missing]
            if not self.as_json:
                for one in answers:
                    text = Text(f"{one['member']}: {one['outcome']}: {one['detail']}")
                    Console(soft_wrap=True).print(text)
            every += [{"id": order.id, **one} for one in answers]
            bad = any(one["outcome"] in ("refused", "no answer") for one in answers)
            if bad or not answers or (number < len(orders) and _missed(order, answers)):
                code = EXIT_NOT_ALL
        if self.as_json:
            first = given[0].id if given else None
            typer.echo(json.dumps({"id": first, "dry_run": self.dry_run, "answers": every}))
        elif self.dry_run and given:
            typer.echo("Nothing was changed: it was a dry run.", err=True)
        return code

    def looked(self, order: Row) -> list[Row]:
        """The answers of a dry run."""
        return self._reached().asked(self._completed({**order, "dry_run": True}, None))[0]

    def _completed(self, order: Row, for_: str | None) -> Order:
        """The command with the fields that every one has; ConfigError before it is sent."""
        for_s = FOR_S if for_ is None else seconds_of(for_)
        name = "?"
        with suppress(Exception):  # no such user in a container
            name = getpass.getuser()
        given = {
            "dry_run": self.dry_run,
            **order,
            "reason": checked_reason(self.reason),
            "for_s": for_s,
        }
        claimed_by = f"{name}@{socket.gethostname()}"[:200]
        return order_of({**given, "id": secrets.token_hex(4), "claimed_by": claimed_by})

    def _reached(self) -> Reached:
        if self.control is not None:
            return by_topic(self.control, self.group, self.url, self.cluster)
        return Runs(self.url, self.token_file, self.group)

    def _note_unused(self) -> None:
        note_unused(self.cluster)


def by_topic(control: str, group: str | None, url: str | None, kafka: cluster.Cluster) -> ByTopic:
    """The group with this control topic; ConfigError for options that do not go with it."""
    if url is not None or not group:
        raise ConfigError("--control requires --group and excludes --url")
    from perkey.cli.control_group import ByTopic  # the local commands load no client

    return ByTopic(control, group, kafka)


def note_unused(kafka: cluster.Cluster) -> None:
    """A line on stderr for options that have no effect without --control."""
    if kafka != cluster.Cluster():
        typer.echo(
            "perkey: without --control a command reaches runs on this machine, or at --url:"
            " --bootstrap-servers, -X and --config have no effect",
            err=True,
        )


@cluster.spread
def pause(reach: Reach, topic: Topic = None, handler: Handler = None, for_: For = "1h") -> int:
    """Pause a topic, a handler or the whole app for some time.

    No record starts. Running calls and commits continue. Exit 0 only when each member has answered
    and obeyed.

    Example: perkey pause --topic orders --reason "payment service is down" --for 30m
    """
    order = {"action": "pause", "topic": topic, "handler": handler}
    return reach.send(order, for_=for_)


@cluster.spread
def resume(reach: Reach, topic: Topic = None, handler: Handler = None) -> int:
    """End pauses of a topic, of a handler, or all.

    Pauses by the app itself remain. For a handler, or all: records that wait because of hold= or
    brake= continue, too.

    Example: perkey resume --topic orders --reason "payment service is back"
    """
    order = {"action": "resume", "topic": topic, "handler": handler}
    return reach.send(order)


@cluster.spread
def set_(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE…",
            help="concurrency, rate_limit_per_s or timeout_s; `default`: as declared.",
        ),
    ],
    reach: Reach,
    handler: Handler = None,
    for_: For = "1h",
) -> int:
    """Set concurrency, rate or time-out of handlers for some time.

    Each member gets the value. Concurrency may be higher than declared: up to 10,000 calls async,
    1,000 on threads; not with worker processes or a ledger. A new time-out also applies to calls
    that run with one.

    Example: perkey set concurrency=10 rate_limit_per_s=20 --handler check --reason "429s" --for 30m
    """
    order = {"action": "set", "handler": handler, "settings": settings_of(settings)}
    return reach.send(order, for_=for_)


def stop(
    reason: Reason,
    mode: Annotated[
        str, typer.Option(help="in_flight, buffered or now: see app.stop().")
    ] = "in_flight",
    dry_run: DryRun = False,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    as_json: cluster.Json = False,
) -> int:
    """Stop members cleanly, as SIGTERM does.

    They finish running calls, commit and leave the group.

    Example: perkey stop --group geofence --reason "moving to the new cluster"
    """
    reach = Reach(reason, dry_run, group, url, token_file, as_json=as_json)
    return reach.send({"action": "stop", "mode": mode})


@log_app.callback()
def _control() -> None:
    """Show commands to running members.

    Example: perkey control log
    """


@log_app.command()
@cluster.spread
def log(
    kafka: cluster.Cluster,
    group: Group = None,
    url: Url = None,
    token_file: TokenFile = None,
    control: Control = None,
    as_json: cluster.Json = False,
) -> None:
    """List the commands in force, the last ones, and members' answers.

    With --control from that topic, also while no member runs: the last command for each target,
    the commands of the last 8 days that are not for later members, and the newest 1,000 answers.

    Example: perkey control log --control perkey.control --group billing
    """
    if control is not None:
        commands = by_topic(control, group, url, kafka).log()
        if as_json:
            typer.echo(json.dumps(commands))
        else:
            _show_topic(commands)
        return
    note_unused(kafka)
    found = Runs(url, token_file, group).known(several=True)
    if as_json:
        typer.echo(json.dumps([answer for _, _, answer in found]))
    else:
        _show_members([answer for _, _, answer in found])


def _show_members(answers: Sequence[Row]) -> None:
    """What each member has in its memory."""
    named = [(f"{a['group']} {one['member']}", one) for a in answers for one in a["members"]]
    for name, one in named:
        for force in one["in_force"]:
            typer.echo(f"in force: {name}: {_in_words(force)}")
    rows = [(row["at"], name, row) for name, one in named for row in one["log"]]
    if not rows:
        typer.echo("no commands yet")
        return
    columns = [*whole("time", "member"), *folded("answer", "detail", "reason", "claimed by")]
    print_table(columns, [
        (
            time.strftime("%H:%M:%SZ", time.gmtime(at)), name, row["outcome"], row["detail"],
            row["reason"], row["claimed_by"] or "?",
        )
        for at, name, row in sorted(rows, key=itemgetter(0))
    ])  # fmt: skip


def _show_topic(commands: Sequence[Row]) -> None:
    """The commands of a control topic, oldest first."""
    for one in commands:
        if one["until"] is not None:
            typer.echo(f"in force: {_in_words(one)}")
    if not commands:
        typer.echo("no commands yet")
        return
    columns = [*whole("time"), *folded("command", "answers", "reason", "claimed by")]
    print_table(columns, [
        (
            time.strftime("%m-%d %H:%M:%SZ", time.gmtime(one["at"])),
            f"{one['action']} {one['about']}" + (" (dry run)" if one["dry_run"] else ""),
            "\n".join(f"{a['member']}: {a['outcome']}: {a['detail']}" for a in one["answers"])
            or "-",
            one["reason"], one["claimed_by"] or "?",
        )
        for one in commands
    ])  # fmt: skip


class Reached(Protocol):
    """The members that a command is sent to."""

    def asked(self, order: Order) -> tuple[list[Row], list[Row]]:
        """The answers, and member and detail of each missing answer; raises ConfigError."""


class Runs:
    """The runs on this machine, or at a URL."""

    def __init__(self, url: str | None, token_file: Any, group: str | None) -> None:
        check_token_file(url, token_file)
        self._url, self._token_file, self._group = url, token_file, group
        #: member, or name of a run -> the error when it was queried
        self.silent: dict[str, str] = {}

    def known(self, *, several: bool = False) -> list[tuple[str, Callable[..., Any], Any]]:
        """Name, query function, and `commands` of each selected run; raises ConfigError.

        `several`: runs of several groups are allowed; a command is for one group only.
        """
        asks: dict[str, Callable[[Mapping[str, Any]], Any]]
        named: set[str] = set()  # groups of runs, also of those that are not asked
        if self._url is not None:
            asks = {self._url: partial(by_url, self._url, self._token_file)}
        else:
            asks = {}
            for path in local.runs():
                about = local.about(path)
                if about is not None:
                    named.add(about.group)
                if about is None or self._group in (None, about.group):
                    name = path.stem if about is None else about.member
                    asks[path.stem if name in asks else name] = partial(local.ask, path)
        found = []
        for name, ask in asks.items():
            try:
                found.append((name, ask, ask({"ask": "commands"})))
            except PerkeyError as error:
                if len(asks) == 1:
                    raise
                self.silent[name] = str(error)
        if not asks and not named:
            raise ConfigError(
                "no running Perkey app found on this machine: start one with `perkey run` (or "
                "PERKEY_SOCKET=1), or give --url"
            )
        groups = sorted({answer["group"] for _, _, answer in found} | named)
        if self._group is not None:
            found = [one for one in found if one[2]["group"] == self._group]
            if not found and not self.silent:
                raise ConfigError(
                    f"no member of group {self._group} runs here, only of {', '.join(groups)}"
                )
        elif len(groups) > 1 and not several:
            raise ConfigError(
                f"members of {len(groups)} groups run here: give --group, one of "
                f"{', '.join(groups)}"
            )
        return found

    def asked(self, order: Order) -> tuple[list[Row], list[Row]]:
        """The answers, and member and detail of each missing answer; raises ConfigError."""
        answers: list[Row] = []
        expected: set[str] = set()
        for name, ask, _ in self.known():
            try:
                found = ask({**order.row(), "ask": "control"})
            except ConfigError:
                raise
            except PerkeyError as error:
                self.silent[name] = str(error)
                continue
            answers += found["answers"]
            expected |= set(found["members"])
        expected -= {one["member"] for one in answers} | self.silent.keys()
        missing = [{"member": name, "detail": why} for name, why in sorted(self.silent.items())]
        missing += [
            {
                "member": name,
                "detail": "not reached: it runs elsewhere; run the command there or give its --url",
            }
            for name in sorted(expected)
        ]
        return answers, missing


def _missed(order: Order, answers: Sequence[Row]) -> bool:
    """Whether no member has a record that the command names; it is then reported in one line."""
    if order.action not in RECORD_ACTIONS:
        return False
    rows = [row for one in answers for row in one.get("rows", ()) if row["outcome"] != "not here"]
    here = {(row["partition"], row["offset"]) for row in rows}
    missing = [one for one in order.records if one not in here]
    if not missing and (order.records or rows):
        return False
    what = f"key {order.key}"
    if missing:
        what = ":".join(map(str, (order.topic, *missing[0])))
    elif order.where is not None:
        what = f"a record where {order.where}"
    more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
    typer.echo(
        f"perkey: no member that was reached has {what}{more}: is its owner on another machine?",
        err=True,
    )
    return True


def _in_words(force: Mapping[str, Any]) -> str:
    """One command in force, as text."""
    about = [f"{name} {force[name]}" for name in ("topic", "handler", "key") if force.get(name)]
    settings = [
        f"{name}={'default' if value is None else value}"
        for name, value in force["settings"].items()
    ]
    until = time.strftime("%H:%M:%SZ", time.gmtime(force["until"]))
    words = [force["action"], *(about or ["everything"]), *settings, f"until {until}"]
    return f"{' '.join(map(str, words))} ({force['reason']})"
