"""`perkey parked` on a real broker: what commits remember, with no member of the group."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from tests.support.waiting import wait_for

from perkey.broker import LocalBroker
from perkey.cli.main import run as command
from perkey.codec import Remembered, encode_fitting, with_rider
from perkey.kafka import clib

pytestmark = pytest.mark.broker


def committed(broker: LocalBroker, topic: str, offset: int, text: str) -> None:
    """A commit of the group with the topic's name, which has no members."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False}
    )

    def has_a_coordinator() -> bool:
        try:
            return bool(clib.committed(consumer, [(topic, 0)], 10.0))
        except Exception:
            return False  # it is being looked for

    wait_for(has_a_coordinator)
    queue = clib.CommitQueue(consumer)
    queue.send([(topic, 0, offset, text)])
    (answer,) = wait_for(lambda: queue.poll(1.0))
    assert answer.error == 0
    queue.close()
    consumer.close()


def called(capsys: Any, broker: LocalBroker, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `perkey WORDS…`."""
    capsys.readouterr()
    code = command([*words, "--bootstrap-servers", broker.bootstrap])
    return code, *capsys.readouterr()


def test_parked_and_held_are_listed_while_no_one_runs(kafka_broker: LocalBroker, capsys: Any):
    """With key and headers from the source; `perkey lag` counts both."""
    topic = f"parked-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    for number in range(3_000):
        producer.produce(
            topic, b"v%d" % number, b"k%d" % number, 0, headers=[("tenant", b"%d" % (number % 2))]
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    entries = (
        Remembered(3, 5, parked=True, exhausted_by="attempts", error=7),
        Remembered(2_500, 0, held=True, until_s=1_900_000_000),
    )
    text, _ = encode_fitting(3, 2_999, [3, 2_500])
    ridden, _ = with_rider(3, text, entries)
    committed(kafka_broker, topic, 3, ridden)

    code, out, err = called(capsys, kafka_broker, "parked", "ls", "--group", topic, "--json")
    assert code == 0, err
    found = [(row["offset"], row["attempts"], row["held_until"]) for row in json.loads(out)]
    assert found == [(3, 5, None), (2_500, 0, 1_900_000_000)]
    words = ("ls", topic, "--group", topic, "--where", 'header.tenant == "1"')
    code, out, err = called(capsys, kafka_broker, "parked", *words)
    assert (code, err) == (0, "")
    assert "k3" in out
    assert "1 parked, 0 held" in out
    code, out, err = called(
        capsys, kafka_broker, "parked", "show", f"{topic}:0:2500", "--group", topic
    )
    assert code == 0, err
    assert "key:          k2500" in out
    code, out, err = called(capsys, kafka_broker, "lag", "--group", topic)
    assert code == 0, err
    assert "1 parked, 1 held" in " ".join(out.split())


def test_a_group_that_does_not_exist(kafka_broker: LocalBroker, capsys: Any):
    """One line, exit 2."""
    code, out, err = called(capsys, kafka_broker, "parked", "ls", "--group", "nobody-at-all")
    assert (code, out) == (2, "")
    assert err == f"perkey: group nobody-at-all does not exist at {kafka_broker.bootstrap}\n"


def test_a_record_behind_the_end_is_not_waited_for(kafka_broker: LocalBroker, capsys: Any):
    """It is not in the topic: one line, where a reader would wait for half a minute."""
    topic = f"parked-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})
    producer.produce(topic, b"v", b"k", 0)
    assert producer.flush(60) == 0
    words = ("record", "export", f"{topic}:0:0", f"{topic}:0:1", "--group", topic)
    code, out, err = called(capsys, kafka_broker, *words)
    assert (code, json.loads(out)["value"]) == (2, "v")
    assert f"{topic}:0:1 is not in its topic (any more)" in err
