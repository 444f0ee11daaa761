"""Options of the commands that connect to a cluster, and the client settings they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from weft.errors import ConfigError, FatalError
from weft.kafka.ports import KafkaUnavailable
from weft.kafka.settings import ClientSettings, client_settings

#: where `weft broker up --port 9092` listens
LOCAL_BROKER = "localhost:9092"
#: limit for one broker response
ANSWER_S = 10.0

Bootstrap = Annotated[
    str, typer.Option("--bootstrap-servers", metavar="HOST:PORT,…", help="Broker addresses.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "-X", metavar="KEY=VALUE", help="A librdkafka property, such as security.protocol=SSL."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File of librdkafka properties, one key=value per line. Keeps secrets out of `ps`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def properties_of(pairs: Sequence[str] | None, config: Path | None) -> dict[str, str]:
    """Properties of the file, then of the -X options; values are never printed."""
    properties: dict[str, str] = {}
    if config is not None:
        try:
            lines = [line.strip() for line in config.expanduser().read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config} cannot be read: {error}") from None
        pairs = [line for line in lines if line and line[0] not in "#!"] + list(pairs or ())
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"property {name.strip()[:40]!r} has no value: write key=value")
        properties[name.strip()] = value.strip()
    return properties


def settings_of(bootstrap: str, pairs: Sequence[str] | None, config: Path | None) -> ClientSettings:
    """Settings of a command's Kafka clients; raises ConfigError."""
    properties = properties_of(pairs, config)
    if "bootstrap.servers" in properties:
        raise ConfigError("the property bootstrap.servers is set by --bootstrap-servers")
    return client_settings(
        {**properties, "bootstrap.servers": bootstrap},
        {},
        group="weft",  # never joined
        buffer_records=10_000,
        buffer_bytes=64 * 2**20,
        delivery="at_least_once",
    )


@contextmanager
def answering() -> Iterator[None]:
    """Turn an unreachable broker into one line and exit 1: it is not bad input."""
    try:
        yield
    except KafkaUnavailable as error:
        raise FatalError(str(error)) from None
