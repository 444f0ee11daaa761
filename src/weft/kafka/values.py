"""Check one property value; the error names property and value, but no secret."""

from __future__ import annotations

import logging
import re
from typing import Any

from weft.errors import ConfigError
from weft.kafka.properties import CALLBACKS, Property, properties
from weft.kafka.secrets import is_shown

_TRUE_FALSE = frozenset({"true", "false", "t", "f", "1", "0"})
#: Whole numbers that librdkafka also takes as a word, by their main names.
_WORDS = {"request.required.acks": ("all",)}
#: librdkafka takes an empty text for these, and the broker refuses every join.
_NEVER_EMPTY = frozenset({"group.instance.id", "partition.assignment.strategy"})
_PORT_MAX = 65_535
_ADDRESS = re.compile(
    r"^(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(?P<port>\d+))?$"
)


def checked_value(name: str, value: Any, option: str) -> Any:
    """The value, if the property takes it; raises ConfigError."""
    if name in CALLBACKS:
        return _callback(name, value, option)
    known = properties()[name]
    if value is None or (name in _NEVER_EMPTY and not str(value).strip()):
        raise ConfigError(
            f"{option}: {name} is {'None' if value is None else 'empty'}: give a value or remove "
            "it (is an environment variable not set?)"
        )
    if not isinstance(value, str | int | float):
        raise ConfigError(
            f"{option}: {name} is a {type(value).__name__}: it takes {known.wants()}"
            + (", several separated by commas" if isinstance(value, list | tuple | set) else "")
        )
    if not _takes(known, value):
        shown = f" {value!r:.60}" if is_shown(name) else " its value"
        raise ConfigError(f"{option}: {name} takes {known.wants()}, not{shown}")
    return value


def _callback(name: str, value: Any, option: str) -> Any:
    if name == "logger":
        if not isinstance(value, logging.Logger | logging.LoggerAdapter):
            raise ConfigError(
                f"{option}: logger takes a logging.Logger, not {type(value).__name__}"
            )
    elif not callable(value):
        raise ConfigError(f"{option}: {name} takes a function, not {type(value).__name__}")
    return value


def _takes(known: Property, value: str | float) -> bool:
    """Whether the text of a value is right; librdkafka would read "10.5" as 10."""
    text = str(value).strip()
    if known.kind == "boolean":
        return text.lower() in _TRUE_FALSE
    if isinstance(value, bool):
        return False
    if known.kind in ("enum value", "CSV flags"):
        return not known.choices or _are_words(text, known)
    if text in _WORDS.get(known.canonical, ()):
        return True
    if known.limits and known.kind in ("integer", "float"):
        amount = _number(text, whole=known.kind == "integer")
        return amount is not None and known.limits[0] <= amount <= known.limits[1]
    return True


def _are_words(text: str, known: Property) -> bool:
    """Whether it is a word that the property knows, or several of them for flags."""
    words = {word.lower() for word in known.choices}
    if known.kind == "enum value":
        return text.lower() in words
    return all(flag.strip().lower().lstrip("-") in words for flag in text.split(","))


def _number(text: str, *, whole: bool) -> float | None:
    try:
        return int(text, 0) if whole else float(text)
    except ValueError:
        return None


_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")


def check_addresses(kafka: dict[str, Any]) -> None:
    """Refuse a configuration without brokers, and addresses that cannot be any."""
    name = "metadata.broker.list" if "metadata.broker.list" in kafka else "bootstrap.servers"
    entries = [entry.strip() for entry in str(kafka.get(name, "")).split(",")]
    if not any(entries):
        raise ConfigError(
            'kafka: bootstrap.servers is missing: kafka={"bootstrap.servers": "localhost:9092"}'
        )
    for entry in entries:
        match = _ADDRESS.match(entry)
        port = int(match["port"] or 1) if match else 0
        if "@" in entry:  # not shown: what stands before it is a password
            raise ConfigError(
                f"kafka: {name} has a user or a password in an address: write host:port, and give "
                "those as sasl.username and sasl.password"
            )
        scheme, web, _ = entry.partition("://")
        if web and scheme.lower() not in _PROTOCOLS:
            raise ConfigError(
                f"kafka: {name} has {entry!r:.80}, which is not the address of a broker: write "
                "host:port, without http://"
            )
        if match is None or not 1 <= port <= _PORT_MAX or entry.isdigit():  # a port alone
            raise ConfigError(
                f"kafka: {name} has {entry!r:.80}, which is not an address: write host:port, "
                "several separated by commas"
            )
