"""Fifty thousand parked records: the memory stays flat, all else goes on, and each is handled once.

In a process of its own, whose memory holds nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

KEYS, PARKED, HEALTHY, VALUE_BYTES = 5_000, 50_000, 50_000, 2_000
#: their values are a hundred
MORE_MB = 60

PROGRAM = """
import ctypes, gc, json, sys, threading, time
from collections import defaultdict
import weft

topic, bootstrap, group, parked, total = json.loads(sys.stdin.read())
mended = threading.Event()
handled = defaultdict(list)
app = weft.App(group=group, kafka={"bootstrap.servers": bootstrap})

@app.consume(topic, retry=weft.Retry(attempts=1), on_exhausted=weft.Park(release_after_s=60.0))
async def check(record):
    if record.key.startswith(b"bad") and not mended.is_set():
        raise ValueError("not mended")
    assert len(record.value) == 2_000
    handled[record.key].append(record.offset)

def memory_mb():
    # What was read at first and is freed, malloc keeps for the next reading.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmRSS"].split()[0]) / 1024

def until(holds):
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, run.snapshot()
        time.sleep(0.1)

def part():
    return (run.snapshot()["partitions"] or [defaultdict(int)])[0]

run = app.start()
until(lambda: sum(map(len, handled.values())) >= total - parked)
until(lambda: part()["parked"] + part()["unfetched"] >= parked)
until(lambda: part()["in_flight"] == 0)
shown = part()
found = {"memory_mb": memory_mb(), "buffered": shown["buffered"], "frontier": shown["frontier"]}
mended.set()
until(lambda: part()["frontier"] == total)
run.stop()
run.wait()
in_order = all(offsets == sorted(set(offsets)) for offsets in handled.values())
print(json.dumps({**found, "in_order": in_order, "handled": sum(map(len, handled.values()))}))
"""


def run(topic: str, bootstrap: str, group: str, parked: int) -> dict[str, Any]:
    """The app to its end; `parked` of the records are poisoned."""
    asked = json.dumps([topic, bootstrap, group, parked, PARKED + HEALTHY])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, input=asked, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read there")
def test_fifty_thousand_parked_records_cost_little(kafka_broker: Any) -> None:
    """As much memory as without; the healthy ones are done meanwhile; released, all are."""
    memory: dict[str, float] = {}
    for name, key in (("bad", "bad-%d"), ("good", "was-bad-%d")):
        topic = f"t-{name}"
        kafka_broker.create_topic(topic, partitions=1)
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "linger.ms": 50})
        for number in range(PARKED + HEALTHY):
            healthy = number >= PARKED
            text = f"good-{number % KEYS}" if healthy else key % (number % KEYS)
            producer.produce(topic, b"v" * VALUE_BYTES, key=text)
            producer.poll(0)
        producer.flush(120)
        parked = PARKED * (name == "bad")
        found = run(topic, kafka_broker.bootstrap, f"g-{name}", parked)
        assert found["in_order"]
        assert found["handled"] == PARKED + HEALTHY
        memory[name] = found["memory_mb"]
        if name == "bad":
            assert (found["buffered"], found["frontier"]) == (KEYS, 0)
    print(memory)
    assert memory["bad"] <= memory["good"] + MORE_MB
