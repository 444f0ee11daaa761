"""`perkey doctor`: check this machine, and an app's brokers, topics and rights, before it runs.

It only asks: it joins no group, creates no topic and writes nothing.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from perkey._version import __version__
from perkey.account.shown import counted
from perkey.cli.cluster import ANSWER_S, Json
from perkey.cli.load import load_app
from perkey.codec.limits import BROKER_CHARS_MAX
from perkey.errors import ConfigError
from perkey.kafka import clib
from perkey.kafka.admin import KafkaAdmin, TopicState
from perkey.kafka.ports import KafkaUnavailable
from perkey.observe import local
from perkey.observe.http import check_serving
from perkey.policies import letters_of
from perkey.routing import Routes
from perkey.runtime.run.preflight import RESET, connection_of, make_command, targets
from perkey.spark.fleet.settings import check_java
from perkey.spark.requirements import installed_version

if TYPE_CHECKING:
    from perkey.app import App

State = Literal["ok", "note", "warning", "failure"]
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "failure": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check, with what to do about it."""

    state: State
    text: str
    next: str = ""


def doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="The app to check; omit it for this machine."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Check this machine, and an app's brokers, topics and rights.

    Reads only: joins no group, creates no topic. Exit code 1 if a check fails.

    Example: perkey doctor geofence:app
    """
    console = Console(highlight=False, soft_wrap=True)
    findings: list[Finding] = []
    checks = [of_machine()] if target is None else [of_machine(), of_app(load_app(target))]
    with console.status("checking"):
        for one in chain.from_iterable(checks):
            findings.append(one)
            if as_json:
                continue
            line = Text(f"{one.state:8}", style=_STYLES[one.state])
            console.print(line.append(one.text, style="default"))
            if one.next:
                console.print(f"{'':8}  Next: {one.next}", markup=False)
    failures, warnings = (sum(f.state == s for f in findings) for s in ("failure", "warning"))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in findings]))
    else:
        found = f"{counted(failures, 'failure')}, {counted(warnings, 'warning')}"
        console.print(found if failures or warnings else "everything is in order")
    return 1 if failures else 0


# -- this machine ----------------------------------------------------------------------------------


def of_machine() -> Iterator[Finding]:
    """Python, the Kafka client, the extras, Java, and the folder where `perkey why` finds runs."""
    yield Finding("ok", f"Perkey {__version__}, Python {platform.python_version()} ({sys.prefix})")
    client = metadata.version("confluent-kafka")
    yield _tried(clib.library, f"confluent-kafka {client} with librdkafka {clib.version()}")
    present, absent = _extras()
    if present or absent:
        text = f"extras installed: {', '.join(present) or 'none'}"
        missing = f"not installed: {', '.join(absent)} (pip install 'perkey[NAME]')"
        yield Finding("ok", f"{text}; {missing}" if absent else text)
    try:
        yield Finding("ok", f"Java {check_java()}, for perkey broker and Spark")
    except ConfigError as error:
        yield Finding("note", f"only perkey broker and Spark need Java: {error}")
    yield _tried(local.folder, "perkey why, status and top find the runs of this user", "warning")


def _tried(check: Any, text: str, state: State = "failure") -> Finding:
    """The text if the check passes, else its error, which names the fix."""
    try:
        check()
    except ConfigError as error:
        return Finding(state, str(error))
    return Finding("ok", text)


def _extras() -> tuple[list[str], list[str]]:
    """Perkey's extras: those whose packages are all installed, and the others."""
    wanted = _needed("perkey")
    present = [extra for extra, needed in wanted.items() if all(_complete(*one) for one in needed)]
    return present, [extra for extra in wanted if extra not in present]


_NEEDED = re.compile(r"([\w.-]+)(?:\[([\w,.-]+)\])?[^;]*;(.*)extra == ['\"]([\w-]+)['\"]")


def _needed(package: str) -> dict[str, list[tuple[str, list[str]]]]:
    """What each extra of a package needs: packages, with the extras of theirs.

    Other packages than Perkey: without those that only some systems or Pythons need.
    """
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:  # Perkey runs from its sources
        lines = []
    needed: dict[str, list[tuple[str, list[str]]]] = {}
    for match in filter(None, map(_NEEDED.match, lines)):
        name, extras, condition, extra = match.groups()
        if package == "perkey" or not condition.strip():
            needed.setdefault(extra, []).append((name, extras.split(",") if extras else []))
    return needed


def _complete(package: str, extras: Sequence[str]) -> bool:
    """Whether a package is installed, with what these of its extras need."""
    if installed_version(package) is None:
        return False
    needed = _needed(package) if extras else {}
    return all(_complete(*one) for extra in extras for one in needed.get(extra, ()))


# -- an app ----------------------------------------------------------------------------------------


def of_app(app: App) -> Iterator[Finding]:
    """The app's handlers, then its cluster; ends early where nothing more can be asked."""
    options, handlers = app.options, app.handlers
    if not handlers:
        yield Finding("failure", "the app has no handler", "decorate a function with @app.consume")
        return
    for one in handlers:
        what = f"{one.name} reads {', '.join(one.topics)}: {one.delivery}, order by {one.ordering}"
        yield Finding("ok", f"{what}, {counted(one.concurrency, 'call')} at a time ({one.kind})")
        if one.timeout_s is None:
            text = f"{one.name} has no timeout_s: a call that hangs holds its slot and its key"
            yield Finding("warning", text, f"@app.consume(timeout_s=30) on {one.name}")
    if (http := options.http) is not None:
        yield _tried(partial(check_serving, http, options.http_token_file), f"HTTP at {http}")
    try:
        connection = connection_of(options, handlers)
        with KafkaAdmin(connection.settings) as admin:
            yield from _Cluster(app, admin, connection.described()).findings()
    except (ConfigError, KafkaUnavailable) as error:
        yield Finding("failure", str(error))


class _Cluster:
    """The checks of an app that ask its cluster."""

    def __init__(self, app: App, admin: KafkaAdmin, brokers: str) -> None:
        self._options, self._handlers = app.options, app.handlers
        self._admin, self._brokers = admin, brokers
        self._routes = Routes(app.handlers)

    def findings(self) -> Iterator[Finding]:
        """All of them."""
        nodes, rights, config = self._admin.cluster(ANSWER_S)
        yield Finding("ok", f"Kafka at {self._brokers} answers: {counted(nodes, 'broker')}")
        limit = int(config.get("offset.metadata.max.bytes", BROKER_CHARS_MAX))
        if limit < BROKER_CHARS_MAX:
            yield Finding(
                "warning",
                f"the brokers store {limit} bytes of offset map: fewer records can be done beyond "
                "an unfinished one, and a restart may repeat more",
                f"set offset.metadata.max.bytes={BROKER_CHARS_MAX} on the brokers",
            )
        patterns = self._routes.patterns
        matching = self._admin.matching(patterns, ANSWER_S) if patterns else []
        if patterns and not matching:
            yield Finding("warning", f"no topic matches {', '.join(patterns)} yet")
        sources = sorted({*self._routes.literal, *matching})
        written, made = targets(self._routes, self._handlers, sources)
        ours = {"reports": self._options.reports, "control": self._options.control}
        written |= {topic: f"App({name}=)" for name, topic in ours.items() if topic is not None}
        created = {*made, *(topic for topic in ours.values() if topic is not None)}
        states = self._admin.topic_states([*sources, *written], ANSWER_S)
        for topic in sources:
            yield from self._topic(topic, "read", "READ", states.get(topic))
        for topic, option in written.items():
            if topic not in states and topic in created:
                allowed = "CREATE" in rights
                yield Finding(
                    "ok" if allowed else "failure",
                    f"{topic} ({option}) does not exist; Perkey creates it at the start",
                    "" if allowed else f"{make_command([topic], self._brokers)}, or grant CREATE",
                )
            else:
                yield from self._topic(topic, f"written by {option}", "WRITE", states.get(topic))
        for topic in sources:
            yield from self._letters(topic, states)
        yield from self._group(sources, states)

    def _topic(
        self, topic: str, use: str, right: str, state: TopicState | None
    ) -> Iterator[Finding]:
        """Whether the topic exists, has leaders, and may be used as it will be."""
        if state is None:
            cure = f"{make_command([topic], self._brokers)}, correct its name, or grant DESCRIBE"
            text = f"{topic}, {use}, does not exist or is hidden from this login"
            yield Finding("failure", text, cure)
        elif right not in state.rights:
            text = f"{topic}, {use}: this login lacks {right}"
            yield Finding("failure", text, f"grant it {right} on the topic")
        elif state.leaderless:
            numbers = ", ".join(map(str, state.leaderless[:10]))
            text = f"{topic}, {use}: no leader for partitions {numbers}"
            yield Finding("failure", text, "start the brokers that hold them")
        else:
            yield Finding("ok", f"{topic}, {use}: {counted(state.partitions, 'partition')}")

    def _letters(self, source: str, states: dict[str, TopicState]) -> Iterator[Finding]:
        """Whether the dead letters of a topic keep their partition and their value."""
        topic = letters_of(self._routes.options_of(source).on_exhausted, source)
        letters, read = states.get(topic), states.get(source)
        if letters is None or read is None:
            return
        if letters.partitions < read.partitions:
            yield Finding(
                "warning",
                f"{topic} has {counted(letters.partitions, 'partition')}, {source} has "
                f"{read.partitions}: dead letters of the others lose their partition number",
                f"give {topic} {read.partitions} partitions",
            )
        name = "max.message.bytes"
        sizes = [int(one.config.get(name, 0)) for one in (letters, read)]
        if 0 < sizes[0] < sizes[1]:
            yield Finding(
                "warning",
                f"{topic} takes {sizes[0]} bytes, {source} {sizes[1]}: dead letters of larger "
                "records lose their value",
                f"set {name}={sizes[1]} on {topic}",
            )

    def _group(self, sources: Sequence[str], states: dict[str, TopicState]) -> Iterator[Finding]:
        """The right to join the group, its members and commits."""
        group = self._options.group
        state, members, rights = self._admin.group_facts(group, ANSWER_S)
        if rights is not None and "READ" not in rights:
            text = f"group {group}: this login lacks READ"
            yield Finding("failure", text, "grant it READ on the group")
            return
        where = [(topic, n) for topic in sources if topic in states
                 for n in range(states[topic].partitions)]  # fmt: skip
        offsets = self._admin.group_offsets(group, where, ANSWER_S)
        commits = sum(offset is not None for offset in offsets.values())
        found = f"commits in {commits} of {counted(len(where), 'partition')}"
        who = f"{counted(members, 'member')}, {state.lower()}" if members else "no members"
        yield Finding("ok", f"group {group}: {who}; {found}")
        if commits < len(where) and RESET not in self._options.kafka:
            text = "partitions without a commit are read from their start"
            yield Finding("note", text, f'kafka={{"{RESET}": "latest"}} starts at their ends')
        if members > len(where) > 0:
            text = f"{members} members for {counted(len(where), 'partition')}: some do nothing"
            yield Finding("warning", text, "raise concurrency instead of adding members")
