"""The driver's queries to Kafka: existing partitions, and the starts and ends of their logs."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from perkey.errors import ConfigError
from perkey.kafka.admin import answers, list_offsets
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.verdicts import poll_verdict
from perkey.spark.source.bounds import PartitionMap
from perkey.spark.source.errors import (
    BAD_QUESTION,
    MISSING,
    MISSING_TOPIC,
    NOT_READY,
    UNREACHABLE,
    SourceError,
)
from perkey.spark.source.options import SourceOptions, Subscription
from perkey.spark.source.secrets import with_oauth
from perkey.types import TopicPartition

#: time limit of one query to the brokers, unless the user set `request.timeout.ms` (librdkafka:
#: `socket.timeout.ms`)
REQUEST_TIMEOUT_S = 20.0
#: how much later than its time-out an admin client may report it
LATE_S = 5.0
#: interval of log lines of a query that waits for its brokers
LOG_EVERY_S = 60.0
#: librdkafka's level for errors: an admin client warns about every property of consumers.
LOG_ERRORS = "3"
#: Used unless the user set it. librdkafka waits for half of it (11 ms at least) between one
#: connection and the next of a client that has none: 50 ms with its default of 100, which a client
#: that asks one question, or writes one transaction, waits several times.
CONNECTING: dict[str, str | int | bool] = {"reconnect.backoff.ms": 20}
LOG_START: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # not annotated
LOG_END: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # not annotated

log = logging.getLogger("perkey.spark.source")

T = TypeVar("T")
Properties = Mapping[str, str]
OnCommit = Callable[[KafkaError | None, list[KafkaPartition]], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """The existing partitions of the subscription, and the ids of their topics."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, str]


class Cluster:
    """Queries the brokers, with retries. Created on the driver, by one thread, for one query."""

    def __init__(self, options: SourceOptions) -> None:
        self._subscription = options.subscription
        self._attempts = options.offset_attempts
        self._retry_s = options.offset_retry_s
        self._reconnect_s = options.reconnect_s
        self._answered = False
        self._logged_at = -LOG_EVERY_S
        self._kafka = options.kafka
        self._servers = options.kafka["bootstrap.servers"]
        self._timeout_s = request_timeout_s(options.kafka)
        self._last_error = ""
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if options.reads_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        self._admin = admin_client(options.kafka, self._on_error)

    def layout(self) -> Layout:
        """The current layout. Topics that do not exist are left out (after retries)."""
        asked = self._subscription

        def there() -> Layout:
            names = {*asked.topics, *(topic for topic, _ in asked.assigned)}
            if asked.pattern is not None:
                listed = self._admin.list_topics(timeout=self._timeout_s).topics
                names = {name for name in listed if re.fullmatch(asked.pattern, name)}
            if not names:
                return Layout(frozenset(), {})
            futures = self._admin.describe_topics(
                TopicCollection(sorted(names)), request_timeout=self._timeout_s
            )
            found = answers(futures, self._timeout_s + LATE_S, MISSING_TOPIC).values()
            # A pattern never matches Kafka's internal topics, as in Spark's connector.
            topics = [t for t in found if asked.pattern is None or not t.is_internal]
            here = {(t.name, p.id) for t in topics for p in t.partitions}
            kept = here.intersection(asked.assigned) if asked.assigned else here
            return Layout(frozenset(kept), {t.name: str(t.topic_id) for t in topics})

        return self._asked(there)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The start of each log. A partition that does not exist is left out."""
        return self._offsets(dict.fromkeys(partitions, LOG_START))

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The end of each log: one past its last record.

        Under read_committed that is the first record of the oldest open transaction.
        """
        return self._offsets(dict.fromkeys(partitions, LOG_END))

    def at_times(self, times_ms: PartitionMap) -> dict[TopicPartition, int]:
        """The first offset at or after a time for each partition; -1 if there is none."""
        return self._offsets({tp: OffsetSpec.for_timestamp(ms) for tp, ms in times_ms.items()})

    def committed(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The committed offsets of a group; a partition without one is left out."""
        places = sorted(frozenset(partitions))

        def read() -> dict[TopicPartition, int]:
            consumer = self.group_consumer(group)
            try:
                found = committed_of(consumer, places, self._timeout_s)
            finally:
                consumer.close()
            return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

        return self._asked(read)

    def group_consumer(self, group: str, on_commit: OnCommit | None = None) -> Consumer:
        """A consumer that may read and write the group's offsets; see `consumer_of`."""
        more = {} if on_commit is None else {"on_commit": on_commit}
        return consumer_of(group, self._kafka, more)

    def retry_pause(self) -> None:
        """Wait for `fetchOffset.retryIntervalMs`."""
        time.sleep(self._retry_s)

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        def listed() -> dict[TopicPartition, int]:
            return list_offsets(
                self._admin, specs, self._isolation, self._timeout_s, late_s=LATE_S, absent=MISSING
            )

        return self._asked(listed) if specs else {}

    def _asked(self, question: Callable[[], T]) -> T:
        """The result; a failing query is made `fetchOffset.numRetries` times in total.

        Brokers that have answered once may be away for `reconnectTimeout`.
        """
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                answer = question()
            except (KafkaException, TimeoutError) as error:
                away_s = time.monotonic() - began
                waits = self._answered and away_s < self._reconnect_s and not is_final(error)
                if not waits and (attempt >= self._attempts or unreachable(error)):
                    self._admin.poll(0)  # Serves the callback that fills `_last_error`.
                    text = not_answered(self._servers, error, self._last_error)
                    raise SourceError(text) from None
                self._log_wait(error, away_s)
                if not unreachable(error) and error.args[0].code() in NOT_READY:
                    self._hear_again()
            else:
                self._answered = True
                return answer
            self.retry_pause()
        raise AssertionError("the last attempt returns or raises")

    def _hear_again(self) -> None:
        try:
            self._admin.list_topics(timeout=self._timeout_s)
        except KafkaException:
            # It knows no broker: the only one returned none while it was fenced. librdkafka (2.16)
            # stays so for minutes; a new client uses `bootstrap.servers`.
            self._admin = admin_client(self._kafka, self._on_error)

    def _log_wait(self, error: Exception, away_s: float) -> None:
        """Log one line per minute: a query that waits looks like one that has nothing to do."""
        now = time.monotonic()
        if is_final(error) or now - self._logged_at < LOG_EVERY_S:
            return
        self._logged_at = now
        log.warning(
            "Kafka at %s does not answer (%s); the query waits %d s more for it (reconnectTimeout)",
            self._servers, error_text(error), max(0, self._reconnect_s - away_s),
        )  # fmt: skip

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error.str()


def request_timeout_s(kafka: Properties) -> float:
    """How long to wait for an answer; librdkafka has checked that it is a number."""
    given = kafka.get("socket.timeout.ms")
    return REQUEST_TIMEOUT_S if given is None else int(given) / 1000


def admin_client(kafka: Properties, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """An admin client that accepts properties of consumers too."""
    config = {"log_level": LOG_ERRORS, **CONNECTING, **kafka, "error_cb": on_error}
    return accepted(AdminClient, with_client_log(config), kafka)


def consumer_of(group: str, kafka: Properties, more: Mapping[str, Any]) -> Consumer:
    """A consumer that does not join and may read and write the group's offsets.

    Not the admin client: confluent-kafka 2.16's crashes if it reads a group's offsets while the
    coordinator is unavailable.
    """
    own = {"group.id": group, "enable.auto.commit": False, **more}
    config = {"log_level": LOG_ERRORS, **CONNECTING, **kafka, **own}
    return accepted(Consumer, with_client_log(config), kafka)


def committed_of(
    consumer: Consumer, partitions: Iterable[TopicPartition], timeout_s: float
) -> list[KafkaPartition]:
    """What the consumer's group has committed; raises KafkaException if one is unknown.

    A partition that cannot be read has an error and no offset: treated as "nothing committed",
    records would be read, or written, again.
    """
    found = consumer.committed([KafkaPartition(*tp) for tp in partitions], timeout_s)
    for one in found:
        if one.error is not None and one.error.code() not in MISSING:
            raise KafkaException(one.error)
    return found


def accepted(client: Callable[[dict[str, Any]], T], config: dict[str, Any], kafka: Properties) -> T:
    """A client of librdkafka; ConfigError if it refuses the user's settings in `kafka`."""
    config = with_oauth(config)
    try:
        return client(config)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(property_refused(error_text(error), kafka)) from None


def property_refused(reason: str, kafka: Properties) -> str:
    """The reason with the user's spelling, and without any value that was given."""
    for value in sorted(kafka.values(), key=len, reverse=True):
        if len(value) > 3:
            reason = reason.replace(value, "***")
    unknown = re.search(r'No such configuration property: "([^"]+)"', reason)
    if unknown:
        return (
            f"unknown option kafka.{unknown[1]}: librdkafka has no property {unknown[1]};"
            " its CONFIGURATION.md lists those that there are"
        )
    return f"librdkafka refuses the kafka.* options: {reason}"


def unreachable(error: Exception) -> bool:
    """Whether no broker answered at all."""
    if isinstance(error, TimeoutError):
        return True
    return bool(error.args[0].code() in UNREACHABLE)


def is_final(error: Exception) -> bool:
    """Whether waiting cannot help a running query: permissions, a login, an invalid request.

    A running query survives every other error, including unforeseen ones.
    """
    if isinstance(error, TimeoutError):
        return False
    code = error.args[0].code()
    return poll_verdict(code) == "stop" or code in BAD_QUESTION


def may_come_back(error: Exception) -> bool:
    """Whether waiting may help: no broker answered, or they have just started."""
    return unreachable(error) or bool(error.args[0].code() in NOT_READY)


def error_text(error: Exception) -> str:
    """The text of a Kafka error without its wrapping, on one line."""
    inner = error.args[0] if error.args else error
    text = inner.str() if isinstance(inner, KafkaError) else str(inner)
    return " ".join(text.split()) or type(error).__name__


def not_answered(servers: str, error: Exception, last: str) -> str:
    """The error as one line: librdkafka's error, and the latest of its connections."""
    reason = error_text(error)
    if last and last not in reason:
        reason = f"{reason}; last: {last}"
    cure = "check kafka.bootstrap.servers and the kafka.security and kafka.sasl options"
    if isinstance(error, KafkaException) and "authoriz" in reason.lower():
        cure = "check the rights of this user on the topics"
    return f"Kafka at {servers} did not answer: {reason}: {cure}"


def missing_topics(subscription: Subscription, layout: Layout) -> list[str]:
    """Topics and partitions subscribed by name that do not exist, as text."""
    there = {topic for topic, _ in layout.partitions}
    topics = [f"topic {name!r}" for name in subscription.topics if name not in there]
    listed = [tp for tp in subscription.assigned if tp not in layout.partitions]
    return topics + [f"partition {topic}-{partition}" for topic, partition in listed]


def require_topics(subscription: Subscription, layout: Layout) -> None:
    """ConfigError if a topic or partition named by the user does not exist."""
    missing = missing_topics(subscription, layout)
    if missing:
        option = "assign" if subscription.assigned else "subscribe"
        raise ConfigError(
            f"{option}: {', '.join(missing)} does not exist: create it or correct the name"
        )
