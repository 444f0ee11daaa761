"""What real brokers answer when a client is fenced, and what the table of verdicts makes of it."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from perkey.kafka.consumer import KafkaConsumer
from perkey.kafka.failures import root_cause
from perkey.kafka.verdicts import delivery_verdict, poll_verdict, transaction_verdict

TIMEOUT_S = 60.0


def static_member(bootstrap: str, group: str, protocol: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": "the-same",
            "group.protocol": protocol,
            "log_level": 0,
        }
    )


def first_error(consumer: Consumer, *others: Consumer) -> KafkaError:
    """The first error that polling this consumer brings; the others are polled along."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for other in others:
            other.poll(0)
        message = consumer.poll(0.1)
        error = None if message is None else message.error()
        if error is not None:
            return error
    raise AssertionError("no error came")


def until_assigned(consumer: Consumer) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)


@pytest.fixture
def topic(kafka_broker):
    name = f"fatal-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name)
    return name


@pytest.mark.parametrize(
    ("protocol", "code", "verdict"),
    [
        ("classic", KafkaError.FENCED_INSTANCE_ID, "stop"),
        ("consumer", KafkaError.UNRELEASED_INSTANCE_ID, "rejoin"),
    ],
)
def test_the_same_static_id_twice(kafka_broker, topic, protocol, code, verdict) -> None:
    """The classic protocol fences the older member for good; under KIP-848 the newer one waits.

    librdkafka says "_FATAL" for both: only the root cause tells them apart.
    """
    group = uuid.uuid4().hex
    older = static_member(kafka_broker.bootstrap, group, protocol)
    newer = static_member(kafka_broker.bootstrap, group, protocol)
    try:
        older.subscribe([topic])
        until_assigned(older)
        newer.subscribe([topic])
        failed, other = (older, newer) if protocol == "classic" else (newer, older)
        error = first_error(failed, other)
        assert error.name() == "_FATAL"
        cause = root_cause(failed, error)
        assert (cause.code(), cause.fatal()) == (code, True)
        assert poll_verdict(cause.code()) == verdict
        harmless = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert root_cause(other, harmless) is harmless
    finally:
        newer.close()
        older.close()


@pytest.mark.parametrize(("own_id", "action"), [(True, "recreate"), (False, "stop")])
def test_a_member_with_an_id_of_its_own_takes_its_place_again(
    kafka_broker, topic, own_id, action
) -> None:
    """Only a former membership of this run can have it (found with all brokers away for 45 s)."""
    group = uuid.uuid4().hex
    config = {"bootstrap.servers": kafka_broker.bootstrap, "group.id": group, "log_level": 0}
    older = KafkaConsumer({**config, "group.instance.id": "the-same"}, own_id=own_id)
    newer = static_member(kafka_broker.bootstrap, group, "classic")
    try:
        listener = Listener()
        older.subscribe([topic], listener)
        deadline = time.monotonic() + TIMEOUT_S
        while not listener.assigned:
            older.poll(0.1, 100)
            assert time.monotonic() < deadline
        newer.subscribe([topic])
        while not (problems := older.poll(0.1, 100).problems):
            newer.poll(0)
            assert time.monotonic() < deadline
        assert [one.action for one in problems] == [action]
    finally:
        newer.close()
        older.leave(1.0)


class Listener:
    """Takes what comes."""

    assigned = False

    def on_assigned(self, partitions) -> dict:
        self.assigned = True
        return dict.fromkeys(partitions, 0)

    def on_revoked(self, partitions) -> None:
        """Nothing is held."""

    on_lost = on_revoked


def transactional(bootstrap: str, name: str, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    return producer


def failure_of(call) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        call()
    return raised.value.args[0]


def test_a_second_producer_fences_the_first(kafka_broker, topic) -> None:
    """The first one's commit fails for good."""
    name = uuid.uuid4().hex
    first = transactional(kafka_broker.bootstrap, name)
    first.produce(topic, b"1")
    first.flush(TIMEOUT_S)
    second = transactional(kafka_broker.bootstrap, name)
    error = failure_of(lambda: first.commit_transaction(TIMEOUT_S))
    assert error.fatal()
    assert transaction_verdict(error) == "fenced"
    second.abort_transaction(TIMEOUT_S)


def test_a_transaction_timed_out_by_the_broker_looks_like_fencing(kafka_broker, topic) -> None:
    """Only its age tells them apart; a new producer under the same id then goes on."""
    name = uuid.uuid4().hex
    producer = transactional(kafka_broker.bootstrap, name, timeout_ms=1000)
    producer.produce(topic, b"1")
    producer.flush(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while read_committed_end(kafka_broker.bootstrap, topic) == 0:
        assert time.monotonic() < deadline
    error = failure_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert transaction_verdict(error) == "fenced"
    assert transaction_verdict(error, timed_out=True) == "new_producer"
    again = transactional(kafka_broker.bootstrap, name)
    again.produce(topic, b"2")
    again.commit_transaction(TIMEOUT_S)


def read_committed_end(bootstrap: str, topic: str) -> int:
    """Where a read_committed consumer ends: past the transaction once the broker has ended it."""
    from perkey.kafka.admin import KafkaAdmin
    from perkey.kafka.settings import client_settings

    settings = client_settings(
        {"bootstrap.servers": bootstrap},
        {},
        group="g",
        buffer_records=1,
        buffer_bytes=1,
        delivery="exactly_once",
    )
    with KafkaAdmin(settings) as admin:
        return admin.ends([topic], committed=True, timeout_s=TIMEOUT_S)[topic, 0]


def test_a_refused_message_aborts_and_leaves_a_hole_in_the_sequence(kafka_broker, topic) -> None:
    """After the abort the producer fails once more on that partition; a new one does not."""
    small, name = f"{topic}-small", uuid.uuid4().hex
    kafka_broker.create_topic(small, config={"max.message.bytes": 1000})
    producer = transactional(kafka_broker.bootstrap, name)
    verdicts = []
    producer.produce(
        small, b"x" * 5000, on_delivery=lambda e, _: verdicts.append(delivery_verdict(e.code()))
    )
    producer.flush(TIMEOUT_S)
    assert verdicts == ["refused"]
    error = failure_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert transaction_verdict(error) == "abort"
    producer.abort_transaction(TIMEOUT_S)

    producer.begin_transaction()
    producer.produce(small, b"x")
    error = failure_of(lambda: producer.commit_transaction(TIMEOUT_S))
    assert error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert transaction_verdict(error) == "new_producer"
    producer = transactional(kafka_broker.bootstrap, name)
    producer.produce(small, b"x")
    producer.commit_transaction(TIMEOUT_S)
