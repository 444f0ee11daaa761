"""Looks at the cluster before anything is consumed, so that a typo is a line and not a stall."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import ConfigError
from weft.kafka.connect import AdminPort, Connection
from weft.kafka.ports import KafkaUnavailable
from weft.options import HandlerOptions
from weft.policies import DeadLetter
from weft.routing import Routes

ANSWER_S = 15.0


def check_cluster(
    connection: Connection, admin: AdminPort, routes: Routes, handlers: Sequence[HandlerOptions]
) -> list[str]:
    """Every topic that is subscribed to now, by name; raises ConfigError for what is missing."""
    try:
        found = admin.describe(routes.literal, ANSWER_S) if routes.literal else {}
        for topic in routes.literal:
            if topic not in found:
                raise ConfigError(
                    f"topic {topic!r} does not exist on {connection.described()}: create it, or "
                    "correct the name in @app.consume"
                )
        matching = admin.matching(routes.patterns, ANSWER_S) if routes.patterns else []
        topics = sorted({*routes.literal, *matching})
        for topic in topics:
            routes.handler_of(topic)  # refuses a topic that two patterns want
        _check_targets(admin, connection, routes, handlers, topics)
    except KafkaUnavailable as error:
        raise ConfigError(
            f"no answer from {connection.described()} within {ANSWER_S:.0f} s: is the broker up "
            f"and the address right? ({error})"
        ) from error
    return topics


def _check_targets(
    admin: AdminPort,
    connection: Connection,
    routes: Routes,
    handlers: Sequence[HandlerOptions],
    topics: Sequence[str],
) -> None:
    """Topics that are written to: outputs and dead letters."""
    wanted: dict[str, str] = {}
    create: set[str] = set()
    for handler in handlers:
        if handler.output is not None:
            wanted[handler.output] = f"output= of {handler.name}"
    for topic in topics:
        handler = handlers[routes.handler_of(topic)]
        policy = handler.on_exhausted
        if isinstance(policy, DeadLetter):
            target = policy.topic_for(topic)
            if target == topic:
                raise ConfigError(
                    f"the dead-letter topic of {handler.name} is {topic!r}, which it reads: name "
                    'another, such as weft.DeadLetter("{topic}.dlq")'
                )
            wanted[target] = f"DeadLetter of {handler.name}"
            if policy.on_missing == "create":
                create.add(target)
    if not wanted:
        return
    found = admin.describe(sorted(wanted), ANSWER_S)
    for topic, what in wanted.items():
        if topic in found:
            continue
        if topic not in create:
            letters = what.startswith("DeadLetter")
            cure = 'create it, or give on_missing="create"' if letters else "create it"
            raise ConfigError(
                f"topic {topic!r} ({what}) does not exist on {connection.described()}: {cure}"
            )
        admin.create_topic(topic, 1)
