"""`perkey dlq` on a real broker: letters go home once and in order, killed or not."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
)
from tests.integration.conftest import Guarded
from tests.support.rights import set_rights
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker
from perkey.cli.main import run as command

PARTITIONS = 2
KILLS = 6


def written(broker: LocalBroker, count: int) -> str:
    """A topic with so many records of 20 keys, and TOPIC.dlq with all of them as letters."""
    topic = f"dlq-{uuid.uuid4().hex[:8]}"
    for name in (topic, f"{topic}.dlq"):
        broker.create_topic(name, PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(count):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        key, value = b"k%d" % (number % 20), b"%d" % offset
        headers = [
            ("__dlq.errors.topic", topic.encode()),
            ("__dlq.errors.partition", b"%d" % partition),
            ("__dlq.errors.offset", value),
            ("__dlq.errors.group", b"billing"),
            ("__dlq.errors.message", b"Odd: x" if offset % 2 else b"Even: x"),
        ]
        producer.produce(topic, value, key, partition)
        producer.produce(f"{topic}.dlq", value, key, partition, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0
    return topic


def replayed(broker: LocalBroker, topic: str, limit_s: float = 60) -> list[list[int]]:
    """Of each partition the first offsets of what came back, as a read_committed reader sees it."""
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + limit_s
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline
        for message in reader.consume(2_000, 0.2):
            partition = message.partition()
            assert partition is not None
            if message.error():
                ended.add(partition)
                continue
            headers: dict[str, Any] = dict(message.headers() or ())
            if "__dlq.errors.replay.letter" in headers:
                assert message.value() == headers["__dlq.errors.replay.offset"]
                found[partition].append(int(message.value() or b""))
    reader.close()
    return found


def called(capsys: Any, broker: LocalBroker, *words: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    code = command(["dlq", *words, "--json", "--bootstrap-servers", broker.bootstrap])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


def test_letters_go_home_once_and_in_order(kafka_broker: LocalBroker, capsys):
    """First those of one type, then all; a third replay has nothing to send."""
    topic = written(kafka_broker, 200)
    dlq = f"{topic}.dlq"
    assert called(capsys, kafka_broker, "replay", dlq)["going"] == 200
    odd = called(capsys, kafka_broker, "replay", dlq, "--yes", "--where", 'error.type == "Odd"')
    assert (odd["sent"], odd["stale"]) == (100, 0)
    assert replayed(kafka_broker, topic) == [list(range(1, 100, 2))] * PARTITIONS
    left = {row["type"]: row["not_back"] for row in called(capsys, kafka_broker, "stats", dlq)}
    assert left == {"Odd": 0, "Even": 100}
    words = ("replay", dlq, "--yes", "--stale", "replay")
    sent, nothing = (called(capsys, kafka_broker, *words) for _ in range(2))
    assert (sent["sent"], list(sent["groups"])) == (100, [topic])
    assert (nothing["sent"], nothing["groups"]) == (0, {topic: []})
    whole = [*range(1, 100, 2), *range(0, 100, 2)]
    assert replayed(kafka_broker, topic) == [whole] * PARTITIONS


def test_letters_that_are_not_back_are_served(kafka_broker: LocalBroker, capsys):
    """By type: before the first replay, when its group does not exist, and after it."""
    topic = written(kafka_broker, 20)
    dlq = f"{topic}.dlq"
    line = ["perkey", "dlq", "stats", dlq, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", *line, "--bootstrap-servers", kafka_broker.bootstrap],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = process.stderr.readline().rpartition(" ")[2].strip()
        expected = {"other": 0, "Odd": 10, "Even": 10}
        wait_for(lambda: not_back(address) == expected)
        assert called(capsys, kafka_broker, "replay", dlq, "--yes", "--limit", "7")["sent"] == 7
        wait_for(lambda: sum(not_back(address).values()) == 13)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert f'perkey_dead_letters_not_back{{topic="{dlq}",type="Odd"}} ' in text
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM)


def not_back(address: str) -> dict[str, int]:
    """What /letters answers; empty while it has not counted."""
    try:
        with urllib.request.urlopen(f"http://{address}/letters", timeout=60) as answer:
            return dict(json.load(answer)["not_back"])
    except urllib.error.HTTPError as error:
        error.close()
        return {}


def start(broker: LocalBroker, topic: str, *words: str) -> subprocess.Popen[str]:
    """`perkey dlq replay … --yes` as a process."""
    line = [
        sys.executable,
        "-m",
        "perkey",
        "dlq",
        "replay",
        f"{topic}.dlq",
        "--yes",
        "--stale",
        "replay",
    ]
    return subprocess.Popen(
        [*line, "--json", "--bootstrap-servers", broker.bootstrap, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(found: Sequence[Sequence[int]], count: int) -> None:
    """Each letter once, in its order."""
    assert [list(one) for one in found] == [list(range(count // PARTITIONS))] * PARTITIONS


@pytest.mark.long
def test_a_replay_that_is_killed_continues_where_it_was(kafka_broker: LocalBroker):
    """Kill -9 at random times, in the middle of transactions: each letter once, in order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count = 12_000
    topic = written(kafka_broker, count)
    sent = 0
    for _ in range(KILLS):
        process = start(kafka_broker, topic, "--rate", "400")
        deadline = time.monotonic() + 60
        while sum(map(len, replayed(kafka_broker, topic))) == sent and process.poll() is None:
            assert time.monotonic() < deadline
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, 0.6))
        process.kill()
        process.communicate(timeout=60)
        sent = sum(map(len, replayed(kafka_broker, topic)))
    assert 0 < sent < count, "killed too early or too late to show anything"
    out, err = start(kafka_broker, topic).communicate(timeout=120)
    assert json.loads(out)["sent"] == count - sent, err
    check(replayed(kafka_broker, topic), count)


@pytest.mark.long
def test_a_second_replay_ends_the_first(kafka_broker: LocalBroker):
    """The first ends with a line that says so; together they send each letter once."""
    count = 4_000
    topic = written(kafka_broker, count)
    first = start(kafka_broker, topic, "--rate", "200")
    deadline = time.monotonic() + 60
    while not any(replayed(kafka_broker, topic)):
        assert time.monotonic() < deadline
    out, err = start(kafka_broker, topic).communicate(timeout=120)
    assert json.loads(out)["sent"] > 0, err
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1
    assert "another replay of this topic has started" in said
    assert [line for line in said.splitlines() if not line.startswith("perkey: ")] == []
    check(replayed(kafka_broker, topic), count)


@pytest.mark.long
@pytest.mark.parametrize("kind", [ResourceType.TOPIC, ResourceType.GROUP])
def test_what_may_not_be_read_is_one_line(rights_broker: Guarded, capsys, kind):
    """Topic and group each: exit code 2 and what is missing."""
    broker = rights_broker.broker
    topic = written(broker, 4)
    name = f"{topic}.dlq" if kind == ResourceType.TOPIC else f"perkey-replay.{topic}.dlq"
    set_rights(broker.bootstrap, kind, name, AclOperation.ALL)
    capsys.readouterr()
    assert command(["dlq", "ls", f"{topic}.dlq", "--bootstrap-servers", broker.bootstrap]) == 2
    line = capsys.readouterr().err
    assert name in line
    assert line.count("\n") == 1
