"""What each way of delivery costs: `python -m benchmarks.delivery`.

All runs are of one process, on one topic and broker, in rounds: every mode once a round, so that
a machine that is busy for a while is busy for all of them. What counts are ratios within a round,
their median over the rounds.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

import perkey
from perkey.broker import LocalBroker

MUST_EXACT = 0.8
MUST_BATCH = 40.0
EXACT_HANDLER_S = 0.005
EXACT_AT_ONCE = 1_000
CALL_S = 0.002
RECORD_S = 0.00001
BATCH = 100
BATCH_AT_ONCE = 2
WARM = 500  # before the clock starts: joining the group and the first transaction


class Clock:
    """Records a second between the `WARM`th and the last completion."""

    def __init__(self, records: int) -> None:
        self._records, self._done = records, 0
        self._began = self._ended = 0.0

    def count(self, records: int = 1) -> None:
        before = self._done
        self._done += records
        if before < WARM <= self._done:
            self._began = time.perf_counter()
        if before < self._records <= self._done:
            self._ended = time.perf_counter()

    @property
    def rate(self) -> float:
        return (self._records - WARM) / (self._ended - self._began)


def measure(
    broker: str, topic: str, records: int, consume: Callable[[perkey.App, Clock], None]
) -> float:
    """Records a second of one run in a group of its own."""
    app, clock = (
        perkey.App(f"bench-{uuid.uuid4().hex[:8]}", {"bootstrap.servers": broker}),
        Clock(records),
    )
    consume(app, clock)
    report = app.run(until="drained")
    assert report.done == records, report
    return clock.rate


def single(topic: str, work_s: float, at_once: int, **options: Any) -> Callable[..., None]:
    """One record a call, `work_s` of waiting each; gives an output where `output` is set."""

    def consume(app: perkey.App, clock: Clock) -> None:
        async def handler(record: perkey.Record) -> bytes | None:
            await asyncio.sleep(work_s)
            clock.count()
            return b"" if "output" in options else None

        consume_with: Callable[..., Any] = app.consume  # any options
        consume_with(topic, concurrency=at_once, ordering="unordered", **options)(handler)

    return consume


def batched(topic: str, at_once: int, **options: Any) -> Callable[..., None]:
    """A hundred records a call, a fixed cost a call and a little a record."""

    def consume(app: perkey.App, clock: Clock) -> None:
        async def handler(batch: perkey.RecordBatch) -> None:
            await asyncio.sleep(CALL_S + RECORD_S * len(batch))
            clock.count(len(batch))

        consume_with: Callable[..., Any] = app.consume  # any options
        consume_with(
            topic,
            concurrency=at_once,
            ordering="unordered",
            batch=perkey.Batch(max_records=BATCH),
            **options,
        )(handler)

    return consume


def modes(topic: str, output: str) -> dict[str, Callable[..., None]]:
    """What is compared, by name; "exact" ones beside the same without."""

    def work(**options: Any) -> Callable[..., None]:
        return single(topic, EXACT_HANDLER_S, EXACT_AT_ONCE, **options)

    return {
        "at_least_once": work(),
        "Commit(each=True)": work(commit=perkey.Commit(each=True)),
        "at_most_once": work(delivery="at_most_once"),
        "at_least_once, outputs": work(output=output),
        "exactly_once": work(delivery="exactly_once"),
        "exactly_once, outputs": work(delivery="exactly_once", output=output),
        "batches": batched(topic, BATCH_AT_ONCE),
    }


BESIDE = {
    "Commit(each=True)": "at_least_once",
    "at_most_once": "at_least_once",
    "at_least_once, outputs": "at_least_once",
    "exactly_once": "at_least_once",
    "exactly_once, outputs": "at_least_once, outputs",
    "batches": "single calls",
}


def run(rounds: int, records: int, singles: int) -> dict[str, Any]:
    """Every mode once a round; rates and ratios by mode."""
    rates: dict[str, list[float]] = {}
    with LocalBroker() as broker:
        topic, few, output = fill(broker, records, singles)
        for _ in range(rounds):
            for name, consume in modes(topic, output).items():
                rates.setdefault(name, []).append(
                    measure(broker.bootstrap, topic, records, consume)
                )
            one = single(few, CALL_S + RECORD_S, BATCH_AT_ONCE)
            rates.setdefault("single calls", []).append(
                measure(broker.bootstrap, few, singles, one)
            )
    return {
        name: {
            "records_per_s": round(statistics.median(values)),
            "beside": BESIDE.get(name),
            "ratio": ratio(rates, name),
        }
        for name, values in rates.items()
    }


def ratio(rates: dict[str, list[float]], name: str) -> float | None:
    """The median over the rounds of this mode's rate over that beside it."""
    beside = BESIDE.get(name)
    if beside is None:
        return None
    return round(
        statistics.median(a / b for a, b in zip(rates[name], rates[beside], strict=True)), 3
    )


def fill(broker: LocalBroker, records: int, singles: int) -> tuple[str, str, str]:
    """A topic of many records, one of few for the slow side, and one for outputs."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20})
    for topic, count in (("many", records), ("few", singles)):
        broker.create_topic(topic, 4)
        for number in range(count):
            producer.produce(topic, b"x" * 100, key=b"%d" % (number % 1000), partition=number % 4)
            if number % 20_000 == 0:
                producer.flush()
    broker.create_topic("out", 4)
    assert producer.flush(60) == 0
    return "many", "few", "out"


def checks(results: dict[str, Any]) -> list[tuple[str, float, float]]:
    """What must be reached: name, value, bar."""
    return [
        ("exactly_once over at_least_once", results["exactly_once"]["ratio"], MUST_EXACT),
        (
            "exactly_once over at_least_once, both with outputs",
            results["exactly_once, outputs"]["ratio"],
            MUST_EXACT,
        ),
        ("batches over single calls", results["batches"]["ratio"], MUST_BATCH),
    ]


def main() -> int:
    """Measure, print, and end with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--singles", type=int, default=20_000, help="records of the slow side")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = run(arguments.rounds, arguments.records, arguments.singles)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, row in results.items():
            beside = f"{row['ratio']:8.3f} × {row['beside']}" if row["beside"] else ""
            print(f"{name:26} {row['records_per_s']:>9,} records/s {beside}")
    missed = [line for line in checks(results) if line[1] < line[2]]
    for name, value, bar in checks(results):
        print(f"{name}: {value} (at least {bar})", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
