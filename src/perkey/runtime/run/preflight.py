"""Check the cluster before consuming, so that a typo is an error and not a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from perkey.app_options import AppOptions
from perkey.core.commits import Found
from perkey.errors import ConfigError, FatalError
from perkey.kafka.connect import Connection, connect
from perkey.kafka.ports import AdminPort, KafkaUnavailable
from perkey.kafka.properties import canonical
from perkey.observe import group_orders
from perkey.observe.reports import TOPIC_CONFIG
from perkey.options import HandlerOptions
from perkey.policies import DeadLetter, letters_of
from perkey.routing import Routes
from perkey.runtime.logs import event
from perkey.runtime.member.rebalance import names
from perkey.runtime.run.drain import Drain
from perkey.types import TopicPartition

ANSWER_S = 15.0
#: the first request at a start has so long, each later one twice as much, up to ANSWER_S
FIRST_ASK_S = 5.0
PAUSE_S = 0.5
REPORT_EVERY_S = 60.0
#: for dead-letter topics that Perkey creates: letters are kept for 30 days
DEAD_LETTERS_CONFIG = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}
#: the default address of `perkey topics create`
LOCAL_BROKER = "localhost:9092"


def is_transactional(handlers: Sequence[HandlerOptions]) -> bool:
    """Whether any of them needs transactions."""
    return any(handler.delivery == "exactly_once" for handler in handlers)


def connection_of(
    options: AppOptions, handlers: Sequence[HandlerOptions], fleet_instance_id: str | None = None
) -> Connection:
    """The clients of an app with these handlers; raises ConfigError for its properties."""
    return connect(
        options.kafka,
        options.producer,
        group=options.group,
        buffer_records=options.buffer_records,
        buffer_bytes=options.buffer_bytes,
        delivery="exactly_once" if is_transactional(handlers) else "at_least_once",
        fleet_instance_id=fleet_instance_id,
    )


def admin_of(connection: Connection, options: AppOptions, stopped: Callable[[], bool]) -> AdminPort:
    """An admin client; repeated while its login has no token, as long as a start may take.

    Each attempt waits 10 s for the token, by itself.
    """
    patience, began = options.start_timeout_s, time.monotonic()
    while True:
        try:
            return connection.admin()
        except KafkaUnavailable as error:
            waited_s = time.monotonic() - began
            if stopped() or (patience is not None and waited_s >= patience):
                raise FatalError(f"{error}, in {waited_s:.0f} s") from error
            _report(connection, error, waited_s, patience)
        time.sleep(PAUSE_S)


def check_cluster(
    connection: Connection,
    admin: AdminPort,
    routes: Routes,
    handlers: Sequence[HandlerOptions],
    options: AppOptions,
    stopped: Callable[[], bool] = lambda: False,
    failed: Callable[[Exception], None] | None = None,
) -> list[str]:
    """Every topic that is subscribed to now, by name; `failed` gets each error that is retried.

    Raises ConfigError for missing topics, with the command that creates them, and FatalError if no
    broker answers within `start_timeout_s`, which is no configuration error.
    """

    def look(ask_s: float) -> list[str]:
        matching = admin.matching(routes.patterns, ask_s) if routes.patterns else []
        topics = sorted({*routes.literal, *matching})
        for topic in topics:
            routes.handler_of(topic)  # refuses a topic that two patterns match
        wanted, create = targets(routes, handlers, topics)
        _refuse_own(options, routes, wanted)
        wanted |= dict.fromkeys(routes.literal, "")
        sources = {one for target in create.values() for one in target}
        found = admin.describe(sorted({*wanted, *sources}), ask_s) if wanted else {}
        missing = {topic: wanted[topic] for topic in sorted(wanted) if topic not in found}
        made = create.keys() - {*routes.literal}
        if left := {topic: what for topic, what in missing.items() if topic not in made}:
            raise ConfigError(_missing(left, connection.described()))
        for topic in missing:
            asked = [handlers[routes.handler_of(one)].on_exhausted for one in create[topic]]
            counts = [
                one.partitions for one in asked if isinstance(one, DeadLetter) and one.partitions
            ]
            counts = counts or [found[one].partitions for one in create[topic] if one in found]
            admin.create_topic(topic, max(counts, default=1), config=DEAD_LETTERS_CONFIG)
        if options.reports is not None and not admin.describe([options.reports], ask_s):
            admin.create_topic(options.reports, 1, config=TOPIC_CONFIG)
        if options.control is not None:
            _make_control(admin, options.control, ask_s)
        return topics

    patience, began = options.start_timeout_s, time.monotonic()
    ask_s, report_at = FIRST_ASK_S, FIRST_ASK_S
    while True:
        waited_s = time.monotonic() - began
        left_s = ANSWER_S if patience is None else max(0.1, patience - waited_s)
        try:
            return look(min(ask_s, left_s))
        except KafkaUnavailable as error:
            waited_s = time.monotonic() - began
            if stopped() or (patience is not None and waited_s >= patience - 0.1):
                raise unanswered(connection, error, waited_s) from error
            if failed is not None:
                failed(error)
            if waited_s >= report_at:
                report_at = waited_s + REPORT_EVERY_S
                _report(connection, error, waited_s, patience)
        # A request that is refused immediately is repeated after a pause; a slow broker gets more
        # time.
        time.sleep(min(PAUSE_S, left_s))
        ask_s = min(2 * ask_s, ANSWER_S)


def _refuse_own(options: AppOptions, routes: Routes, written: Container[str]) -> None:
    """ConfigError if handlers read a topic of Perkey's own records, or write to it."""
    for name in ("control", "reports"):
        topic = getattr(options, name)
        if topic is None:
            continue
        if (read := routes.reads(topic)) is not None:
            where = "" if read == topic else f" by the pattern {read!r}"
            raise ConfigError(
                f"App({name}={topic!r}): a handler reads this topic{where}, and would handle what "
                "members write there: name another topic, which no handler reads"
            )
        if topic in written:
            raise ConfigError(
                f"App({name}={topic!r}): a handler writes to this topic (output= or DeadLetter): "
                "name another topic"
            )


def _make_control(admin: AdminPort, topic: str, ask_s: float) -> None:
    """Create a missing control topic; ConfigError if this login may not."""
    try:
        if not admin.describe([topic], ask_s):
            admin.create_topic(topic, 1, config=group_orders.TOPIC_CONFIG)
    except ConfigError as error:
        raise ConfigError(
            f"App(control={topic!r}): {error}: grant this login READ and WRITE on the topic, and "
            "CREATE where it is missing, or omit control"
        ) from None


def _report(
    connection: Connection, error: Exception, waited_s: float, patience: float | None
) -> None:
    event(
        "warning",
        "no broker answers yet",
        brokers=connection.described(),
        seconds=round(waited_s),
        start_timeout_s="none" if patience is None else patience,
        error=str(error),
    )


def unanswered(connection: Connection, error: Exception, waited_s: float = ANSWER_S) -> FatalError:
    """The exception if no broker answers at the start."""
    return FatalError(f"no answer from {connection.described()} within {waited_s:.0f} s: {error}")


def targets(
    routes: Routes, handlers: Sequence[HandlerOptions], topics: Sequence[str]
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Topics that are written to, with the option that names them; and those to create."""
    wanted = {h.output: f"output= of {h.name}" for h in handlers if h.output is not None}
    create: dict[str, list[str]] = {}
    for topic in topics:
        handler = handlers[routes.handler_of(topic)]
        policy = handler.on_exhausted
        if not (target := letters_of(policy, topic)):
            continue
        if target == topic:
            raise ConfigError(
                f"the dead-letter topic of {handler.name} is {topic!r}, which it reads: name "
                'another, such as "{topic}.dlq"'
            )
        if isinstance(policy, DeadLetter):
            if policy.on_missing == "create":
                create.setdefault(target, []).append(topic)
            wanted.setdefault(target, f"DeadLetter of {handler.name}")
        else:
            wanted.setdefault(target, f"Park(dead_letter=) of {handler.name}")
    return wanted, create


def _missing(topics: dict[str, str], brokers: str) -> str:
    """One line for all missing topics, with the command that creates them."""
    named = [f"{topic!r} ({use})" if use else repr(topic) for topic, use in topics.items()]
    verb = "does not exist" if len(named) == 1 else "do not exist"
    cures = [make_command(list(topics), brokers)]
    if not all(topics.values()):
        cures.append("or correct the name in @app.consume")
    if any(use.startswith("DeadLetter") for use in topics.values()):
        cures.append('or give DeadLetter(on_missing="create")')
    noun = "topic" if len(named) == 1 else "topics"
    return f"{noun} {', '.join(named)} {verb} on {brokers}: {', '.join(cures)}"


def make_command(topics: Sequence[str], brokers: str) -> str:
    """The command that creates these topics."""
    where = "" if brokers == LOCAL_BROKER else f" --bootstrap-servers {brokers}"
    pronoun = "it" if len(topics) == 1 else "them"
    return f"create {pronoun} (perkey topics create {' '.join(topics)}{where})"


def drain_of(
    admin: AdminPort,
    connection: Connection,
    group: str,
    topics: list[str],
    patterns: Sequence[str],
) -> Drain:
    """The drain of the current records; ConfigError if the topics are unknown."""
    if not topics:
        asked = " or ".join(map(repr, patterns))
        raise ConfigError(
            f"no topic on {connection.described()} matches {asked}: there is nothing "
            'to drain; correct the pattern, or leave out until="drained"'
        )
    try:
        starts = admin.starts(topics, timeout_s=ANSWER_S)
        ends = admin.ends(topics, committed=False, timeout_s=ANSWER_S)
        if connection.reads_committed():
            every, ends = ends, admin.ends(topics, committed=True, timeout_s=ANSWER_S)
            behind = {where: end - ends.get(where, end) for where, end in every.items()}
            if open_in := [where for where, offsets in behind.items() if offsets > 0]:
                event(
                    "warning",
                    "records behind another producer's open transaction are not drained",
                    partitions=names(open_in),
                    offsets=sum(behind[where] for where in open_in),
                    next="drain again when it has ended; perkey why names it while an app runs",
                )
    except KafkaUnavailable as error:
        raise unanswered(connection, error) from error
    return Drain(admin, group, starts, ends)


RESET = "auto.offset.reset"
DEFAULT = "earliest"


class FirstStart:
    """Reports once where a group without commits starts.

    Kafka's own default is the end of the log, Perkey's is the start: a user who expects the other
    one skips everything there, or handles years of it. If a repeated or a missed record is
    critical, relying on the default is a warning.
    """

    def __init__(
        self, group: str, kafka: Mapping[str, Any], handlers: Sequence[HandlerOptions]
    ) -> None:
        given = {canonical(name): value for name, value in kafka.items()}
        self._group = group
        self._reset = given.get(canonical(RESET))
        #: the options that make repeats or losses critical
        self._stakes = sorted(
            {
                handler.delivery if handler.ledger is None else "a ledger"
                for handler in handlers
                if handler.ledger is not None or handler.delivery != "at_least_once"
            }
        )

    def report(self, found: Mapping[TopicPartition, Found]) -> None:
        """Log the assigned partitions that have no commit yet."""
        fresh = sorted(where for where, start in found.items() if start.committed is None)
        if not fresh:
            return
        topics = ",".join(dict.fromkeys(topic for topic, _ in fresh))
        fields = {"group": self._group, "topics": topics, "partitions": len(fresh)}
        level, fields["starts_at"] = "info", f"{self._reset or DEFAULT} ({RESET})"
        if self._reset is None and self._stakes:
            level = "warning"
            fields["next"] = f"with {' and '.join(self._stakes)} set {RESET} to choose the start"
        event(level, "no commits yet", **fields)
