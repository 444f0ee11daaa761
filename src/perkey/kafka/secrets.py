"""Which parts of a Kafka configuration may be shown; everything else is masked in all texts.

What is *shown* follows an allow-list: a property that librdkafka adds tomorrow is hidden until it
is added to the list. What is *removed* from an error or a log line is every hidden value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from perkey.kafka.properties import CALLBACKS, properties

MASK = "***"

#: free-text properties without secrets
SHOWN = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.codec",
        "compression.type",
        "debug",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.protocol.type",
        "group.remote.assignor",
        "isolation.level",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "partitioner",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.mechanisms",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.cipher.suites",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "topic.blacklist",
        "transactional.id",
    }
)

#: Kinds of librdkafka's properties whose values come from a fixed set or are numbers.
_PLAIN_KINDS = frozenset({"boolean", "integer", "float", "enum value", "CSV flags"})

#: Names whose values are secret even where they are short.
_SENSITIVE = re.compile(
    r"password|passphrase|secret|token|pem|jaas|credential|key\.location|private\.key|username"
    r"|oauthbearer\.config"
)

#: how a client reaches the brokers and logs in
_CONNECTS = re.compile(
    r"(bootstrap\.servers|metadata\.broker\.list|security\.protocol|broker\.address\.family|client\.dns\.lookup)$"
    r"|(sasl|ssl|enable\.ssl|enable\.sasl)\."
)

#: A hidden value shorter than this is a word like "read", not a secret: removing it from every
#: text would garble it. Values of the sensitive names above are removed whatever their length.
_WORD_LENGTH = 6


def is_shown(name: str) -> bool:
    """Whether the value of this property may be seen."""
    if name in SHOWN:
        return True
    known = properties().get(name)
    return known is not None and known.kind in _PLAIN_KINDS and not _SENSITIVE.search(name)


def connecting(config: Mapping[str, Any]) -> dict[str, str]:
    """The properties with which another program of this user connects, without secrets."""
    return {
        "bootstrap.servers" if name == "metadata.broker.list" else name: str(value)
        for name, value in config.items()
        if _CONNECTS.match(name) and is_shown(name) and not callable(value)
    }


def redacted(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with every value that may be secret as `"***"`, callbacks as a word."""
    # A callable's repr may contain what it closes over: functools.partial shows its arguments.
    return {
        name: "<set>"
        if callable(value) or name in CALLBACKS
        else (value if is_shown(name) else MASK)
        for name, value in config.items()
    }


def scrub(text: str, config: Mapping[str, Any]) -> str:
    """The text with every secret value of the configuration replaced by `***`."""
    pieces = {
        piece
        for name, value in config.items()
        if isinstance(value, str | int | float) and not is_shown(name)
        for piece in _pieces(str(value))
        if piece and (_SENSITIVE.search(name) or len(piece) >= _WORD_LENGTH)
    }
    secrets = {  # as they are, and as Python's repr, JSON and a URL write them
        written
        for piece in pieces
        for written in (piece, repr(piece)[1:-1], json.dumps(piece)[1:-1], quote(piece, safe=""))
    }
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _WORD_LENGTH:
            text = text.replace(secret, MASK)
        else:  # Inside of words it is chance.
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return text


def _pieces(value: str) -> Iterator[str]:
    """The value, its lines (of a PEM), and the values in it (`principal=x scope=y`)."""
    yield value
    yield value.strip()
    if "\n" in value or "=" in value:
        words = re.split(r"[\s,;]+", value)
        yield from (word for word in words if len(word) >= _WORD_LENGTH and "--" not in word)
        parts = (word.partition("=")[2].strip("\"'") for word in words)
        yield from (part for part in parts if len(part) >= _WORD_LENGTH)
