"""What it costs to be seen: everything switched on, beside the same with nothing switched on.

`python -m benchmarks.seen` runs each workload in turn without, with everything (reports, HTTP
whose metrics are scraped each second, the socket), and with OpenTelemetry, round after round, and
compares within each round: wall time and the process's own processor time from the first call to
the last, also by thread. Ends with 1 where a bar is missed; OpenTelemetry has none, its figure is
as it is.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from benchmarks import machine, sides, topics
from perkey.broker import LocalBroker

SIDES = ("", "all", "otel")
SCRAPE_EVERY_S = 1.0
LIMIT_S = 600


@dataclass(frozen=True)
class Work:
    """One workload, and how much slower everything switched on may make it."""

    name: str
    handler: str
    concurrency: int
    topic: topics.TopicSpec
    most: float


def works(scale: float) -> list[Work]:
    """Calls that do nothing, and calls of 10 ms."""
    noop = topics.TopicSpec(int(4_000_000 * scale), 1000, 4, 100)
    waits = topics.TopicSpec(int(600_000 * scale), 1000, 8, 100)
    return [Work("no-op", "noop", 100, noop, 1.02), Work("10 ms", "10", 1000, waits, 1.01)]


def measure(work: Work, seen: str, bootstrap: str, topic: str) -> dict[str, Any]:
    """One run in a process of its own."""
    address = _free_address()
    spec = {
        "bootstrap": bootstrap, "topic": topic, "group": sides.fresh_group(), "ordering": "key",
        "executor": "async", "handler": work.handler, "concurrency": work.concurrency,
        "records": work.topic.records, "seen": seen, "http": address,
    }  # fmt: skip
    os.environ["PERKEY_SOCKET"] = "1" if seen == "all" else "0"
    with _scraped(address if seen in ("all", "http") else None) as scrapes:
        answer = sides.run_app(spec, LIMIT_S)
    return {**answer, "scrapes": len(scrapes)}


@contextmanager
def _scraped(address: str | None) -> Iterator[list[int]]:
    """The metrics are asked for each second, as Prometheus would; how long each answer was."""
    over, answers = threading.Event(), list[int]()
    if address is None:
        yield answers
        return

    def scrape() -> None:
        while not over.wait(SCRAPE_EVERY_S):
            with suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics") as told:
                answers.append(len(told.read()))

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    yield answers
    over.set()
    thread.join(5)


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def compared(rounds: list[dict[str, dict[str, Any]]], seen: str) -> dict[str, Any]:
    """The medians over the rounds of this side over the plain one, and how far the rounds lie."""
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    for one in rounds:
        for name, field in (("wall", "seconds"), ("cpu", "calls_cpu_s")):
            ratios[name].append(one[seen][field] / one[""][field])
    return {
        "wall": round(statistics.median(ratios["wall"]), 4),
        "cpu": round(statistics.median(ratios["cpu"]), 4),
        "wall_rounds": [round(value, 3) for value in sorted(ratios["wall"])],
        "cpu_rounds": [round(value, 3) for value in sorted(ratios["cpu"])],
        "scrapes": sum(one[seen]["scrapes"] for one in rounds),
        "threads_ms": (threads := threads_ms(rounds, seen)),
        "own_threads": own_threads(threads, [one[""]["seconds"] for one in rounds]),
    }


def own_threads(threads: dict[str, list[int]], seconds: list[float]) -> float:
    """Processor time of threads that there are only when it is seen, of the plain wall time.

    They hold Python's lock, so the calls wait for about so long; hardly changed by a busy machine.
    """
    own = [shown for name, (plain, shown) in threads.items() if not plain and "rdk" not in name]
    return round(sum(own) / 1e3 / statistics.median(seconds), 4)


def threads_ms(rounds: list[dict[str, dict[str, Any]]], seen: str) -> dict[str, list[int]]:
    """Processor milliseconds of each thread, plain and seen: medians over the rounds."""
    both = [[one[side].get("threads", {}) for one in rounds] for side in ("", seen)]
    names = {name for side in both for one in side for name in one}
    median = {
        name: [round(1e3 * statistics.median(one.get(name, 0.0) for one in side)) for side in both]
        for name in names
    }
    return dict(sorted(median.items(), key=lambda row: -max(row[1])))


def run(work: Work, bootstrap: str, count: int, wanted: tuple[str, ...]) -> dict[str, Any]:
    """So many rounds; each begins with another side, so that none is always the first."""
    topic = topics.create(bootstrap, work.topic)
    topics.fill(bootstrap, topic, work.topic, lambda _: None)
    rounds = []
    for number in range(count):
        turn = number % len(wanted)
        order = wanted[turn:] + wanted[:turn]
        rounds.append({side: measure(work, side, bootstrap, topic) for side in order})
    topics.delete(bootstrap, topic)
    rate = statistics.median(work.topic.records / one[""]["seconds"] for one in rounds)
    cost = {side: compared(rounds, side) for side in wanted if side}
    return {"records_per_s": round(rate), "most": work.most, **cost}


def main() -> int:
    """Measure, print, and end with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of records")
    parser.add_argument("--only", choices=["no-op", "10 ms"])
    parser.add_argument("--without-otel", action="store_true")
    parser.add_argument("--parts", action="store_true", help="also HTTP and reports alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted: tuple[str, ...] = SIDES[:2] if given.without_otel else SIDES
    wanted += ("http", "reports") if given.parts else ()
    with LocalBroker() as broker:
        results = {
            work.name: run(work, broker.bootstrap, given.rounds, wanted)
            for work in works(given.scale)
            if given.only in (None, work.name)
        }
    if given.json:
        print(json.dumps({"machine": machine.facts(), "results": results}))
    missed = False
    for name, row in results.items():
        print(f"{name}: {row['records_per_s']:,} records/s plain", file=sys.stderr)
        for side in wanted[1:]:
            cost = row[side]
            bar = f", at most {row['most']} of the wall time" if side == "all" else ""
            text = f"  {side}: {cost['wall']} of the wall time {cost['wall_rounds']}"
            text += f", {cost['cpu']} of the processor time {cost['cpu_rounds']}"
            text += f", its own threads {cost['own_threads']:.2%} of it"
            print(f"{text}, {cost['scrapes']} scrapes{bar}", file=sys.stderr)
            for thread, (plain, shown) in cost["threads_ms"].items():
                print(f"    {thread}: {plain} ms plain, {shown} ms", file=sys.stderr)
        missed |= row["all"]["wall"] > row["most"]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
