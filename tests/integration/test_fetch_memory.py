"""A consumer with Perkey's settings stays near its budget, however many large partitions it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from perkey.kafka.settings import client_settings

BUDGET_BYTES = 128 * 2**20
#: What the whole process may take beside the budget.
BESIDE_MB = 150
PARTITIONS, ROUNDS, RECORD_BYTES = 64, 6, 1_000_000

#: Holds up to the budget, pauses, frees some, resumes: as the runtime does, in a clean process.
PROGRAM = """
import json, sys, time
from collections import deque
from confluent_kafka import Consumer

settings, expected, budget = json.loads(sys.stdin.read())
consumer = Consumer(settings)
consumer.subscribe(["large"])
held, size, count, paused, most = deque(), 0, 0, False, 0
deadline = time.monotonic() + 60
while count < expected and time.monotonic() < deadline:
    for message in consumer.consume(2000, 0.01):
        if message.error() is None:
            held.append(message.value())
            size, count = size + len(held[-1]), count + 1
    message = None
    most = max(most, size)
    if size >= budget and not paused:
        consumer.pause(consumer.assignment())
        paused = True
    if paused:
        for _ in range(10):
            size -= len(held.popleft())
        if size < budget * 3 // 4:
            consumer.resume(consumer.assignment())
            paused = False
consumer.close()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([count, most, int(status["VmHWM"].split()[0]) // 1024]))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read there")
def test_sixty_four_partitions_of_large_records_fit_the_budget(kafka_broker) -> None:
    """Peak resident memory is within `buffer_bytes` and 150 MB; all records arrive."""
    kafka_broker.create_topic("large", partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": kafka_broker.bootstrap,
            "message.max.bytes": 1_100_000,
            "queue.buffering.max.kbytes": 50_000,
        }
    )
    for number in range(PARTITIONS * ROUNDS):
        while len(producer) > 40:
            producer.poll(0.1)
        producer.produce("large", os.urandom(RECORD_BYTES), partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    settings = client_settings(
        {"bootstrap.servers": kafka_broker.bootstrap},
        {},
        group="memory",
        buffer_records=50_000,
        buffer_bytes=BUDGET_BYTES,
        delivery="at_least_once",
    )
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([settings.consumer, PARTITIONS * ROUNDS, BUDGET_BYTES]),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    count, held_bytes, peak_mb = json.loads(ran.stdout)
    assert count == PARTITIONS * ROUNDS
    assert held_bytes >= BUDGET_BYTES, "the budget was never reached: nothing was tested"
    assert peak_mb <= BUDGET_BYTES / 2**20 + BESIDE_MB
