"""The admin client on a real broker."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
)
from tests.support.rights import set_rights

from perkey.errors import ConfigError
from perkey.kafka import clib
from perkey.kafka.admin import KafkaAdmin, TopicFacts
from perkey.kafka.ports import KafkaUnavailable
from perkey.kafka.settings import client_settings

TIMEOUT_S = 60.0
#: in it a connection is tried and refused, on a busy machine too
REFUSED_S = 2.5
NOBODY = "127.0.0.1:1"


def settings(bootstrap: str, **kafka):
    return client_settings(
        {"bootstrap.servers": bootstrap} | kafka,
        {},
        group="unused",
        buffer_records=1000,
        buffer_bytes=2**24,
        delivery="at_least_once",
    )


@pytest.fixture
def admin(kafka_broker):
    with KafkaAdmin(settings(kafka_broker.bootstrap)) as client:
        yield client


@pytest.fixture
def topic(kafka_broker):
    """A topic of three partitions."""
    name = f"admin-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=3)
    return name


def produce(bootstrap: str, topic: str, counts: list[int], **config) -> None:
    producer = Producer({"bootstrap.servers": bootstrap} | config)
    if config:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    if config:
        producer.commit_transaction(TIMEOUT_S)


def test_topics_are_described_and_missing_ones_absent(admin, topic) -> None:
    """Name, id and number of partitions."""
    found = admin.describe([topic, "no-such-topic", topic], TIMEOUT_S)
    assert set(found) == {topic}
    assert found[topic] == TopicFacts(topic, found[topic].topic_id, 3)
    assert len(found[topic].topic_id) == 22
    assert admin.describe([], TIMEOUT_S) == {}


def test_a_topic_recreated_has_another_id(admin, kafka_broker, topic) -> None:
    """So that an epoch of the old one is recognised."""
    before = admin.describe([topic], TIMEOUT_S)[topic].topic_id
    kafka_broker.delete_topic(topic)
    assert admin.describe([topic], TIMEOUT_S) == {}
    kafka_broker.create_topic(topic, partitions=3)
    assert admin.describe([topic], TIMEOUT_S)[topic].topic_id != before


def test_a_name_that_no_topic_can_have_is_refused(admin) -> None:
    """The message has the name."""
    with pytest.raises(ConfigError, match=r"not a name.*Invalid topic"):
        admin.describe(["not a name"], TIMEOUT_S)


def test_patterns_match_as_a_subscription_does(admin, kafka_broker) -> None:
    """From the start of the name, not necessarily to its end: the same topics as librdkafka."""
    prefix = f"p{uuid.uuid4().hex[:6]}"
    for name in (f"{prefix}.a", f"{prefix}.ab", f"{prefix}.c", f"x{prefix}.a"):
        kafka_broker.create_topic(name)
    patterns = [f"^{prefix}\\.a", f"^{prefix}\\.[c-d]$", "^nothing-"]
    expected = [f"{prefix}.a", f"{prefix}.ab", f"{prefix}.c"]
    assert admin.matching(patterns, TIMEOUT_S) == expected
    assert subscribed(kafka_broker.bootstrap, patterns) == set(expected)


def subscribed(bootstrap: str, patterns: list[str]) -> set[str]:
    """What a real consumer is assigned for these patterns."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    consumer.subscribe(patterns)
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    found = {one.topic for one in consumer.assignment()}
    consumer.close()
    return found


def test_a_pattern_that_is_none_is_refused(admin) -> None:
    """Before the broker is asked."""
    with pytest.raises(ConfigError, match=r"'\^\(a' is not a regular expression"):
        admin.matching(["^(a"], TIMEOUT_S)


def test_starts_and_ends(admin, kafka_broker, topic) -> None:
    """Every partition, also empty ones; topics that are missing are left out."""
    produce(kafka_broker.bootstrap, topic, [5, 0, 2])
    ends = {(topic, 0): 5, (topic, 1): 0, (topic, 2): 2}
    topics = [topic, "no-such-topic"]
    assert admin.ends(topics, committed=True, timeout_s=TIMEOUT_S) == ends
    assert admin.ends(topics, committed=False, timeout_s=TIMEOUT_S) == ends
    assert admin.starts(topics, timeout_s=TIMEOUT_S) == dict.fromkeys(ends, 0)
    assert admin.ends([], committed=True, timeout_s=TIMEOUT_S) == {}


def test_an_open_transaction_holds_the_committed_end_back(admin, kafka_broker, topic) -> None:
    """`committed` is what a read_committed consumer can reach."""
    produce(kafka_broker.bootstrap, topic, [3])
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    assert admin.ends([topic], committed=True, timeout_s=TIMEOUT_S)[topic, 0] == 3
    assert admin.ends([topic], committed=False, timeout_s=TIMEOUT_S)[topic, 0] == 4
    producer.abort_transaction(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S  # Its marker is written a moment later.
    while admin.ends([topic], committed=True, timeout_s=TIMEOUT_S)[topic, 0] == 3:
        assert time.monotonic() < deadline
    assert admin.ends([topic], committed=True, timeout_s=TIMEOUT_S)[topic, 0] == 5


def test_offsets_of_single_partitions_and_of_a_time(admin, kafka_broker, topic) -> None:
    """Partitions that do not exist are left out; a time after the last record gives -1."""
    produce(kafka_broker.bootstrap, topic, [4])
    asked = [(topic, 0), (topic, 9), ("no-such-topic", 0)]
    assert admin.offsets(asked, "end", timeout_s=TIMEOUT_S) == {(topic, 0): 4}
    assert admin.offsets(asked, "start", timeout_s=TIMEOUT_S) == {(topic, 0): 0}
    assert admin.offsets(asked, 1, timeout_s=TIMEOUT_S) == {(topic, 0): 0}
    later_ms = int(time.time() * 1000) + 3_600_000
    assert admin.offsets(asked, later_ms, timeout_s=TIMEOUT_S) == {(topic, 0): -1}
    assert admin.offsets([], "end", timeout_s=TIMEOUT_S) == {}
    assert admin.offsets(asked[1:], "end", timeout_s=TIMEOUT_S) == {}


def test_offsets_of_a_group(admin, kafka_broker, topic) -> None:
    """What is committed, whatever metadata stands with it; None where nothing is."""
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    queue = clib.CommitQueue(consumer)
    queue.send([(topic, 0, 17, "bADF/v/v///+/+////7/7////v/v///+/+//HwA="), (topic, 1, 0, "")])
    deadline = time.monotonic() + TIMEOUT_S
    while not (answers := queue.poll(0.5)) and time.monotonic() < deadline:
        pass
    assert answers[0].error == 0
    queue.close()
    consumer.close()
    asked = [(topic, 0), (topic, 1), (topic, 2), ("no-such-topic", 0)]
    expected = dict(zip(asked, [17, 0, None, None], strict=True))
    for _ in range(2):
        assert admin.group_offsets(group, asked, TIMEOUT_S) == expected
    assert admin.group_offsets(group, [], TIMEOUT_S) == {}


def test_offsets_of_a_group_do_not_wait_for_a_transaction(admin, kafka_broker, topic) -> None:
    """A dead producer's open transaction must not hold the answer up."""
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": group})
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": uuid.uuid4().hex}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    membership = clib.GroupMetadata(consumer)
    clib.send_offsets_to_transaction(producer, [(topic, 0, 5, "")], membership, TIMEOUT_S)
    membership.close()
    started = time.monotonic()
    assert admin.group_offsets(group, [(topic, 0)], TIMEOUT_S) == {(topic, 0): None}
    assert time.monotonic() - started < TIMEOUT_S / 4
    producer.commit_transaction(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S  # Its marker is written a moment later.
    while admin.group_offsets(group, [(topic, 0)], TIMEOUT_S) == {(topic, 0): None}:
        assert time.monotonic() < deadline
    assert admin.group_offsets(group, [(topic, 0)], TIMEOUT_S) == {(topic, 0): 5}
    consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group(admin, kafka_broker, topic, protocol) -> None:
    """None without such a group, then one, then an empty group; in both protocols."""
    group = uuid.uuid4().hex
    assert admin.group_members(group, TIMEOUT_S) is None
    consumer = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    assert admin.group_members(group, TIMEOUT_S) == 1
    consumer.close()
    deadline = time.monotonic() + TIMEOUT_S  # It may leave without waiting for the answer.
    while admin.group_members(group, TIMEOUT_S) == 1:
        assert time.monotonic() < deadline
    assert admin.group_members(group, TIMEOUT_S) == 0


def test_a_topic_is_created_once(admin) -> None:
    """True when made, False when it was there; then it can be described."""
    name = f"made-{uuid.uuid4().hex[:8]}"
    assert admin.create_topic(name, 2, timeout_s=TIMEOUT_S) is True
    assert admin.describe([name], TIMEOUT_S)[name].partitions == 2
    assert admin.create_topic(name, 5, timeout_s=TIMEOUT_S) is False
    assert admin.describe([name], TIMEOUT_S)[name].partitions == 2


@pytest.mark.parametrize(
    ("name", "partitions", "replication", "reason"),
    [("not a name", 1, -1, "invalid"), ("fine", 0, -1, "partitions"), ("fine", 1, 3, "replica")],
)
def test_a_topic_that_cannot_be_is_refused(admin, name, partitions, replication, reason) -> None:
    """The broker's reason in one line, at once."""
    started = time.monotonic()
    with pytest.raises(ConfigError, match=reason) as raised:
        admin.create_topic(name, partitions, replication, TIMEOUT_S)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started < TIMEOUT_S / 2


REQUESTS = {
    "describe": lambda admin, limit_s: admin.describe(["t"], limit_s),
    "matching": lambda admin, limit_s: admin.matching(["^t"], limit_s),
    "ends": lambda admin, limit_s: admin.ends(["t"], committed=True, timeout_s=limit_s),
    "offsets": lambda admin, limit_s: admin.offsets([("t", 0)], "end", timeout_s=limit_s),
    "group_offsets": lambda admin, limit_s: admin.group_offsets("g", [("t", 0)], limit_s),
    "group_members": lambda admin, limit_s: admin.group_members("g", limit_s),
    "create_topic": lambda admin, limit_s: admin.create_topic("t", 1, -1, limit_s),
}


def test_absent_brokers_are_named_within_the_limit() -> None:
    """KafkaUnavailable in one line: the address, what the connection said, what to look at."""

    def answer(name: str) -> str:
        with KafkaAdmin(settings(NOBODY)) as admin:
            started = time.monotonic()
            with pytest.raises(KafkaUnavailable) as raised:
                REQUESTS[name](admin, REFUSED_S)
            assert time.monotonic() - started < REFUSED_S + TIMEOUT_S / 2
        return str(raised.value)

    with ThreadPoolExecutor(len(REQUESTS)) as pool:  # each waits for its whole limit
        for message in pool.map(answer, REQUESTS):
            assert NOBODY in message
            assert "Connection refused" in message
            assert "bootstrap.servers" in message
            assert "\n" not in message


@pytest.mark.long
def test_a_request_waits_for_a_broker_that_is_coming_back(mortal_broker) -> None:
    """Within the limit, what passes by itself is waited out."""
    broker = mortal_broker
    broker.create_topic("t")
    with KafkaAdmin(settings(broker.bootstrap)) as admin:
        assert "t" in admin.describe(["t"], TIMEOUT_S)
        broker.kill()
        with pytest.raises(KafkaUnavailable):
            admin.describe(["t"], 0.5)
        broker.restart()
        assert "t" in admin.describe(["t"], TIMEOUT_S)
        assert admin.group_members("nobody", TIMEOUT_S) is None


@pytest.mark.parametrize("request_name", ["describe", "matching", "group_offsets"])
def test_a_refused_login_is_a_configuration_error_without_the_password(
    kafka_broker, request_name
) -> None:
    """The broker speaks no SASL: one line with the cure, and no secret."""
    login = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "canary-user",
        "sasl.password": "canary-password",
    }
    started = time.monotonic()
    with (
        KafkaAdmin(settings(kafka_broker.bootstrap, **login)) as admin,
        pytest.raises(ConfigError, match=r"check security\.protocol and sasl") as raised,
    ):
        REQUESTS[request_name](admin, TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S / 2
    assert kafka_broker.bootstrap in str(raised.value)
    assert "canary" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tls_to_a_plain_listener_reports_it(kafka_broker) -> None:
    """No TLS there: the message says what it may be."""
    tls = settings(kafka_broker.bootstrap, **{"security.protocol": "ssl"})
    # Which of the two librdkafka says depends on how far its greeting had come when it was cut off.
    said = r"connecting to a PLAINTEXT broker listener\?|closed by peer .*in state SSL_HANDSHAKE"
    with KafkaAdmin(tls) as admin, pytest.raises(KafkaUnavailable, match=said):
        admin.describe(["t"], 4 * REFUSED_S)


@pytest.fixture(scope="module")
def guarded(rights_broker):
    """A broker with rights: the topic `bobs` and the group `bob` are Bob's alone."""
    broker = rights_broker.broker
    broker.create_topic("bobs")
    broker.create_topic("all")
    for kind, name in ((ResourceType.TOPIC, "bobs"), (ResourceType.GROUP, "bob")):
        set_rights(broker.bootstrap, kind, name, AclOperation.ALL)
    return broker


def test_missing_rights_are_a_configuration_error(guarded) -> None:
    """A topic and a group that are somebody else's: at once, with the right to grant."""
    with KafkaAdmin(settings(guarded.bootstrap)) as admin:
        assert "all" in admin.describe(["all"], TIMEOUT_S)
        started = time.monotonic()
        for ask in (
            lambda: admin.describe(["all", "bobs"], TIMEOUT_S),
            lambda: admin.offsets([("bobs", 0)], "end", timeout_s=TIMEOUT_S),
            lambda: admin.group_offsets("bob", [("all", 0)], TIMEOUT_S),
            lambda: admin.group_members("bob", TIMEOUT_S),
        ):
            with pytest.raises(ConfigError, match=r"authorization failed.*grant READ"):
                ask()
        assert time.monotonic() - started < TIMEOUT_S / 2
