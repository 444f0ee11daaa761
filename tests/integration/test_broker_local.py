"""`LocalBroker` and the fixture: real Kafka, killed and restarted from a test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.support.waiting import wait_for

from perkey.broker import BrokerError, LocalBroker, jars
from perkey.broker.process import is_node
from perkey.errors import ConfigError

pytestmark = [pytest.mark.broker]


def produce(bootstrap, topic, count):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(90) == 0


def consume(bootstrap, topic, count, **config):
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "group.id": uuid.uuid4().hex, **config})
    consumer.subscribe([topic])
    values, deadline = [], time.monotonic() + 90
    try:
        while len(values) < count and time.monotonic() < deadline:
            values += [m.value() for m in consumer.consume(count, timeout=0.5) if not m.error()]
    finally:
        consumer.close()
    return values


def test_the_fixture_answers_metadata(kafka_broker):
    """The fixture gives a broker on loopback that lists itself."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    listed = admin.list_topics(timeout=60).brokers.values()
    assert [f"{one.host}:{one.port}" for one in listed] == [kafka_broker.bootstrap]


def test_topics_come_and_go(kafka_broker):
    """A created topic has its partitions and settings; a deleted one is gone when the call returns."""
    name = f"t-{uuid.uuid4().hex}"
    kafka_broker.create_topic(name, partitions=3, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    assert len(admin.list_topics(timeout=60).topics[name].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    shown = admin.describe_configs([resource])[resource].result(60)
    assert shown["cleanup.policy"].value == "compact"
    kafka_broker.delete_topic(name)
    assert name not in admin.list_topics(timeout=60).topics


def test_what_the_broker_refuses_names_the_topic(kafka_broker):
    """A topic that cannot be made or deleted is a BrokerError with its name."""
    with pytest.raises(BrokerError, match="topic far could not be created"):
        kafka_broker.create_topic("far", replication=5)
    with pytest.raises(BrokerError, match="topic nowhere could not be deleted"):
        kafka_broker.delete_topic("nowhere")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_start_immediately(kafka_broker, protocol):
    """Both group protocols hand out partitions within seconds, and read from the start."""
    name = f"t-{uuid.uuid4().hex}"
    kafka_broker.create_topic(name)
    produce(kafka_broker.bootstrap, name, 10)
    values = consume(kafka_broker.bootstrap, name, 10, **{"group.protocol": protocol})
    assert values == [str(number).encode() for number in range(10)]


def test_topics_are_not_made_by_accident(kafka_broker):
    """A mistyped topic is an error on this broker, not a new topic."""
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap})
    admin.list_topics("mistyped", timeout=60)
    assert "mistyped" not in admin.list_topics(timeout=60).topics


@pytest.mark.long
def test_a_killed_broker_comes_back_with_its_records():
    """Kill -9 and restart: same address, same records; settings given reach the broker."""
    with LocalBroker(config={"message.max.bytes": 54_321}) as broker:
        broker.create_topic("kept")
        produce(broker.bootstrap, "kept", 100)
        address, (pid,) = broker.bootstrap, broker.pids
        broker.kill()
        assert broker.pids == []
        broker.restart()
        assert broker.bootstrap == address
        assert broker.pids != [pid]
        assert len(consume(address, "kept", 100)) == 100
        admin = AdminClient({"bootstrap.servers": address})
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        shown = admin.describe_configs([resource])[resource].result(60)
        assert shown["message.max.bytes"].value == "54321"
        folder = broker._cluster.folder
    assert not folder.exists()


@pytest.mark.long
def test_three_nodes_continue_without_one(three_nodes):
    """With three nodes, acks=all is still answered when one is killed, and it can come back."""
    broker = three_nodes
    broker.create_topic("copied", partitions=3, replication=3)
    broker.kill(2)
    assert len(broker.pids) == 2
    produce(broker.bootstrap, "copied", 30)
    broker.restart(2)
    assert len(broker.pids) == 3
    assert len(consume(broker.bootstrap, "copied", 30)) == 30


@pytest.mark.long
def test_a_stopped_broker_resumes(mortal_broker):
    """SIGSTOP and SIGCONT reach the node: while it is stopped nothing answers."""
    broker = mortal_broker
    broker.kill(sig=signal.SIGSTOP)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    broker.kill(sig=signal.SIGCONT)
    assert admin.list_topics(timeout=60).brokers


@pytest.mark.long
def test_a_folder_that_runs_already_is_refused(tmp_path):
    """Two LocalBroker on one folder would stop each other's: the second is refused."""
    with LocalBroker(data_dir=tmp_path) as first:
        with pytest.raises(ConfigError, match="already runs in"):
            LocalBroker(data_dir=tmp_path).start()
        assert len(first.pids) == 1
    assert (tmp_path / "cluster.json").exists()


def test_it_dies_with_its_program(tmp_path):
    """A program killed with -9 leaves no broker behind."""
    script = (
        "import signal; from perkey.broker import LocalBroker\n"
        f"broker = LocalBroker(data_dir={str(tmp_path)!r}).start()\n"
        "print(broker.pids[0], flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as one:
        pid = int(one.stdout.readline())
        one.kill()

    wait_for(lambda: not is_node(pid, tmp_path / "node-1" / "server.properties"), 60)


def test_it_reports_when_it_is_not_started():
    """Asking a broker that is not started, or for a node that is not there, is a BrokerError."""
    broker = LocalBroker()
    with pytest.raises(BrokerError, match="not started"):
        _ = broker.bootstrap
    with pytest.raises(BrokerError, match="not started"):
        broker.kill()
    broker.stop()


@pytest.mark.java
@pytest.mark.long
@pytest.mark.parametrize("client", ["Maven", "Ivy"])
def test_each_client_brings_the_same_jars(client, monkeypatch, tmp_path):
    """Maven and the Ivy inside PySpark each bring all 44 jars, with the pinned checksums."""
    clients = jars._clients
    monkeypatch.setattr(jars, "_clients", lambda *a: {client: clients(*a)[client]})
    monkeypatch.setenv("PERKEY_CACHE", str(tmp_path))
    assert len(jars.ensure_jars()) == 44
