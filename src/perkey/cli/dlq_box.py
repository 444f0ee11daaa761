"""Shared by the commands of `perkey dlq`: a topic's letters, conditions, a bar, safe text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from perkey.cli import cluster
from perkey.cli.topics import check_topic
from perkey.dlq.letters import Place
from perkey.dlq.replay import Box, group_of
from perkey.errors import ConfigError
from perkey.kafka.connect import Connection, connect
from perkey.where import Condition, parse, text_of

#: for librdkafka's lines, of which a fenced producer writes some whatever its log_level
SILENT = logging.getLogger("perkey.silent")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

Where = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help='Such as \'error.type == "Timeout" and header.tenant == "acme"\'.',
    ),
]

Group = Annotated[
    str | None,
    typer.Option(
        callback=cluster.group_named,
        help="The group that records which were replayed. Default: perkey-replay.TOPIC.",
    ),
]


def parse_where(text: str) -> Condition:
    """Parse the condition; an error names the option."""
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"--where: {error}") from None


def place_of(text: str) -> Place:
    """`TOPIC:PARTITION:OFFSET`."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not all(one.isascii() and one.isdigit() and len(one) < 20 for one in (partition, offset)):
        raise ConfigError(f"{text!r:.80}: write TOPIC:PARTITION:OFFSET, such as orders.dlq:2:17")
    check_topic(topic)
    return Place(topic, int(partition), int(offset))


@contextmanager
def opened(topic: str, kafka: cluster.Cluster, group: str | None) -> Iterator[Box]:
    """The letters of a topic, and which were replayed, as far as permissions allow."""
    check_topic(topic)
    name = group or group_of(topic, None)
    connection = connected(kafka, name)
    with (
        cluster.answering(),
        bar() as on_progress,
        closing(Box(connection, topic, on_progress)) as box,
    ):
        box.read(name)
        yield box


def connected(kafka: cluster.Cluster, group: str) -> Connection:
    """Clients of this group, which has no members."""
    properties: dict[str, Any] = {**cluster.connection_of(kafka, group)}
    if not {"debug", "log_level"} & properties.keys():  # errors are in the exceptions
        properties = {"log_level": 2, "logger": SILENT, **properties}
    return connect(
        properties,
        {},
        group=group,
        buffer_records=10_000,
        buffer_bytes=64 * 2**20,
        delivery="exactly_once",
    )


class Bar:
    """A progress bar, shown on a terminal only."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._progress = None
        if wanted and sys.stderr.isatty():
            self._progress = Progress(console=Console(stderr=True), transient=True)
        self._tasks: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show `done` of `total`."""
        if self._progress is None:
            return
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what)
        self._progress.start()
        self._progress.update(self._tasks[what], completed=done, total=total)

    def hide(self) -> None:
        """Hide it while something is printed or asked; the next step shows it again."""
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def bar(*, wanted: bool = True) -> Iterator[Bar]:
    """A bar that is removed at the end."""
    made = Bar(wanted=wanted)
    try:
        yield made
    finally:
        made.hide()


def shown(data: bytes | None, chars_max: int) -> str:
    """Bytes for a terminal, with control characters escaped."""
    if data is None:
        return "null"
    text = cut(text_of(data[: 4 * chars_max]), chars_max)
    return text if len(data) <= 4 * chars_max or text.endswith("…") else f"{text}…"


def cut(text: str, chars_max: int) -> str:
    """The text with unprintable characters escaped, cut at this length."""
    safe = "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in text[: chars_max + 1]
    )
    return safe if len(safe) <= chars_max else f"{safe[:chars_max]}…"
