"""Convert the user's `kafka` and `producer` dicts to the settings of Perkey's three clients.

Everything is checked here, without a network: names, ranges, values, and what librdkafka itself
rejects when it creates a client (one without an address, closed within a millisecond).
librdkafka's queues may hold a share of the member's budget.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from perkey.errors import ConfigError
from perkey.kafka.probing import check_combination
from perkey.kafka.properties import CALLBACKS, Property, canonical, cure_for, properties
from perkey.kafka.secrets import is_shown, redacted
from perkey.policies import is_c_text
from perkey.types import DeliveryName

__all__ = ["ClientSettings", "DeliveryName", "client_settings"]

Config = dict[str, Any]

#: librdkafka's own defaults
_HEARTBEAT_MS, _SESSION_MS = 3_000, 45_000
_HOST_CHARS_MAX = 100

_log = logging.getLogger("perkey.kafka")

#: Properties that Perkey sets itself, by their main names -> what to use instead.
OWNED: dict[str, str] = {
    "group.id": "use App(group=...)",
    "enable.auto.commit": "Perkey commits what is done: use commit=perkey.Commit(...)",
    "auto.commit.enable": "Perkey commits what is done: use commit=perkey.Commit(...)",
    "enable.auto.offset.store": "Perkey commits what is done: use commit=perkey.Commit(...)",
    "enable.partition.eof": 'Perkey needs it: use until="drained" to stop at the end',
    "enable.idempotence": "Perkey needs it: use delivery=... to choose what is promised",
    "transactional.id": 'use delivery="exactly_once", which chooses it',
    # Without it a delivered message is never acknowledged, and its record never done.
    "delivery.report.only.error": "Perkey needs every acknowledgement: use app.results()",
}

#: Accepted like any librdkafka property, but without effect here: logged once.
_NO_EFFECT = {
    "auto.commit.interval.ms": "use commit=perkey.Commit(interval_s=...)",
    "max.poll.records": "use buffer_records and concurrency",
}


@dataclass(frozen=True, slots=True, repr=False)
class ClientSettings:
    """The settings of the consumer, the producer and the admin client. Holds secrets.

    Its repr masks them; pickling keeps them (Spark's tasks need them).
    """

    consumer: Config
    producer: Config
    admin: Config = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={redacted(getattr(self, name))}" for name in ("consumer", "producer", "admin")
        )
        return f"ClientSettings({shown})"

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, for messages."""
        given = self.admin.get("bootstrap.servers") or self.admin.get("metadata.broker.list")
        return str(given)


#: Values that Perkey looks at, too. librdkafka accepts them in any case, as in Java's "CONSUMER".
_LOOKED_AT = {"auto.offset.reset", "group.protocol", "isolation.level"}


def client_settings(
    kafka: Mapping[str, Any],
    producer: Mapping[str, Any],
    *,
    group: str,
    buffer_records: int,
    buffer_bytes: int,
    delivery: DeliveryName,
    fleet_instance_id: str | None = None,
) -> ClientSettings:
    """Sort, check and complete the user's properties; raises ConfigError in one line.

    `kafka` has properties of any client, `producer` of the producer alone (it wins there).
    `buffer_records` and `buffer_bytes` bound one member; the clients' own queues get a part of it.
    `fleet_instance_id` is the static id of this member of a fleet.
    """
    shared, own = _checked(kafka, "kafka", "CP*"), _checked(producer, "producer", "P*")
    if fleet_instance_id is not None and "group.instance.id" in shared:
        raise ConfigError(
            "kafka: group.instance.id is set by Perkey on a fleet: use members=..., which gives "
            "each member its own"
        )
    for name in _LOOKED_AT & shared.keys():
        shared[name] = str(shared[name]).strip().lower()
    level = shared.get("isolation.level", "read_committed")
    if delivery == "exactly_once" and level != "read_committed":
        raise ConfigError(
            f'kafka: isolation.level={level} with delivery="exactly_once" would read what is '
            "aborted later: remove it, or use another delivery"
        )
    # The broker removes a member with too few heartbeats, again and again.
    beat_ms = int(str(shared.get("heartbeat.interval.ms", _HEARTBEAT_MS)), 0)
    session_ms = int(str(shared.get("session.timeout.ms", _SESSION_MS)), 0)
    if beat_ms >= session_ms and shared.get("group.protocol") != "consumer":
        raise ConfigError(
            f"kafka: heartbeat.interval.ms ({beat_ms}) must be below session.timeout.ms "
            f"({session_ms}): set it to a third of that, or remove it"
        )
    # Without a token source, librdkafka waits for a token forever and silently.
    of = {canonical(name): str(value).strip().lower() for name, value in shared.items()}
    logs_in = of.get("security.protocol", "").startswith("sasl_")
    if logs_in and of.get("sasl.mechanisms") == "oauthbearer" and "oauth_cb" not in shared:
        unsecured = of.get("enable.sasl.oauthbearer.unsecure.jwt") in ("true", "t", "1")
        if of.get("sasl.oauthbearer.method", "default") == "default" and not unsecured:
            raise ConfigError(
                "kafka: sasl.mechanism=OAUTHBEARER has no way to its token: give oauth_cb, or "
                "sasl.oauthbearer.method=oidc"
            )
    if "oauth_cb" in shared:
        shared["oauth_cb"] = partial(_token, shared["oauth_cb"])
    left_out = {"statistics.interval.ms", "stats_cb", "error_cb", "throttle_cb"}
    settings = ClientSettings(
        consumer=_consumer(shared, group, buffer_records, buffer_bytes, fleet_instance_id),
        producer=_producer(shared, own, buffer_bytes),
        admin={n: v for n, v in _of(shared, "*").items() if n not in left_out},
    )
    check_combination(settings.consumer, settings.producer)
    return settings


def _checked(given: object, option: str, scopes: str) -> Config:
    """The properties of one dictionary: each known, settable, not set by Perkey, of its type."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__  # Not the value: it may contain a password.
        raise ConfigError(f"{option} must be a dict of librdkafka properties, not a {kind}")
    result: Config = {}
    givers: dict[str, str] = {}
    for name, value in given.items():
        _check_name(name, option, scopes)
        twin = givers.setdefault(canonical(name), name)
        if twin != name:
            raise ConfigError(f"{option}: {twin} and {name} are the same property: give one")
        result[name] = checked_value(name, value, option)
    if option == "kafka":
        check_addresses(result)
    return result


def _check_name(name: object, option: str, scopes: str) -> None:
    """Refuse unknown properties, those that Perkey sets, and those of the other dictionary."""
    if not isinstance(name, str):
        raise ConfigError(f"{option}: {name!r:.60} is no property: their names are text")
    if name in OWNED:
        raise ConfigError(f"{option}: {name} is set by Perkey: {OWNED[name]}")
    if name in CALLBACKS:
        return
    known = properties().get(name)
    if known is None or not known.settable:
        verb = "unknown" if known is None else "not settable"
        raise ConfigError(f"{option}: {name} is {verb}: {cure_for(name)}")
    if known.scope not in scopes:
        raise ConfigError(f"{option}: {name} is a property of consumers: put it into kafka")
    if name in _NO_EFFECT:
        _log.warning("%s: %s has no effect: %s", option, name, _NO_EFFECT[name])


def _token(function: Callable[[str], Any], config: str) -> Any:
    """Call the user's `oauth_cb`; log its exceptions, which librdkafka would swallow."""
    try:
        return function(config)
    except Exception as error:
        _log.error(
            "oauth_cb raised %s: %s: there is no token, it is called again",
            type(error).__name__,
            error,
            exc_info=True,
        )
        raise


def _of(config: Config, scopes: str) -> Config:
    """The part of a configuration that clients of these scopes accept."""
    return {
        name: value
        for name, value in config.items()
        if (CALLBACKS.get(name) or properties()[name].scope) in scopes
    }


def _with_defaults(config: Config, defaults: Config) -> Config:
    """The configuration plus each default that it does not set under any of its names."""
    given = {canonical(name) for name in config}
    return {n: v for n, v in defaults.items() if canonical(n) not in given} | config


def _consumer(
    kafka: Config, group: str, records: int, size_bytes: int, instance_id: str | None
) -> Config:
    config = _with_defaults(
        _of(kafka, "C*"),
        {
            "auto.offset.reset": "earliest",
            # librdkafka pauses for one second after its queue was full.
            "fetch.queue.backoff.ms": 10,
            "isolation.level": "read_committed",
        },
    )
    config = _with_defaults(config, consumer_budget(config, records, size_bytes))
    config |= {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }
    return config if instance_id is None else config | {"group.instance.id": instance_id}


def _producer(kafka: Config, own: Config, size_bytes: int) -> Config:
    """`own` wins over `kafka`, also if they use two names of one property."""
    overruled = {canonical(name) for name in own}
    shared = {n: v for n, v in _of(kafka, "P*").items() if canonical(n) not in overruled}
    config = _with_defaults(
        shared | own,
        {
            "linger.ms": 5,
            # Java's partitioner: keys go where Java's producers and Perkey's Spark sink send them.
            "partitioner": "murmur2_random",
            # A missing topic is reported after this time, at each attempt: librdkafka's 30 s make
            # a typo look like a stall.
            "topic.metadata.propagation.max.ms": 5_000,
        },
    )
    config = _with_defaults(config, producer_budget(config, size_bytes))
    return config | {"enable.idempotence": True}


def with_own_id(consumer: Config) -> Config:
    """The same with a generated static id, for a classic member without a configured one.

    If all brokers are away for longer than a session, librdkafka forgets its member id and joins as
    a new member, and the group waits a whole session more for the old one. A static member takes
    its own place again. Each run has another id, so that two never fence each other.
    """
    if "group.instance.id" in consumer or consumer.get("group.protocol") == "consumer":
        return consumer
    host = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname())[:_HOST_CHARS_MAX]
    return {**consumer, "group.instance.id": f"{host}-{os.getpid()}-{secrets.token_hex(6)}"}


def is_incremental(config: Mapping[str, Any]) -> bool:
    """Whether the group moves single partitions, instead of all of them at every rebalance."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return config.get("group.protocol") == "consumer" or "cooperative" in strategy


#: Parts of `buffer_bytes`: fetched records not polled yet; one broker's next response, by which
#: that queue may exceed its limit; unacknowledged outputs. With 64 partitions of 1 MB records a
#: process then uses about 80 MB more than `buffer_bytes` (133 MB with twice the parts).
_QUEUE_PART, _FETCH_PART, _PRODUCER_PART = 8, 16, 4

#: librdkafka's overhead per queued record; small records are mostly that.
RECORD_OVERHEAD_BYTES = 512

#: Below this many queued records librdkafka fetches again, up to one response of 1 MB per partition
#: more. Its default of 100,000 is no faster, and the last of ten million records then find 13 %
#: more memory in use than the second million did (with this: 2 %; benchmarks/run.py memory).
_QUEUE_MAX_RECORDS = 10_000
#: librdkafka's own defaults, which a large budget does not exceed: more only delays a revoke.
_QUEUE_MAX_KBYTES = 65_536
_FETCH_MAX_BYTES = 52_428_800
_PARTITION_FETCH_MAX_BYTES = 1_048_576
_MESSAGE_MAX_BYTES = 1_000_000
_QUEUE_MIN_BYTES = 1024
#: the minimum that librdkafka accepts
_MESSAGE_MIN_BYTES = 1000
#: Below the 100 MB that a broker reads by default.
_REQUEST_MAX_BYTES = 64 * 2**20
#: The overhead of a response around its records, by librdkafka's own check.
_RESPONSE_FRAME_BYTES = 512


def number(config: Config, name: str, default: int) -> int:
    """A whole number from the configuration, under any of its names."""
    for given, value in config.items():
        if canonical(given) == canonical(name):
            return int(value)
    return default


def consumer_budget(config: Config, records: int, size_bytes: int) -> Config:
    """Queue and fetch sizes of a consumer, in addition to what the user has set.

    librdkafka refuses a `fetch.max.bytes` below `message.max.bytes`, and a
    `receive.message.max.bytes` below `fetch.max.bytes` and its frame.
    """
    queue_bytes = max(size_bytes // _QUEUE_PART, _QUEUE_MIN_BYTES)
    response_bytes = max(size_bytes // _FETCH_PART, _QUEUE_MIN_BYTES)
    message_bytes = number(config, "message.max.bytes", _MESSAGE_MAX_BYTES)
    fetch_bytes = min(response_bytes, _FETCH_MAX_BYTES)
    receive_bytes = number(config, "receive.message.max.bytes", 0)
    if receive_bytes:
        fetch_bytes = min(fetch_bytes, receive_bytes - _RESPONSE_FRAME_BYTES)
    queued = min(records, queue_bytes // RECORD_OVERHEAD_BYTES, _QUEUE_MAX_RECORDS)
    return {
        "queued.min.messages": max(queued, 1),
        "queued.max.messages.kbytes": min(queue_bytes // 1024, _QUEUE_MAX_KBYTES),
        "fetch.max.bytes": max(fetch_bytes, message_bytes),
        "max.partition.fetch.bytes": min(response_bytes, _PARTITION_FETCH_MAX_BYTES),
    }


def producer_budget(config: Config, size_bytes: int) -> Config:
    """The producer's queue: its part of the budget, but always room for some large messages."""
    message_bytes = number(config, "message.max.bytes", _MESSAGE_MAX_BYTES)
    limit = properties()["queue.buffering.max.kbytes"].limits
    kbytes = max(size_bytes // _PRODUCER_PART, 4 * message_bytes) // 1024
    kbytes = min(kbytes, limit[1] if limit else kbytes)
    queue_bytes = 1024 * number(config, "queue.buffering.max.kbytes", kbytes)
    return {
        "queue.buffering.max.kbytes": kbytes,
        # The broker decides what is too large. A message larger than the queue would wait for room
        # forever; a request past the broker's socket.request.max.bytes cuts the connection.
        "message.max.bytes": max(_MESSAGE_MIN_BYTES, min(queue_bytes, _REQUEST_MAX_BYTES)),
    }


_TRUE_FALSE = frozenset({"true", "false", "t", "f", "1", "0"})
#: Whole numbers that librdkafka also accepts as a word, by their main names.
_WORDS = {"request.required.acks": ("all",)}
#: librdkafka accepts an empty text for these, and then the broker refuses every join.
_NEVER_EMPTY = frozenset({"group.instance.id", "partition.assignment.strategy"})
_PORT_MAX = 65_535
_ADDRESS = re.compile(
    r"^(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+)(?::(?P<port>\d+))?$"
)


def checked_value(name: str, value: Any, option: str) -> Any:
    """The value, if the property accepts it; raises ConfigError."""
    if name in CALLBACKS:
        if name == "logger":
            if not isinstance(value, logging.Logger | logging.LoggerAdapter):
                raise ConfigError(
                    f"{option}: logger takes a logging.Logger, not {type(value).__name__}"
                )
        elif not callable(value):
            raise ConfigError(f"{option}: {name} takes a function, not {type(value).__name__}")
        return value
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
    if isinstance(value, str) and not is_c_text(value):
        raise ConfigError(f"{option}: {name} has characters that librdkafka cannot take (NUL?)")
    if not _takes(known, value):
        shown = f" {value!r:.60}" if is_shown(name) else " its value"
        raise ConfigError(f"{option}: {name} takes {known.wants()}, not{shown}")
    return value


def _takes(known: Property, value: str | float) -> bool:
    """Whether the text of a value is valid; librdkafka would read "10.5" as 10."""
    text = str(value).strip()
    if known.kind == "boolean":
        return text.lower() in _TRUE_FALSE
    if isinstance(value, bool):
        return False
    words = {word.lower() for word in known.choices}
    if known.kind == "enum value":
        return not words or text.lower() in words
    if known.kind == "CSV flags":
        flags = (flag.strip().lower().lstrip("-") for flag in text.split(","))
        return not words or words.issuperset(flags)
    if text in _WORDS.get(known.canonical, ()):
        return True
    if known.limits and known.kind in ("integer", "float"):
        try:
            amount = int(text, 0) if known.kind == "integer" else float(text)
        except ValueError:
            return False
        return known.limits[0] <= amount <= known.limits[1]
    return True


_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")


def check_addresses(kafka: Mapping[str, Any], option: str = "kafka: ") -> None:
    """Refuse a configuration without brokers, and invalid addresses.

    `option`: what comes before a property's name in an error.
    """
    name = "metadata.broker.list" if "metadata.broker.list" in kafka else "bootstrap.servers"
    entries = [entry.strip() for entry in str(kafka.get(name, "")).split(",")]
    if not any(entries):
        raise ConfigError(
            'kafka: bootstrap.servers is missing: kafka={"bootstrap.servers": "localhost:9092"}'
        )
    for entry in entries:
        match = _ADDRESS.match(entry)
        port = int(match["port"] or 1) if match else 0
        if "@" in entry:  # not shown: the part before it is a password
            raise ConfigError(
                f"{option}{name} has a user or a password in an address: write host:port, and give "
                "those as sasl.username and sasl.password"
            )
        scheme, web, _ = entry.partition("://")
        if web and scheme.lower() not in _PROTOCOLS:
            raise ConfigError(
                f"{option}{name} has {entry!r:.80}, which is not the address of a broker: write "
                "host:port, without http://"
            )
        if match is None or not 1 <= port <= _PORT_MAX or entry.isdigit():  # a port alone
            raise ConfigError(
                f"{option}{name} has {entry!r:.80}, which is not an address: write host:port, "
                "several separated by commas"
            )
