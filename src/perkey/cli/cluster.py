"""Options of the commands that connect to a cluster, and the client settings they result in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from perkey.errors import ConfigError, FatalError
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import ClientSettings, client_settings

#: where `perkey broker up --port 9092` listens
LOCAL_BROKER = "localhost:9092"
#: limit for one broker response
ANSWER_S = 10.0


def group_named(given: str | None) -> str | None:
    """The value of --group; ConfigError if it is blank, at which the Kafka client aborts."""
    if given is not None and not given.strip():
        raise ConfigError(f"--group {given!r}: give the name of a consumer group")
    return given


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

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """The options of a command that connects to Kafka; see `spread`."""

    bootstrap_servers: Bootstrap = LOCAL_BROKER
    x: Properties = None
    config: ConfigFile = None

    def properties(self) -> dict[str, str]:
        """All properties for the command's Kafka clients; raises ConfigError."""
        properties = properties_of(self.x, self.config)
        if "bootstrap.servers" in properties:
            raise ConfigError("the property bootstrap.servers is set by --bootstrap-servers")
        return {**properties, "bootstrap.servers": self.bootstrap_servers}

    def settings(self) -> ClientSettings:
        """Settings of the command's Kafka clients; raises ConfigError."""
        return settings_of(self.properties())


class GroupOfRun(str):
    """A group whose run was found, and that run's connection without its secrets."""

    kafka: Mapping[str, str]
    __slots__ = ("kafka",)

    @classmethod
    def found(cls, context: typer.Context, group: str, kafka: Mapping[str, str]) -> GroupOfRun:
        """Its brokers are also the default of --bootstrap-servers: call it in an eager option."""
        made = cls(group)
        made.kafka = kafka
        if servers := kafka.get("bootstrap.servers"):
            context.default_map = {**(context.default_map or {}), "bootstrap_servers": servers}
        return made


def connection_of(kafka: Cluster, group: str) -> dict[str, str]:
    """All properties to read a group's commits: of the options, and of the run that was found."""
    run = group.kafka if isinstance(group, GroupOfRun) else {}
    if run.get("bootstrap.servers") != kafka.bootstrap_servers:
        run = {}  # the user names another cluster
    return {**run, **kafka.properties()}


def settings_of(properties: Mapping[str, str]) -> ClientSettings:
    """Settings of clients with these properties; raises ConfigError."""
    return client_settings(
        properties,
        {},
        group="perkey",  # never joined
        buffer_records=10_000,
        buffer_bytes=64 * 2**20,
        delivery="at_least_once",
    )


def spread(command: Callable[..., Result]) -> Callable[..., Result]:
    """Turn the fields of a command's dataclass parameters into options of the command.

    They come last. Shared options are written once this way: Typer reads a command's signature.
    """
    own, hints = signature(command).parameters, get_type_hints(command, include_extras=True)
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    options = [own[name].replace(annotation=hints[name]) for name in own if name not in groups]
    for kind in groups.values():
        hints = get_type_hints(kind, include_extras=True)
        given = signature(kind).parameters.values()
        options += [one.replace(annotation=hints[one.name]) for one in given]
    options = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in options]

    @wraps(command)
    def called(**values: Any) -> Result:
        made = {
            name: kind(**{one.name: values.pop(one.name) for one in fields(kind)})
            for name, kind in groups.items()
        }
        return command(**values, **made)

    called.__signature__ = Signature(options)  # type: ignore[attr-defined]  # as inspect has it
    called.__annotations__ = {one.name: one.annotation for one in options}
    return called


def properties_of(pairs: Sequence[str] | None, config: Path | None) -> dict[str, str]:
    """Properties of the file, then of the -X options; values are never printed."""
    #: the option, or the file and line, of each pair
    given: list[tuple[str, str]] = []
    if config is not None:
        try:
            lines = [line.strip() for line in config.expanduser().read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config} cannot be read: {error}") from None
        given = [
            (f"--config {config}, line {number}", line)
            for number, line in enumerate(lines, 1)
            if line and line[0] not in "#!"
        ]
    places: dict[str, str] = {}
    properties: dict[str, str] = {}
    for place, pair in [*given, *(("-X", one) for one in pairs or ())]:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"{place}: property {name.strip()[:40]!r} has no value: write key=value"
            )
        properties[name.strip()], places[name.strip()] = value.strip(), place
    if config is not None:
        _check_named(properties, places)
    return properties


def _check_named(properties: Mapping[str, str], places: Mapping[str, str]) -> None:
    """ConfigError for a refused property; it names the file and line."""
    try:
        settings_of({"bootstrap.servers": LOCAL_BROKER, **properties})
    except ConfigError as error:
        named = [place for name, place in places.items() if name in str(error)]
        raise ConfigError(f"{named[0]}: {error}" if named else str(error)) from None


@contextmanager
def answering() -> Iterator[None]:
    """Turn an unreachable broker into one line and exit 1, as the input is not at fault."""
    try:
        yield
    except KafkaUnavailable as error:
        raise FatalError(str(error)) from None
