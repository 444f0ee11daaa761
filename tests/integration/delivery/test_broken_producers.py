"""librdkafka clients that break for good: the run goes on with new ones, and nothing is lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from tests.integration.app.conftest import Kafka
from tests.support.exactness import read_committed
from tests.support.waiting import wait_for

import perkey
from perkey.kafka import clib

FATAL_CODES = [
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    pytest.param(KafkaError.CLUSTER_AUTHORIZATION_FAILED, marks=pytest.mark.long),
]


def break_client(client: Any, code: int) -> None:
    """Raise a fatal error in a client, by librdkafka's own call for tests."""
    library = clib.library()
    call = library.rd_kafka_test_fatal_error
    pointer, text, _ = library.rd_kafka_fatal_error.argtypes
    call.argtypes = (pointer, library.rd_kafka_fatal_error.restype, text)
    call(clib.handle(client), code, b"broken by the test")


class Gate:
    """Lets handlers go on up to a number of results, so that what breaks breaks in the middle."""

    def __init__(self) -> None:
        self.results, self.most = 0, 0.0

    def work(self, seconds: float) -> None:
        """Work, and wait where enough is done."""
        time.sleep(seconds)  # its work
        while self.results > self.most:
            time.sleep(0.005)  # until the test says more, at its end at the latest

    def break_at(self, run: Any, count: int, broken: Callable[[], Any], code: int) -> None:
        """Break this client once more than so many records are done."""
        self.most = count + 200
        wait_for(lambda: run.snapshot()["handlers"]["handler"]["done"] > count)
        break_client(wait_for(broken), code)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is open after the test."""
    made = Gate()
    yield made
    made.most = math.inf


@pytest.mark.broker
@pytest.mark.parametrize("code", FATAL_CODES)
def test_outputs_and_dead_letters_survive_a_fatal_error(
    kafka: Kafka, gate: Gate, code: int
) -> None:
    """Every record has its output, none is parked, no attempt is charged, the run ends by itself."""
    topic, output, dead = kafka.topic(4), kafka.topic(), kafka.topic()
    kafka.fill(topic, [{"value": b"%d" % n, "key": b"%d" % (n % 50)} for n in range(6000)])
    app = kafka.app()
    failures: list[int] = []

    @app.consume(
        topic,
        output=output,
        retry=perkey.Retry(attempts=2, delay_s=0.01),
        on_exhausted=perkey.DeadLetter(dead),
    )
    def handler(record: perkey.Record) -> bytes:
        gate.work(0.005)
        if int(record.value) % 10 == 0:
            failures.append(record.attempt)
            raise ValueError("ten")
        gate.results += 1
        return record.value

    run = kafka.start(app, until="drained")
    for share in (1, 3, 5):
        gate.break_at(run, 600 * share, lambda: run.member.outputs._producer._life.producer, code)
    gate.most = math.inf
    report = run.wait(60)
    assert (report.exit_code, report.parked) == (0, 0)
    assert (report.done, report.dead_lettered) == (5400, 600)
    assert len(failures) == report.failed_attempts == 1200
    values = [m.value() for m in kafka.read(output, kafka.count(output))]
    assert set(values) == {b"%d" % n for n in range(6000) if n % 10}
    print(f"outputs {len(values)}, of them repeated {len(values) - 5400}")
    letters = {m.value() for m in kafka.read(dead, kafka.count(dead))}
    assert letters == {b"%d" % n for n in range(0, 6000, 10)}


@pytest.mark.broker
def test_a_transaction_survives_a_fatal_error(kafka: Kafka, gate: Gate) -> None:
    """The producer breaks in the middle of transactions: each output is there once, in lane order."""
    topic, output = kafka.topic(4), kafka.topic()
    kafka.fill(topic, [{"value": b"%d" % n, "key": b"%d" % (n % 50)} for n in range(4000)])
    app = kafka.app()

    @app.consume(topic, output=output, delivery="exactly_once")
    def handler(record: perkey.Record) -> bytes:
        gate.work(0.01)
        gate.results += 1
        return record.value

    run = kafka.start(app, until="drained")
    for share in (1, 2, 3):
        code = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
        gate.break_at(run, 700 * share, lambda: run.member.transactor._port._producer, code)
    gate.most = math.inf
    report = run.wait(60)
    assert report.exit_code == 0
    values = [int(m.value()) for m in read_committed(kafka.bootstrap, output)]
    check_exact(values, 4000, 50)


def check_exact(values: list[int], count: int, keys: int) -> None:
    """Each value once, and in order within each key."""
    assert sorted(values) == list(range(count))
    last: dict[int, int] = {}
    for value in values:
        assert last.get(value % keys, -1) < value
        last[value % keys] = value
