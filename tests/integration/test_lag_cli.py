"""`perkey lag` on a real broker: the true lag of any group, without joining it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support import command
from tests.support.waiting import wait_for

from perkey.codec import encode_fitting
from perkey.kafka import clib

pytestmark = pytest.mark.broker

COUNT = 50
HELD = 40


def perkey(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `perkey lag …`."""
    return command.perkey("lag", *arguments)


@pytest.fixture
def group(kafka_broker):
    """A group that has committed partition 0 with a map, as the Java library would, and no more.

    Fifty records in each of two partitions, the first ones an hour old; of partition 0 all but
    offsets 7 and 40 are done.
    """
    name = uuid.uuid4().hex
    config = {"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    producer = Producer(config)
    hour_ago_ms = int((time.time() - 3600) * 1000)
    for partition in (0, 1):
        for n in range(COUNT):
            producer.produce(name, b"%d" % n, partition=partition, timestamp=hour_ago_ms + n)
    assert producer.flush(60) == 0
    text, _ = encode_fitting(7, COUNT - 1, [7, HELD], limit_chars=4096)
    consumer = Consumer({**config, "group.id": name, "enable.auto.commit": False})
    queue = clib.CommitQueue(consumer)
    wait_for(lambda: clib.committed(consumer, [(name, 0)], 10.0))
    queue.send([(name, 0, 7, text)])
    (answer,) = wait_for(lambda: queue.poll(1.0))
    assert answer.error == 0
    queue.close()
    consumer.close()
    return name, kafka_broker.bootstrap


def test_the_true_lag_as_json(group):
    """What is done beyond does not count; the oldest's age is its record's; all fields are there."""
    name, bootstrap = group
    done = perkey("--group", name, "--bootstrap-servers", bootstrap, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    first, second = told["partitions"]
    assert (told["group"], told["remaining"]) == (name, 2 + COUNT)
    age_s = first.pop("oldest_age_s")
    assert 3600 <= age_s < 3900
    assert first.pop("map_chars") > 0
    assert first == {
        "topic": name, "partition": 0, "end": COUNT, "committed": 7, "done_beyond": 41,
        "remaining": 2, "oldest_not_done": 7, "problem": None,
    }  # fmt: skip
    assert (second["committed"], second["remaining"]) == (None, COUNT)
    assert "no commit" in second["problem"]


def test_a_table_for_people(group):
    """With the sum in its title."""
    name, bootstrap = group
    done = perkey("--group", name, "--bootstrap-servers", bootstrap)
    assert done.returncode == 0
    assert "52 remaining in 2 partitions" in done.stdout


def test_an_open_transaction_is_named_as_the_cause(kafka_broker):
    """Committed up to it, and no further for an hour."""
    name, config = uuid.uuid4().hex, {"bootstrap.servers": kafka_broker.bootstrap, "log_level": 0}
    admin = AdminClient(config)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    writer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": 600_000})
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(name, b"never ended", timestamp=int((time.time() - 3600) * 1000))
    assert writer.flush(60) == 0
    consumer = Consumer({**config, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    consumer.close()
    [row] = json.loads(
        perkey("--group", name, "--bootstrap-servers", kafka_broker.bootstrap, "--json").stdout
    )["partitions"]
    writer.abort_transaction(60)
    assert (row["remaining"], row["oldest_not_done"]) == (1, 0)
    assert row["problem"].startswith("records from offset 0 wait behind an open transaction")


def test_a_group_that_is_not_there(kafka_broker):
    """One line, exit 2."""
    servers = kafka_broker.bootstrap
    done = perkey("--group", "nobody", "--bootstrap-servers", servers)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"perkey: group nobody does not exist at {servers}\n"


def test_served_for_prometheus_and_keda(group):
    """--listen answers /lag and /metrics until it is told to stop."""
    name, bootstrap = group
    with subprocess.Popen(
        [sys.executable, "-m", "perkey.cli.main", "lag", "--group", name, "--bootstrap-servers",
         bootstrap, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        try:
            line = child.stderr.readline()
            port = int(line.rsplit(":", 1)[1].split()[0])

            def remaining():
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/lag", timeout=60) as told:
                        return json.load(told)["remaining"]
                except OSError:
                    return None  # not measured yet: 503

            assert wait_for(remaining) == 52
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as told:
                assert "perkey_group_remaining_records" in told.read().decode()
        finally:
            child.terminate()
        assert child.wait(60) in (0, -15)
