"""Worker processes beside a plain loop: `python -m benchmarks.processes`.

1. Records of 1 ms of pure Python each: a plain consumer that calls the handler in its loop, then
   the same handler in two worker processes; in turn, so many rounds. Steady: from the 500th record
   to the last; whole: with starting and draining, too.
2. Records of no work: what a record costs on its way to a worker and back.

Prints one JSON line for each; exit code 1 where a bar is missed.
"""

import argparse
import json
import statistics
import sys
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer

import perkey
from benchmarks import burning, machine
from perkey.broker import LocalBroker

WORKERS = 2
MUST_STEADY, MUST_WHOLE, MUST_COST_US = 1.8, 1.6, 30.0
WARM = 500
LOOK_S = 0.05
WAIT_S = 300.0


def main() -> int:
    """Measure, print, and end with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=10_000, help="of 1 ms each")
    parser.add_argument("--empty", type=int, default=200_000, help="records of no work")
    asked = parser.parse_args()
    print(json.dumps(machine.facts()), flush=True)
    with LocalBroker() as broker:
        fill(broker, "work", asked.records, b"%d" % burning.rounds_of_work())
        fill(broker, "nothing", asked.empty, b"0")
        lines = [
            beside_a_loop(broker.bootstrap, asked.records, asked.rounds),
            cost(broker.bootstrap, asked.empty, asked.rounds),
        ]
    for line in lines:
        print(json.dumps(line))
    return 0 if all(line["ok"] for line in lines) else 1


def fill(broker: LocalBroker, topic: str, records: int, value: bytes) -> None:
    """Write the records over four partitions and a thousand keys."""
    broker.create_topic(topic, 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for number in range(records):
        producer.produce(topic, value, key=b"%d" % (number % 1000), partition=number % 4)
        if number % 20_000 == 0:
            producer.flush()
    assert producer.flush(60) == 0, "the broker did not take all records"


def beside_a_loop(bootstrap: str, records: int, rounds: int) -> dict[str, Any]:
    """How much faster two workers are than the loop."""
    steady, whole = [], []
    for _ in range(rounds):
        loop_s, loop_whole_s = plain_loop(bootstrap, "work", records)
        perkey_s, perkey_whole_s = in_workers(bootstrap, "work", records)
        steady.append(loop_s / perkey_s)
        whole.append(loop_whole_s / perkey_whole_s)
    medians = statistics.median(steady), statistics.median(whole)
    return {
        "type": "processes",
        "records": records,
        "steady_ratio": round(medians[0], 3),
        "steady_must": MUST_STEADY,
        "whole_ratio": round(medians[1], 3),
        "whole_must": MUST_WHOLE,
        "runs": [[round(one, 3) for one in runs] for runs in (steady, whole)],
        "ok": medians[0] >= MUST_STEADY and medians[1] >= MUST_WHOLE,
    }


def cost(bootstrap: str, records: int, rounds: int) -> dict[str, Any]:
    """Microseconds a record that needs none itself."""
    runs = [
        in_workers(bootstrap, "nothing", records)[0] / (records - WARM) * 1e6 for _ in range(rounds)
    ]
    median = statistics.median(runs)
    return {
        "type": "cost",
        "records": records,
        "us_per_record": round(median, 2),
        "must": MUST_COST_US,
        "runs": [round(one, 2) for one in runs],
        "ok": median <= MUST_COST_US,
    }


def plain_loop(bootstrap: str, topic: str, records: int) -> tuple[float, float]:
    """Seconds from the `WARM`th record to the last, and of everything."""
    entered = time.perf_counter()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"loop-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    done, began = 0, 0.0
    while done < records:
        for message in consumer.consume(500, 0.5):
            burning.burn(int(message.value() or b"0"))
            done += 1
            if done == WARM:
                began = time.perf_counter()
    ended = time.perf_counter()
    consumer.close()
    return ended - began, time.perf_counter() - entered


def in_workers(bootstrap: str, topic: str, records: int) -> tuple[float, float]:
    """The same of an app with two worker processes."""
    app = perkey.App(group=f"b-{uuid.uuid4().hex[:8]}", kafka={"bootstrap.servers": bootstrap})
    app.consume(topic, concurrency=WORKERS, executor="processes")(burning.work)
    entered = time.perf_counter()
    run = app.start(until="drained")
    times = _watched(app, records)
    report = run.wait(WAIT_S)
    whole_s = time.perf_counter() - entered
    assert report.done == records, report
    return times[records] - times[WARM], whole_s


def _watched(app: perkey.App, records: int) -> dict[int, float]:
    """When about `WARM` records were done, and when all were."""
    times: dict[int, float] = {}
    deadline = time.monotonic() + WAIT_S
    while records not in times and time.monotonic() < deadline:
        rows = app.snapshot()["handlers"]
        done = rows["work"]["done"] if rows else 0
        for count in (WARM, records):
            if done >= count:
                times.setdefault(count, time.perf_counter())
        time.sleep(LOOK_S)
    return times


if __name__ == "__main__":
    sys.exit(main())
