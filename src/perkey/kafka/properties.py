"""librdkafka's own table of properties: names, owners and accepted values.

Read from the library at run time, so it is the table of the version in use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from perkey.errors import did_you_mean
from perkey.kafka import clib

Scope = Literal["C", "P", "*"]

#: What confluent-kafka accepts besides librdkafka's properties, and by which client.
CALLBACKS: dict[str, Scope] = {
    "error_cb": "*",
    "throttle_cb": "*",
    "stats_cb": "*",
    "oauth_cb": "*",
    "logger": "*",
}

#: How librdkafka's table marks values that are C code.
_NOT_FROM_TEXT = "see dedicated API"

_ROW = re.compile(r"^(?P<name>[\w.]+)\s*\|\s*(?P<scope>[CP*])\s*\|(?P<range>[^|]*)\|")
_KIND = re.compile(r"\*Type: ([^*]+)\*\s*$")
_ALIAS = re.compile(r"Alias for `([\w.]+)`")
_NUMBERS = re.compile(r"^(-?\d+) \.\. (-?\d+)$")


@dataclass(frozen=True, slots=True)
class Property:
    """One property of librdkafka."""

    name: str
    #: C: of a consumer, P: of a producer, *: of every client
    scope: Scope
    #: "string", "integer", "boolean", "float", "enum value", "CSV flags", "pattern list", ...
    kind: str
    #: lowest and highest number, if it takes a number
    limits: tuple[int, int] | None
    #: the accepted words, if it takes one of a list
    choices: tuple[str, ...]
    #: the property's main name; the same as `name` unless that is an alias
    canonical: str

    @property
    def settable(self) -> bool:
        """Whether its value can be written as text at all."""
        return self.kind != _NOT_FROM_TEXT

    def wants(self) -> str:
        """The accepted values, as text."""
        if self.kind == "boolean":
            return "true or false"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.limits:
            noun = "a number" if self.kind == "float" else "a whole number"
            return f"{noun} from {self.limits[0]} to {self.limits[1]}"
        return "text"


@cache
def properties() -> dict[str, Property]:
    """Every property by its name."""
    return parsed(clib.properties_table())


def parsed(table: str) -> dict[str, Property]:
    """The table as data. A name may occur twice (client, topic): the first one wins."""
    properties: dict[str, Property] = {}
    for line in table.splitlines():
        row, kind = _ROW.match(line), _KIND.search(line)
        if row is None or kind is None:
            continue
        scope: Scope = {"C": "C", "P": "P"}.get(row["scope"], "*")  # type: ignore[assignment]  # the three it can be
        values = row["range"].strip()
        numbers = _NUMBERS.match(values)
        words = () if numbers or not values else tuple(v.strip() for v in values.split(","))
        alias = _ALIAS.search(line)
        limits = (int(numbers[1]), int(numbers[2])) if numbers else None
        main = alias[1] if alias else row["name"]
        entry = Property(row["name"], scope, kind[1], limits, words, main)
        properties.setdefault(entry.name, entry)
    return properties


def canonical(name: str) -> str:
    """The main name of a property; unknown names and callbacks are returned unchanged."""
    known = properties().get(name)
    return known.canonical if known else name


#: Names from other clients -> what to write here.
ELSEWHERE: dict[str, str] = {
    "fetch.max.wait.ms": "librdkafka calls it fetch.wait.max.ms",
    "default.api.timeout.ms": "librdkafka calls it socket.timeout.ms",
    "max.block.ms": "omit it: Perkey waits for room in the producer's queue by itself",
    "buffer.memory": "librdkafka calls it queue.buffering.max.kbytes",
    "max.request.size": "librdkafka calls it message.max.bytes",
    "send.buffer.bytes": "librdkafka calls it socket.send.buffer.bytes",
    "receive.buffer.bytes": "librdkafka calls it socket.receive.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": (
        "librdkafka calls it socket.connection.setup.timeout.ms"
    ),
    "sasl.jaas.config": "librdkafka takes sasl.username and sasl.password",
    "sasl.kerberos.kinit.cmd.path": "librdkafka calls it sasl.kerberos.kinit.cmd",
    "sasl.kerberos.ticket.renew.window.factor": (
        "librdkafka has sasl.kerberos.min.time.before.relogin"
    ),
    "sasl.client.callback.handler.class": "use oauth_cb, or sasl.oauthbearer.method=oidc",
    "sasl.login.callback.handler.class": "use oauth_cb, or sasl.oauthbearer.method=oidc",
    "sasl.login.class": "use oauth_cb, or sasl.oauthbearer.method=oidc",
    "ssl.truststore.location": "librdkafka reads PEM files: use ssl.ca.location",
    "ssl.truststore.password": "librdkafka reads PEM files: use ssl.ca.location",
    "ssl.truststore.type": "librdkafka reads PEM files: use ssl.ca.location",
    "ssl.truststore.certificates": "librdkafka calls it ssl.ca.pem",
    "ssl.keystore.type": "librdkafka reads PKCS#12 in ssl.keystore.location",
    "ssl.keystore.key": "librdkafka calls it ssl.key.pem",
    "ssl.keystore.certificate.chain": "librdkafka calls it ssl.certificate.pem",
    "ssl.enabled.protocols": "librdkafka uses OpenSSL: omit it",
    "ssl.protocol": "librdkafka uses OpenSSL: omit it",
    "key.deserializer": "keys are bytes: omit it",
    "value.deserializer": "use value= of @app.consume",
    "key.serializer": "keys are bytes: omit it",
    "value.serializer": "give perkey.Produce a value of bytes, or set output=",
    "exclude.internal.topics": "omit it, and subscribe to a pattern that does not match them",
    "interceptor.classes": "it is of the Java client alone: omit it",
    "metric.reporters": "it is of the Java client alone: use stats_cb",
    "partitioner.class": "librdkafka calls it partitioner",
    "log_cb": "use logger, with a logging.Logger",
    "default.topic.config": "write its properties beside the others",
    "dr_cb": "use app.results()",
    "dr_msg_cb": "use app.results()",
    "on_delivery": "use app.results()",
    "on_commit": "use App(on_commit=...)",
    "offset_commit_cb": "use App(on_commit=...)",
    "rebalance_cb": "use App(on_assign=..., on_revoke=...)",
    "consume_cb": "use @app.consume",
    "oauthbearer_token_refresh_cb": "use oauth_cb",
    "ssl_key": "use ssl.key.pem",
    "ssl_certificate": "use ssl.certificate.pem",
    "ssl_ca": "use ssl.ca.pem",
    # aiokafka's and kafka-python's names
    "bootstrap_servers": "librdkafka calls it bootstrap.servers",
    "auto_offset_reset": "librdkafka calls it auto.offset.reset",
    "security_protocol": "librdkafka calls it security.protocol",
    "sasl_mechanism": "librdkafka calls it sasl.mechanism",
    "sasl_plain_username": "librdkafka calls it sasl.username",
    "sasl_plain_password": "librdkafka calls it sasl.password",
}


def cure_for(name: str) -> str:
    """The replacement for a property that cannot be set."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    known = properties()
    if name in known:
        return "it is C code in librdkafka and cannot be set from Python: omit it"
    if (dotted := name.replace("_", ".")) in known:
        return f"did you mean {dotted}?"
    all_of_them = "librdkafka's CONFIGURATION.md lists all properties"
    return did_you_mean(name, [*known, *CALLBACKS], all_of_them, alike=0.75)
