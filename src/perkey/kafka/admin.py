"""Queries to the brokers that need no group membership, each with a time limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from perkey.errors import ConfigError
from perkey.kafka import clib
from perkey.kafka.clib_offsets import LEAST_S, portions
from perkey.kafka.clientlog import with_client_log
from perkey.kafka.failures import Failures, passes, raised_code
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import ClientSettings
from perkey.types import TopicPartition

K = TypeVar("K")
T = TypeVar("T")
#: The wanted offset: the start of the log, its end, or the first at or after a time.
Spec = Literal["start", "end"] | int

#: added to the request's own time limit, so that its own error comes first
_GRACE_S = 1.0
_RETRY_PAUSE_S = 0.1
#: after this many requests in a row without an answer the client is replaced: one client was
#: observed to get no answer for minutes while others of the same process did
_UNANSWERED_MAX = 5
#: former clients that wait for a group's description, for at most an hour: each has threads
_FORMER_MAX = 3
#: most groups without members whose offsets are read
_IDLE_GROUPS_MAX = 200
#: The first attempt ends early, so that a refused login is reported soon.
_FIRST_ATTEMPT_S = 2.0
_REQUEST_MIN_S = 0.05
#: librdkafka does not accept longer.
_REQUEST_MAX_S = 3600.0
#: for a request that must never time out inside librdkafka: its maximum
UNTIMED_S = _REQUEST_MAX_S

_MISSING = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # public; the underscore means "local"
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # see above
})  # fmt: skip
_ENDS: dict[str, OffsetSpec] = {
    "start": OffsetSpec.earliest(),  # type: ignore[no-untyped-call]  # not annotated
    "end": OffsetSpec.latest(),  # type: ignore[no-untyped-call]  # not annotated
}
#: None of the partitions has a leader, none is visible to this login, or the cause is temporary.
_NO_LEADERS: int = KafkaError._NOENT  # noqa: SLF001  # see above
_NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})
#: A login that may describe the cluster gets the names of all groups, also of forbidden ones.
_HIDDEN = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_FORBIDDEN = frozenset({
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip


class TopicFacts(NamedTuple):
    """A topic that exists."""

    name: str
    #: Kafka's own id: a recreated topic has another one
    topic_id: str
    partitions: int


class TopicState(NamedTuple):
    """What a check of a topic needs to know."""

    partitions: int
    #: partitions that cannot be read or written now
    leaderless: list[int]
    #: what this login may do with it: "READ", "WRITE", ...
    rights: frozenset[str]
    #: its configuration; empty if this login may not see it
    config: dict[str, str]


class GroupFacts(NamedTuple):
    """A group, as its coordinator describes it."""

    #: Kafka's name for it; "DEAD": the group does not exist
    state: str
    members: int
    #: what this login may do with it; None: the group does not exist
    rights: frozenset[str] | None


class StaticMember(NamedTuple):
    """A member with a `group.instance.id`, as the broker lists it."""

    instance_id: str
    client_id: str


def answers(
    futures: Mapping[K, Future[T]], timeout_s: float, absent: frozenset[int] = frozenset()
) -> dict[K, T]:
    """The results of one request, without those that failed with a code of `absent`.

    Raises TimeoutError if they are not complete in time.
    """
    deadline = time.monotonic() + timeout_s
    results = {}
    for key, future in futures.items():
        try:
            results[key] = future.result(max(deadline - time.monotonic(), 0.0))
        except KafkaException as error:
            if raised_code(error) not in absent:
                raise
    return results


def list_offsets(
    client: AdminClient,
    asked: Mapping[TopicPartition, OffsetSpec],
    level: IsolationLevel,
    timeout_s: float,
    *,
    late_s: float = _GRACE_S,
    absent: frozenset[int] = frozenset(),
) -> dict[TopicPartition, int]:
    """The offset of each partition, without those that failed with a code of `absent`.

    -1: no record is as late as the time. In portions, without a crash of librdkafka: see
    clib_offsets. Raises KafkaException, and TimeoutError if there is no answer in time; `late_s`
    is how much later than `timeout_s` the client may report it.
    """
    wanted = {KafkaPartition(*where): spec for where, spec in asked.items()}
    futures = {
        place: future
        for portion in portions(list(wanted))
        for place, future in client.list_offsets(
            {place: wanted[place] for place in portion},
            isolation_level=level,
            request_timeout=max(LEAST_S, timeout_s),
        ).items()
    }
    answered = answers(futures, timeout_s + late_s, absent)
    for place, at in answered.items():
        if at.offset == OFFSET_INVALID:  # and no error
            raise TimeoutError(f"the leader of {place.topic}[{place.partition}] did not answer")
    return {(place.topic, place.partition): at.offset for place, at in answered.items()}


class KafkaAdmin:
    """Sends queries to the brokers. Not thread-safe.

    Every method raises KafkaUnavailable when the brokers do not answer within `timeout_s`, and
    ConfigError when they refuse the request or the login.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._failures = Failures(settings)
        # Errors are in the exceptions.
        quiet = with_client_log({"log_level": 2, **settings.admin})
        # A client without a reference is collected, and its futures never complete.
        #: groups whose description is pending
        self._describing: dict[str, Future[Any]] = {}
        self._config = quiet | {"error_cb": self._failures.note}
        self._client = AdminClient(self._config)
        #: unanswered requests in a row
        self._unanswered = 0
        #: former clients with their unanswered descriptions
        self._former: list[tuple[AdminClient, list[Future[Any]]]] = []
        self._groups: dict[str, Consumer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. May be called again."""
        groups, self._groups = self._groups, {}
        for consumer in groups.values():
            consumer.close()

    def describe(self, topics: Sequence[str], timeout_s: float) -> dict[str, TopicFacts]:
        """Facts of the topics that exist, by name."""
        names = sorted(set(topics))
        if not names:
            return {}

        def ask(left_s: float) -> dict[str, TopicFacts]:
            futures = self._client.describe_topics(TopicCollection(names), request_timeout=left_s)
            answered = answers(futures, left_s + _GRACE_S, _MISSING)
            return {
                name: TopicFacts(topic.name, str(topic.topic_id), len(topic.partitions))
                for name, topic in answered.items()
            }

        return self._within(timeout_s, f"describe {', '.join(names):.200}", ask)

    def matching(self, patterns: Sequence[str], timeout_s: float) -> list[str]:
        """The names of existing topics that any of these patterns matches, sorted.

        Like librdkafka: a pattern starts with ^ and may match a prefix of the name.
        """
        matchers = []
        for pattern in patterns:
            try:
                matchers.append(re.compile(pattern))
            except re.error as error:
                problem = f"pattern {pattern!r} is not a regular expression: {error}"
                raise ConfigError(problem) from None
        names = {topic for topic, _ in self.partitions(timeout_s)}
        return sorted(name for name in names if any(m.match(name) for m in matchers))

    def partitions(self, timeout_s: float) -> list[TopicPartition]:
        """Every partition of the cluster, sorted."""

        def ask(left_s: float) -> list[TopicPartition]:
            topics = self._client.list_topics(timeout=left_s).topics.values()
            return sorted((str(one.topic), number) for one in topics for number in one.partitions)

        return self._within(timeout_s, "list topics", ask)

    def ends(
        self, topics: Sequence[str], *, committed: bool, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """One past the last record of each partition of these topics, in one request.

        `committed`: only up to the oldest open transaction, as a read_committed consumer reads.
        """
        return self._of_topics(topics, "end", committed=committed, timeout_s=timeout_s)

    def starts(self, topics: Sequence[str], *, timeout_s: float) -> dict[TopicPartition, int]:
        """The first offset in the log of each partition of these topics."""
        return self._of_topics(topics, "start", committed=False, timeout_s=timeout_s)

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        spec: Spec,
        *,
        timeout_s: float,
        committed: bool = False,
    ) -> dict[TopicPartition, int]:
        """The offset at `spec` in each partition; those that do not exist are left out.

        A number is a time in ms since 1970; -1 if no record is that late.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        at = OffsetSpec.for_timestamp(spec) if isinstance(spec, int) else _ENDS[spec]
        asked = dict.fromkeys(partitions, at)
        if not asked:
            return {}

        def ask(left_s: float) -> dict[TopicPartition, int]:
            try:
                return list_offsets(self._client, asked, level, left_s, absent=_MISSING)
            except KafkaException as error:
                if raised_code(error) != _NO_LEADERS:
                    raise
                # Checks that one of them exists; ConfigError if this login may not know.
                here = self.describe([topic for topic, _ in asked], left_s)
                if any(
                    topic in here and number < here[topic].partitions for topic, number in asked
                ):
                    raise
                return {}

        return self._within(timeout_s, "ask for offsets", ask)

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """What the group has committed for each partition; None: nothing.

        Read with a consumer that never joins: the admin client's own call fails on metadata of
        other clients (confluent-kafka reads past its end).
        """
        if not partitions:
            return {}

        def ask(left_s: float) -> dict[TopicPartition, int | None]:
            if group not in self._groups:
                config = {
                    "log_level": 2,
                    **self._settings.admin,
                    "group.id": group,
                    "enable.auto.commit": False,
                    # With read_committed the answer would wait for every open transaction.
                    "isolation.level": "read_uncommitted",
                    "error_cb": self._failures.note,
                }
                self._groups[group] = Consumer(with_client_log(config))
            reader = self._groups[group]
            try:
                offsets = clib.committed(reader, partitions, left_s)
            except KafkaException:
                self._failures.note_queued(reader)
                raise
            for stored in offsets:
                if stored.error and stored.error not in _MISSING:
                    raise KafkaException(KafkaError(stored.error))
            return {(stored.topic, stored.partition): stored.offset for stored in offsets}

        return self._within(timeout_s, f"read the offsets of group {group}", ask)

    def _group(self, group: str, left_s: float, absent: frozenset[int] = _NO_GROUP) -> Any | None:
        """The coordinator's description of the group; None if it does not exist.

        Perkey's own time-out only: librdkafka aborts the process when an answer to this request
        arrives after librdkafka's time-out (its issue 4605). One request per group at a time.
        """
        future = self._describing.pop(group, None)
        if future is None or future.done():
            asked = self._client.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=UNTIMED_S
            )
            future = asked[group]
        self._describing[group] = future
        return answers({group: future}, left_s + _GRACE_S, absent).get(group)

    def cluster(self, timeout_s: float) -> tuple[int, frozenset[str], dict[str, str]]:
        """The number of brokers, this login's rights on the cluster, one broker's configuration."""

        def ask(left_s: float) -> tuple[int, frozenset[str], dict[str, str]]:
            asked = self._client.describe_cluster(
                include_authorized_operations=True, request_timeout=left_s
            )
            answered = asked.result(left_s + _GRACE_S)
            node = ConfigResource(ConfigResource.Type.BROKER, str(answered.nodes[0].id))
            config = self._configs([node], left_s)
            return (
                len(answered.nodes),
                _names(answered.authorized_operations),
                config.get(node.name, {}),
            )

        return self._within(timeout_s, "describe the cluster", ask)

    def topic_states(self, topics: Sequence[str], timeout_s: float) -> dict[str, TopicState]:
        """The state of each topic that exists and is visible to this login, by name."""
        names = sorted(set(topics))

        def ask(left_s: float) -> dict[str, TopicState]:
            futures = self._client.describe_topics(
                TopicCollection(names), include_authorized_operations=True, request_timeout=left_s
            )
            answered = answers(futures, left_s + _GRACE_S, _MISSING | _FORBIDDEN)
            kind = ConfigResource.Type.TOPIC
            configs = self._configs([ConfigResource(kind, name) for name in answered], left_s)
            return {
                name: TopicState(
                    len(description.partitions),
                    [part.id for part in description.partitions if part.leader is None],
                    _names(description.authorized_operations),
                    configs.get(name, {}),
                )
                for name, description in answered.items()
            }

        return self._within(timeout_s, f"describe {', '.join(names):.200}", ask) if names else {}

    def _configs(
        self, resources: Sequence[ConfigResource], left_s: float
    ) -> dict[str, dict[str, str]]:
        """The configurations that this login may see, by the resource's name."""
        if not resources:
            return {}
        futures = self._client.describe_configs(list(resources), request_timeout=left_s)
        answered = answers(futures, left_s + _GRACE_S, _MISSING | _FORBIDDEN)
        return {
            resource.name: {name: str(entry.value) for name, entry in entries.items()}
            for resource, entries in answered.items()
        }

    def group_members(self, group: str, timeout_s: float) -> int | None:
        """How many members the group has now; None: it does not exist."""

        def ask(left_s: float) -> int | None:
            described = self._group(group, left_s)
            if described is None or described.state == ConsumerGroupState.DEAD:
                return None
            return len(described.members)

        return self._within(timeout_s, f"describe group {group}", ask)

    def groups_reading(self, topic: str, partitions: int, timeout_s: float) -> list[str]:
        """The groups that read this topic now or have committed offsets of it, by name.

        Only those that this login may see. Groups without members take a request each: only the
        first 200 of them are checked.
        """
        deadline = time.monotonic() + timeout_s

        def ask(left_s: float) -> list[str]:
            asked = self._client.list_consumer_groups(request_timeout=left_s)
            return sorted(listing.group_id for listing in asked.result(left_s + _GRACE_S).valid)

        names = self._within(timeout_s, "list groups", ask)
        where = [(topic, number) for number in range(partitions)]
        reading: set[str] = set()
        idle = []
        for name in names:
            left_s = max(deadline - time.monotonic(), _REQUEST_MIN_S)
            look = partial(self._group, name, absent=_NO_GROUP | _HIDDEN)
            described = self._within(left_s, f"describe group {name}", look)
            if described is None:
                continue
            members = described.members
            held = [
                place for m in members if m.assignment for place in m.assignment.topic_partitions
            ]
            if any(place.topic == topic for place in held):
                reading.add(name)
            elif not members:
                idle.append(name)
        for name in idle[:_IDLE_GROUPS_MAX]:
            left_s = max(deadline - time.monotonic(), _REQUEST_MIN_S)
            held_by = self.group_offsets(name, where, left_s)
            if any(offset is not None for offset in held_by.values()):
                reading.add(name)
            self._groups.pop(name).close()
        return sorted(reading)

    def static_members(self, group: str, timeout_s: float) -> list[StaticMember]:
        """The group's members with a `group.instance.id`, alive or not."""

        def ask(left_s: float) -> list[StaticMember]:
            described = self._group(group, left_s)
            members = [] if described is None else described.members
            return [
                StaticMember(member.group_instance_id, member.client_id)
                for member in members
                if member.group_instance_id
            ]

        return self._within(timeout_s, f"describe group {group}", ask)

    def group_facts(self, group: str, timeout_s: float) -> GroupFacts:
        """The state, members and rights of a group; `DEAD` if it does not exist."""

        def ask(left_s: float) -> GroupFacts:
            described = self._group(group, left_s)
            if described is None:
                return GroupFacts("DEAD", 0, None)
            rights = _names(described.authorized_operations)
            return GroupFacts(described.state.name, len(described.members), rights)

        return self._within(timeout_s, f"describe group {group}", ask)

    def group_state(self, group: str, timeout_s: float) -> tuple[str, int]:
        """Kafka's name for the state of the group, and the number of members."""
        return self.group_facts(group, timeout_s)[:2]

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int = -1,
        timeout_s: float = 10.0,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a topic and wait until it can be described; False if it existed already.

        `replication` -1 is the cluster's default.
        """
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replication,
            config=dict(config or {}),
        )
        exists = frozenset({KafkaError.TOPIC_ALREADY_EXISTS})
        deadline = time.monotonic() + timeout_s

        def ask(left_s: float) -> bool:
            futures = self._client.create_topics([topic], request_timeout=left_s)
            return name in answers(futures, left_s + _GRACE_S, exists)

        # One attempt: a second one would find the topic of the first.
        made = self._within(timeout_s, f"create topic {name}", ask, first_s=timeout_s)
        while name not in self.describe([name], max(deadline - time.monotonic(), _REQUEST_MIN_S)):
            time.sleep(_RETRY_PAUSE_S)
        return made

    def _of_topics(
        self, topics: Sequence[str], spec: Spec, *, committed: bool, timeout_s: float
    ) -> dict[TopicPartition, int]:
        deadline = time.monotonic() + timeout_s
        described = self.describe(topics, timeout_s).values()
        here = [(topic.name, number) for topic in described for number in range(topic.partitions)]
        left_s = max(deadline - time.monotonic(), _REQUEST_MIN_S)
        return self.offsets(here, spec, committed=committed, timeout_s=left_s)

    def _within(
        self, timeout_s: float, what: str, ask: Callable[[float], T], first_s: float | None = None
    ) -> T:
        """Run the request, and repeat it while its error is temporary.

        Each attempt may take twice as long as the one before, starting at `first_s`.
        """
        deadline, limit_s = time.monotonic() + timeout_s, first_s or _FIRST_ATTEMPT_S
        self._client.poll(0)  # Serves the callback that notes connection errors.
        self._failures.forget()
        while True:
            left_s = min(max(deadline - time.monotonic(), _REQUEST_MIN_S), _REQUEST_MAX_S)
            try:
                answer = ask(min(left_s, limit_s))
            except (KafkaException, TimeoutError) as error:
                self._client.poll(0)
                over = time.monotonic() + _RETRY_PAUSE_S >= deadline
                if over or not passes(raised_code(error)) or self._failures.hopeless():
                    explained = self._failures.explained(what, error)
                    if isinstance(explained, KafkaUnavailable):
                        self._not_answered()
                    else:
                        self._unanswered = 0
                    raise explained from None
            else:
                self._unanswered = 0
                return answer
            time.sleep(_RETRY_PAUSE_S)
            limit_s *= 2

    def _not_answered(self) -> None:
        """Replace the client after too many; `_group` may still use the former one."""
        self._unanswered += 1
        self._former = [(client, asked) for client, asked in self._former if _open(asked)]
        asked = _open(self._describing.values())
        if self._unanswered < _UNANSWERED_MAX or (asked and len(self._former) >= _FORMER_MAX):
            return
        try:
            client = AdminClient(self._config)
        except KafkaException:
            return  # no thread or no token available: try again after the next unanswered request
        if asked:
            self._former.append((self._client, asked))
        self._client, self._unanswered, self._describing = client, 0, {}


def _names(operations: Iterable[Any] | None) -> frozenset[str]:
    return frozenset(operation.name for operation in operations or ())


def _open(futures: Iterable[Future[Any]]) -> list[Future[Any]]:
    """The futures without an answer."""
    return [future for future in futures if not future.done()]
