"""Looks at the cluster before anything is consumed, so that a typo is a line and not a stall."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import ConfigError, FatalError
from weft.kafka.connect import AdminPort, Connection
from weft.kafka.ports import KafkaUnavailable
from weft.observe.reports import TOPIC_CONFIG
from weft.options import HandlerOptions
from weft.policies import DeadLetter
from weft.routing import Routes
from weft.runtime.run.drain import Drain

ANSWER_S = 15.0
#: of a dead-letter topic that Weft makes: every letter is kept for 30 days
DEAD_LETTERS_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}
#: where `weft topics create` looks without being told
LOCAL_BROKER = "localhost:9092"


def check_cluster(
    connection: Connection,
    admin: AdminPort,
    routes: Routes,
    handlers: Sequence[HandlerOptions],
    reports: str | None = None,
) -> list[str]:
    """Every topic that is subscribed to now, by name.

    Raises ConfigError for what is missing, with the command that makes all of it, and FatalError
    when no broker answers: that is nobody's typo.
    """
    try:
        matching = admin.matching(routes.patterns, ANSWER_S) if routes.patterns else []
        topics = sorted({*routes.literal, *matching})
        for topic in topics:
            routes.handler_of(topic)  # refuses a topic that two patterns want
        wanted, create = _targets(routes, handlers, topics)
        wanted |= dict.fromkeys(routes.literal, "")
        sources = {one for target in create.values() for one in target}
        found = admin.describe(sorted({*wanted, *sources}), ANSWER_S) if wanted else {}
        missing = {topic: wanted[topic] for topic in sorted(wanted) if topic not in found}
        made = create.keys() - {*routes.literal}
        if left := {topic: what for topic, what in missing.items() if topic not in made}:
            raise ConfigError(_missing(left, connection.described()))
        for topic in missing:
            counts = [found[source].partitions for source in create[topic] if source in found]
            admin.create_topic(topic, max(counts, default=1), config=DEAD_LETTERS_CONFIG)
        if reports is not None and not admin.describe([reports], ANSWER_S):
            admin.create_topic(reports, 1, config=TOPIC_CONFIG)
    except KafkaUnavailable as error:
        raise unanswered(connection, error) from error
    return topics


def unanswered(connection: Connection, error: Exception) -> FatalError:
    """What to raise when no broker answers at the start."""
    return FatalError(
        f"no answer from {connection.described()} within {ANSWER_S:.0f} s: is the broker up and "
        f"the address right? ({error})"
    )


def _targets(
    routes: Routes, handlers: Sequence[HandlerOptions], topics: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Topics that are written to, with who names them; and which may be made, for what sources."""
    wanted = {h.output: f"output= of {h.name}" for h in handlers if h.output is not None}
    create: dict[str, list[str]] = {}
    for topic in topics:
        handler = handlers[routes.handler_of(topic)]
        policy = handler.on_exhausted
        if not isinstance(policy, DeadLetter):
            continue
        target = policy.topic_for(topic)
        if target == topic:
            raise ConfigError(
                f"the dead-letter topic of {handler.name} is {topic!r}, which it reads: name "
                'another, such as weft.DeadLetter("{topic}.dlq")'
            )
        if policy.on_missing == "create":
            create.setdefault(target, []).append(topic)
        wanted.setdefault(target, f"DeadLetter of {handler.name}")
    return wanted, create


def _missing(topics: dict[str, str], brokers: str) -> str:
    """One line for all that is missing, with the command that makes it."""
    named = [f"{topic!r} ({what})" if what else repr(topic) for topic, what in topics.items()]
    verb = "does not exist" if len(named) == 1 else "do not exist"
    cures = [make_command(list(topics), brokers)]
    if not all(topics.values()):
        cures.append("or correct the name in @app.consume")
    if any(what.startswith("DeadLetter") for what in topics.values()):
        cures.append('or give DeadLetter(on_missing="create")')
    noun = "topic" if len(named) == 1 else "topics"
    return f"{noun} {', '.join(named)} {verb} on {brokers}: {', '.join(cures)}"


def make_command(topics: Sequence[str], brokers: str) -> str:
    """The command that makes these topics there."""
    where = "" if brokers == LOCAL_BROKER else f" --bootstrap-servers {brokers}"
    what = "it" if len(topics) == 1 else "them"
    return f"create {what} (weft topics create {' '.join(topics)}{where})"


def drain_of(
    admin: AdminPort,
    connection: Connection,
    group: str,
    topics: list[str],
    patterns: Sequence[str],
) -> Drain:
    """What is there now is to be drained; ConfigError where that cannot be known."""
    if not topics:
        asked = " or ".join(map(repr, patterns))
        raise ConfigError(
            f"no topic on {connection.described()} matches {asked}: there is nothing "
            'to drain; correct the pattern, or leave out until="drained"'
        )
    committed = connection.reads_committed()
    try:
        starts = admin.starts(topics, timeout_s=ANSWER_S)
        ends = admin.ends(topics, committed=committed, timeout_s=ANSWER_S)
    except KafkaUnavailable as error:
        raise unanswered(connection, error) from error
    return Drain(admin, group, starts, ends)
