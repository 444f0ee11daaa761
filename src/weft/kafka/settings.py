"""Convert the user's `kafka` and `producer` dicts to the settings of Weft's three clients.

Everything is checked here, without a network: names, ranges, words, and what librdkafka itself
finds wrong when it makes a client (one without an address, gone again within a millisecond).
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

from weft.errors import ConfigError
from weft.kafka.budgets import consumer_budget, producer_budget
from weft.kafka.probing import check_combination
from weft.kafka.properties import CALLBACKS, Scope, canonical, cure_for, properties
from weft.kafka.secrets import redacted
from weft.kafka.values import check_addresses, checked_value
from weft.types import DeliveryName

__all__ = ["ClientSettings", "DeliveryName", "client_settings"]

Config = dict[str, Any]

#: librdkafka's own defaults
_HEARTBEAT_MS, _SESSION_MS = 3_000, 45_000
_HOST_CHARS_MAX = 100

_log = logging.getLogger("weft.kafka")

#: Properties that Weft sets itself, by their main names -> what to use instead.
OWNED: dict[str, str] = {
    "group.id": "use App(group=...)",
    "enable.auto.commit": "Weft commits what is done: use commit=weft.Commit(...)",
    "auto.commit.enable": "Weft commits what is done: use commit=weft.Commit(...)",
    "enable.auto.offset.store": "Weft commits what is done: use commit=weft.Commit(...)",
    "enable.partition.eof": 'Weft needs it: use until="drained" to stop at the end',
    "enable.idempotence": "Weft needs it: use delivery=... to choose what is promised",
    "transactional.id": 'use delivery="exactly_once", which chooses it',
    # Without it a delivered message is never acknowledged, and its record never done.
    "delivery.report.only.error": "Weft needs every acknowledgement: use app.results()",
}

#: Accepted like any librdkafka property, but without effect here: logged once.
_NO_EFFECT = {
    "auto.commit.interval.ms": "use commit=weft.Commit(interval_s=...)",
    "max.poll.records": "use buffer_records and concurrency",
}


@dataclass(frozen=True, slots=True, repr=False)
class ClientSettings:
    """What the consumer, the producer and the admin client are made with. Holds secrets.

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
    """Sort, check and complete what the user gave; raises ConfigError in one line.

    `kafka` has properties of any client, `producer` of the producer alone (it wins there).
    `buffer_records` and `buffer_bytes` bound one member; the clients' own queues get a part of it.
    `fleet_instance_id` is the static id of this member of a fleet.
    """
    shared, own = _checked(kafka, "kafka", "CP*"), _checked(producer, "producer", "P*")
    _check_fleet(shared, fleet_instance_id)
    _check_isolation(shared, delivery)
    _check_heartbeat(shared)
    _check_oauth(shared)
    if "oauth_cb" in shared:
        shared["oauth_cb"] = partial(_token, shared["oauth_cb"])
    settings = ClientSettings(
        consumer=_consumer(shared, group, buffer_records, buffer_bytes, fleet_instance_id),
        producer=_producer(shared, own, buffer_bytes),
        admin=_admin(shared),
    )
    check_combination(settings.consumer, settings.producer)
    return settings


def _checked(given: object, option: str, scopes: str) -> Config:
    """The properties of one dictionary, each known, settable, not Weft's own, and of its type."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__  # Not the value: it may hold a password.
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
    """Refuse what is unknown, what Weft owns, and what belongs in the other dictionary."""
    if not isinstance(name, str):
        raise ConfigError(f"{option}: {name!r:.60} is no property: their names are text")
    if name in OWNED:
        raise ConfigError(f"{option}: {name} is set by Weft: {OWNED[name]}")
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


def _check_fleet(kafka: Config, fleet_instance_id: str | None) -> None:
    if fleet_instance_id is not None and "group.instance.id" in kafka:
        raise ConfigError(
            "kafka: group.instance.id is set by Weft on a fleet: use members=..., which gives "
            "each member its own"
        )


def _check_isolation(kafka: Config, delivery: DeliveryName) -> None:
    """Spell the level as librdkafka does (others look at it); refuse what would break a promise."""
    level = str(kafka.get("isolation.level", "read_committed")).strip().lower()
    if "isolation.level" in kafka:
        kafka["isolation.level"] = level
    if delivery == "exactly_once" and level != "read_committed":
        raise ConfigError(
            f'kafka: isolation.level={level} with delivery="exactly_once" would read what is '
            "aborted later: remove it, or use another delivery"
        )


def _check_heartbeat(kafka: Config) -> None:
    """The broker removes a member with too few heartbeats, again and again."""
    beat_ms = int(str(kafka.get("heartbeat.interval.ms", _HEARTBEAT_MS)), 0)
    session_ms = int(str(kafka.get("session.timeout.ms", _SESSION_MS)), 0)
    if beat_ms >= session_ms and kafka.get("group.protocol") != "consumer":
        raise ConfigError(
            f"kafka: heartbeat.interval.ms ({beat_ms}) must be below session.timeout.ms "
            f"({session_ms}): set it to a third of that, or remove it"
        )


def _check_oauth(kafka: Config) -> None:
    """Without a token source, librdkafka waits for a token forever and silently."""
    of = {canonical(name): str(value).strip().lower() for name, value in kafka.items()}
    logs_in = of.get("security.protocol", "").startswith("sasl_")
    if not logs_in or of.get("sasl.mechanisms") != "oauthbearer" or "oauth_cb" in kafka:
        return
    unsecured = of.get("enable.sasl.oauthbearer.unsecure.jwt") in ("true", "t", "1")
    if of.get("sasl.oauthbearer.method", "default") == "default" and not unsecured:
        raise ConfigError(
            "kafka: sasl.mechanism=OAUTHBEARER has no way to its token: give oauth_cb, or "
            "sasl.oauthbearer.method=oidc"
        )


def _token(function: Callable[[str], Any], config: str) -> Any:
    """The user's `oauth_cb`; what it raises would otherwise be seen by no one."""
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
    """The part of a configuration that clients of these scopes take."""
    return {name: value for name, value in config.items() if _scope(name) in scopes}


def _scope(name: str) -> Scope:
    return CALLBACKS.get(name) or properties()[name].scope


def _with_defaults(config: Config, defaults: Config) -> Config:
    """The configuration, and each default whose property it does not set by any of its names."""
    given = {canonical(name) for name in config}
    return {n: v for n, v in defaults.items() if canonical(n) not in given} | config


def _consumer(
    kafka: Config, group: str, records: int, size_bytes: int, instance_id: str | None
) -> Config:
    config = _with_defaults(
        _of(kafka, "C*"),
        {
            "auto.offset.reset": "earliest",
            # librdkafka rests a whole second after its queue was full.
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
    """`own` wins over `kafka`, also where they use two names of one property."""
    overruled = {canonical(name) for name in own}
    shared = {n: v for n, v in _of(kafka, "P*").items() if canonical(n) not in overruled}
    config = _with_defaults(
        shared | own,
        {
            "linger.ms": 5,
            # Java's partitioner: a key goes where Java's producers and Weft's Spark sink send it.
            "partitioner": "murmur2_random",
            # A topic that is not there is called so after this time, on every attempt: librdkafka's
            # 30 s make a typo look like a stall.
            "topic.metadata.propagation.max.ms": 5_000,
        },
    )
    config = _with_defaults(config, producer_budget(config, size_bytes))
    return config | {"enable.idempotence": True}


def _admin(kafka: Config) -> Config:
    """Only what every client takes; statistics and errors of this one would come twice."""
    left_out = {"statistics.interval.ms", "stats_cb", "error_cb", "throttle_cb"}
    return {n: v for n, v in _of(kafka, "*").items() if n not in left_out}


def with_own_id(consumer: Config) -> Config:
    """The same with a static id of its own, for a classic member whose user gives none.

    All brokers away for longer than a session: librdkafka forgets its member id and joins as a new
    member, and the group waits a whole session more for the old one. A static member takes its own
    place again. Another id for each run, so that two never fence each other.
    """
    if "group.instance.id" in consumer or consumer.get("group.protocol") == "consumer":
        return consumer
    host = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname())[:_HOST_CHARS_MAX]
    return {**consumer, "group.instance.id": f"{host}-{os.getpid()}-{secrets.token_hex(6)}"}


def is_incremental(config: Mapping[str, Any]) -> bool:
    """Whether the group moves partitions one by one, instead of all at every rebalance."""
    strategy = str(config.get("partition.assignment.strategy", ""))
    return config.get("group.protocol") == "consumer" or "cooperative" in strategy
