"""`perkey topics`: create the topics that an example needs. Not a Kafka admin tool."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer

from perkey.account.shown import counted
from perkey.cli import cluster
from perkey.errors import ConfigError
from perkey.kafka.admin import KafkaAdmin

PARTITIONS_MAX = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _topics() -> None:
    """Create the topics that an example needs.

    Example: perkey topics create orders
    """


@app.command()
@cluster.spread
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="The topics.")],
    kafka: cluster.Cluster,
    partitions: Annotated[
        int | None, typer.Option(help="Partitions of each. Default: the broker's setting.")
    ] = None,
    as_json: cluster.Json = False,
) -> None:
    """Create topics that do not exist.

    They have the cluster's default replication. Existing topics are not changed.

    Example: perkey topics create gps.positions gps.alerts --partitions 4
    """
    for name in names:
        check_topic(name)
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        raise ConfigError(f"--partitions {partitions}: give a number from 1 to {PARTITIONS_MAX}")
    settings = kafka.settings()
    made = []
    with cluster.answering(), KafkaAdmin(settings) as admin:
        for name in dict.fromkeys(names):
            is_new = admin.create_topic(name, partitions or -1, timeout_s=cluster.ANSWER_S)
            count = admin.describe([name], cluster.ANSWER_S)[name].partitions
            if partitions is not None and partitions != count:
                raise ConfigError(
                    f"topic {name} already exists with {counted(count, 'partition')}, not "
                    f"{partitions}: omit --partitions or choose another name"
                )
            made.append({"topic": name, "partitions": count, "created": is_new})
            if not as_json:
                what = "created" if is_new else "already exists"
                typer.echo(f"{name}: {what}, {counted(count, 'partition')}")
    if as_json:
        typer.echo(json.dumps(made))


def check_topic(name: str) -> None:
    """ConfigError for an invalid topic name."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"{name!r:.80} cannot be a topic: Kafka allows letters, digits, '.', '_' and '-', at "
            "most 249"
        )
