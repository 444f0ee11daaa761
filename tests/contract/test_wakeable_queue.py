"""Waiting for records and for our own threads at once, on the real broker."""

import random
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from perkey.broker import LocalBroker
from perkey.kafka import clib
from perkey.kafka.ports import CommitReply

SEED = 7


@pytest.fixture
def topic(kafka_broker: LocalBroker) -> str:
    """A fresh topic of two partitions."""
    name = f"waking-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def consumer(kafka_broker: LocalBroker, topic: str) -> Iterator[Consumer]:
    """A subscribed consumer with a small fetch queue, so that it often fills and empties."""
    made = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "queued.min.messages": 10,
            "log_level": 0,
        }
    )
    made.subscribe([topic])
    yield made
    made.close()


def produce(kafka_broker: LocalBroker, topic: str, pauses_s: Iterator[float]) -> threading.Thread:
    """A thread that produces one record for each pause."""

    def run() -> None:
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 0})
        wakes = threading.Event()
        for number, pause_s in enumerate(pauses_s):
            producer.produce(topic, str(number).encode(), partition=number % 2)
            producer.poll(0)
            wakes.wait(pause_s)
        producer.flush(30)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("take", [1, 7, 1000])
def test_no_record_is_left_sleeping(
    kafka_broker: LocalBroker, topic: str, consumer: Consumer, take: int
):
    """Trickled one by one and taken in small bites, 4,000 records come without one time-out."""
    count, wait_s = 4000, 30.0  # a busy machine lets nobody sleep for so long
    chance = random.Random(SEED)
    pauses_s = iter([chance.choice((0, 0, 0.0005, 0.002)) for _ in range(count)])
    queue = clib.WakeableQueue(consumer)
    thread = produce(kafka_broker, topic, pauses_s)
    found = timeouts = 0
    deadline = time.monotonic() + 100
    while found < count and time.monotonic() < deadline:
        timeouts += not queue.wait(wait_s)
        messages = consumer.consume(take, 0)
        assert all(message.error() is None for message in messages)
        found += len(messages)
    thread.join(30)
    queue.close()
    assert (found, timeouts) == (count, 0), f"seed {SEED}"


def quiet(queue: clib.WakeableQueue, consumer: Consumer) -> None:
    """Serve the consumer until it has joined its group and has nothing more to do."""
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        queue.wait(0.3)
        consumer.consume(100, 0)
    while queue.wait(0.3):
        consumer.consume(100, 0)


def test_any_thread_wakes_the_waiting_one(consumer: Consumer):
    """A wake-up ends a wait at once, is kept for the next wait, and many are one."""
    queue = clib.WakeableQueue(consumer)
    quiet(queue, consumer)
    threading.Timer(0.05, queue.wake).start()
    began = time.monotonic()
    assert queue.wait(100)
    assert time.monotonic() - began < 50
    for _ in range(100_000):  # More than a pipe holds: it must not block.
        queue.wake()
    assert queue.wait(0)
    while queue.wait(0):
        pass
    began = time.monotonic()
    assert not queue.wait(0.05)
    assert time.monotonic() - began >= 0.05
    queue.close()


def test_rebalances_end_the_wait(consumer: Consumer, topic: str):
    """Callbacks are work too: the assignment comes without any record."""
    assigned: list[object] = []
    consumer.subscribe([topic], on_assign=lambda _consumer, found: assigned.extend(found))
    queue = clib.WakeableQueue(consumer)
    deadline = time.monotonic() + 60
    while not assigned and time.monotonic() < deadline:
        assert queue.wait(30)
        consumer.consume(100, 0)
    queue.close()
    assert len(assigned) == 2


def test_an_answered_commit_ends_the_wait(consumer: Consumer, topic: str):
    """A commit queue that signals wakes the waiting thread for its answer."""
    queue = clib.WakeableQueue(consumer)
    commits = clib.CommitQueue(consumer)
    commits.signal(queue)
    quiet(queue, consumer)
    token = commits.send([(topic, 0, 1, "bgAA")])
    deadline = time.monotonic() + 60
    answers: list[CommitReply] = []
    while not answers and time.monotonic() < deadline:
        assert queue.wait(30)
        answers = commits.poll(0)
        consumer.consume(100, 0)
    commits.close()
    queue.close()
    assert [answer.token for answer in answers] == [token]


def test_it_closes_twice_and_the_consumer_after_it(consumer: Consumer):
    """Closing gives the descriptors back once; the consumer closes without hanging."""
    queue = clib.WakeableQueue(consumer)
    queue.close()
    queue.close()
    queue.wake()
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 40
