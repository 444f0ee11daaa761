"""Fifty thousand parked or held records: the memory stays flat, and each is handled once.

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
#: allocated; 15 were measured, their values are a hundred. What the system counts (RSS) has freed
#: pages beside it that live objects share: by when the records came 30 to 80 MB more
MORE_MB = 25

PROGRAM = """
import ctypes, gc, json, os, re, sys, tempfile, threading, time
from collections import defaultdict
import perkey
from perkey.observe.orders import Order

topic, bootstrap, group, kind, keys, bad, total = json.loads(sys.stdin.readline())
mended = threading.Event()
handled = defaultdict(list)
app = perkey.App(group=group, kafka={"bootstrap.servers": bootstrap})

@app.consume(topic, retry=perkey.Retry(attempts=1), on_exhausted=perkey.Park(release_after_s=60.0))
async def check(record):
    if kind == "parked" and record.key.startswith(b"bad") and not mended.is_set():
        raise ValueError("not mended")
    assert len(record.value) == 2_000
    handled[record.key].append(record.offset)

class Malloc(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

def memory_mb():
    # Allocated, by malloc and by Python; and what the system counts, freed pages included.
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = Malloc
    info = libc.mallinfo2()
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(stderr, 2)
        file.seek(0)
        text = file.read().decode()
    blocks = int(re.search(r"# bytes in allocated blocks\\s*=\\s*([\\d,]+)", text)[1].replace(",", ""))
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    live = info.uordblks + info.hblkhd + blocks
    return live / 2**20, int(status["VmRSS"].split()[0]) / 1024

def until(holds):
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, run.snapshot()
        time.sleep(0.1)

def part():
    return (run.snapshot()["partitions"] or [defaultdict(int)])[0]

def command(action):
    for number in range(keys if kind == "held" else 0):
        order = Order(action, "a test", f"{action}-{number}", topic, key=f"bad-{number}")
        answer = run.control.obey(order)
        assert answer.outcome in ("done", "unchanged"), answer

run = app.start()
until(lambda: part()["topic"] == topic)
command("hold")
print("ready", flush=True)
until(lambda: sum(map(len, handled.values())) >= total - bad)
until(lambda: part()["highest_seen"] == total - 1 and part()["in_flight"] == 0)
until(lambda: part()["unfetched"] >= bad - keys)
shown = part()
live_mb, rss_mb = memory_mb()
found = {"live_mb": live_mb, "rss_mb": rss_mb, "buffered": shown["buffered"], "frontier": shown["frontier"]}
mended.set()
command("release")
until(lambda: part()["frontier"] == total)
run.stop()
run.wait()
in_order = all(offsets == sorted(set(offsets)) for offsets in handled.values())
print(json.dumps({**found, "in_order": in_order, "handled": sum(map(len, handled.values()))}))
"""


def run(kafka: Any, kind: str) -> dict[str, Any]:
    """The app to its end; half of the records are `kind`: "parked", "held", or handled."""
    topic, bad = f"t-{kind}", PARKED * (kind != "handled")
    kafka.create_topic(topic, partitions=1)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        asked = [topic, kafka.bootstrap, f"g-{kind}", kind, KEYS, bad, PARKED + HEALTHY]
        print(json.dumps(asked), file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        produce(kafka, topic, "bad" if bad else "was-bad")
        out, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def produce(kafka: Any, topic: str, name: str) -> None:
    """The records, those that are parked or held first."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50})
    for number in range(PARKED + HEALTHY):
        key = f"good-{number % KEYS}" if number >= PARKED else f"{name}-{number % KEYS}"
        while True:
            try:
                producer.produce(topic, b"v" * VALUE_BYTES, key=key)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read there")
def test_fifty_thousand_parked_or_held_records_cost_little(kafka_broker: Any) -> None:
    """As much memory as without; the healthy ones are done meanwhile; released, all are."""
    found = {kind: run(kafka_broker, kind) for kind in ("handled", "parked", "held")}
    print(found)
    for kind, one in found.items():
        assert (one["in_order"], one["handled"]) == (True, PARKED + HEALTHY)
        if kind != "handled":
            assert (one["buffered"], one["frontier"]) == (KEYS, 0)
            assert one["live_mb"] <= found["handled"]["live_mb"] + MORE_MB
