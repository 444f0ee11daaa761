"""`perkey produce`: send the lines of a file, to try an example."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import Progress

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.cli.topics import check_topic
from perkey.errors import ConfigError, FatalError
from perkey.kafka.admin import KafkaAdmin
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.ports import Delivery, OutMessage
from perkey.kafka.producer import KafkaProducer
from perkey.kafka.settings import ClientSettings

LINE_BYTES_MAX = 8 * 2**20  # brokers refuse records of that size by default
DELIVERY_S = 30.0
QUEUE_WAIT_S = 0.01
SHOW_AFTER_S = 2.0


@cluster.spread
def produce(
    topic: Annotated[str, typer.Argument(help="The topic; create it with `perkey topics create`.")],
    kafka: cluster.Cluster,
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="One record per line. Default: stdin.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every record. Default: none.")] = None,
) -> None:
    """Send each line of a file or of stdin as a record.

    Empty lines are skipped.

    Example: echo '{"speed_kmh": 150}' | perkey produce gps.positions --key car-7
    """
    check_topic(topic)
    settings = kafka.settings()
    with _opened(file) as (lines, size):
        with cluster.answering(), KafkaAdmin(settings) as admin:
            if topic not in admin.describe([topic], cluster.ANSWER_S):
                at = kafka.bootstrap_servers
                where = "" if at == cluster.LOCAL_BROKER else f" --bootstrap-servers {at}"
                raise ConfigError(
                    f"topic {topic} does not exist at {at}: perkey topics create {topic}{where}"
                )
        in_bytes = None if key is None else key.encode(errors="surrogateescape")
        _Sending(settings, topic, in_bytes).send(lines, size)


@contextmanager
def _opened(file: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """The input, and its size if known."""
    if file is None or file == "-":
        if sys.stdin.isatty():
            typer.echo("One record per line; Ctrl-D ends.", err=True)
        yield sys.stdin.buffer, None
        return
    path = Path(file).expanduser()
    try:
        opened = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    with opened:
        yield opened, path.stat().st_size if path.is_file() else None


class _Sending:
    """Sends the records of one command."""

    def __init__(self, settings: ClientSettings, topic: str, key: bytes | None) -> None:
        # Errors are reported once, at the end.
        quiet = {"log_level": 2, "message.timeout.ms": int(DELIVERY_S * 1000)}
        config = {**quiet, **settings.producer}
        self._producer = KafkaProducer(with_client_log(config))
        self._topic = topic
        self._key = key
        self._sent = 0
        self._empty = 0
        self._error = ""

    def send(self, lines: BinaryIO, size: int | None) -> None:
        """Send all lines, wait for the broker, and print how many it has stored."""
        console = Console(stderr=True)
        began, progress = time.monotonic(), Progress(console=console, transient=True)
        task = progress.add_task("sending", total=size)
        try:
            for number, line in enumerate(_lines(lines), 1):
                self._one(line)
                if number % 1000 == 0 and time.monotonic() - began > SHOW_AFTER_S:
                    progress.start()
                    progress.update(task, completed=lines.tell() if size else number)
                if self._error:
                    break
            self._producer.flush(DELIVERY_S)
        finally:
            if progress.live.is_started:
                progress.stop()
            self._producer.close(QUEUE_WAIT_S)
            empty = f" ({counted(self._empty, 'empty line')} skipped)" if self._empty else ""
            typer.echo(f"{counted(self._sent, 'record')} sent to {self._topic}{empty}")
        if self._error:
            raise FatalError(self._error)

    def _one(self, line: bytes) -> None:
        if not line:
            self._empty += 1
            return
        message = OutMessage(self._topic, line, self._key, (), None)
        while True:
            try:
                self._producer.send(message, self._delivered)
            except BufferError:
                time.sleep(QUEUE_WAIT_S)  # its queue is full: the broker is slower than the file
            else:
                return

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is None:
            self._sent += 1
        else:
            self._error = self._error or f"{delivery.error.message} ({delivery.error.type})"


def _lines(opened: BinaryIO) -> Iterator[bytes]:
    while line := opened.readline(LINE_BYTES_MAX + 2):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if len(text) > LINE_BYTES_MAX:
            raise ConfigError(
                f"a line is longer than {LINE_BYTES_MAX} bytes: write one record per line"
            )
        yield text
