"""Processor time per record, from the first call to the last: `python -m benchmarks.floor`.

1. A handler that does nothing: the bare client's loop, Perkey, and what one would write without it.
2. A handler of 0 to 5 ms on threads, 100 at once: with the context switches of each record, and
   those of 100 threads without Kafka, that only sleep, or also run some Python after each sleep.
   A thread that wakes while another one runs Python waits for the interpreter: one more switch.

Each side is a process of its own, all of them once a round, in turn. What counts are medians, and
ratios within a round: processor time is what noise and machines change least. Exit code 1 where a
target is missed.
"""

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import machine, sides, topics
from benchmarks.bare import BareSpec
from benchmarks.clients import CLIENTS, ClientSpec
from perkey.broker import LocalBroker

NOOP = topics.TopicSpec(records=500_000, keys=1_000, partitions=4, value_bytes=100)
SLEEPS = topics.TopicSpec(records=20_000, keys=1_000, partitions=1, value_bytes=100)
AT_ONCE = 100
LIMIT_S = 600
BARE = "bare client"
NOOP_MAX, SLEEP_US_MAX = 2.5, 50.0
#: (handler, executor) of Perkey's sides
PERKEY = {"perkey async": ("noop", "async"), "perkey threads": ("noop", "threads")}
SLEEPING = {"0-5 ms on threads": ("table", "threads")}
#: the same sleeps without Kafka -> processor time of Python in each call, in µs
BARE_SLEEPING = {"0-5 ms, bare threads": 0.0, "0-5 ms, bare + 5 µs of Python": 5.0}
#: at most as many switches as this one has: a record takes Perkey more than that
SWITCHES_OF = "0-5 ms, bare + 5 µs of Python"

Runs = dict[str, list[dict[str, Any]]]


def measured(bootstrap: str, rounds: int, scale: float, beside: Path | None) -> Runs:
    """All sides, so many times in turn; by name. `beside`: a `src` whose Perkey runs, too."""
    runs: Runs = {}
    with _filled(bootstrap, NOOP, scale) as noop, _filled(bootstrap, SLEEPS, scale) as sleeps:
        for _ in range(rounds):
            for name in CLIENTS:
                if name != "aiokafka" or importlib.util.find_spec(name):
                    client = ClientSpec(name, bootstrap, noop[0], sides.fresh_group(), noop[1])
                    row = sides.run_python("benchmarks.clients", asdict(client), LIMIT_S)
                    runs.setdefault(name, []).append(row)
            for name, python_us in BARE_SLEEPING.items():
                bare = BareSpec("threads", "table", sleeps[1], AT_ONCE, None, python_us)
                row = sides.run_python("benchmarks.bare", asdict(bare), LIMIT_S)
                runs.setdefault(name, []).append(row)
            for name, (handler, executor) in (PERKEY | SLEEPING).items():
                topic, records = noop if name in PERKEY else sleeps
                for source in (None, beside) if beside else (None,):
                    spec = {
                        "bootstrap": bootstrap, "topic": topic, "group": sides.fresh_group(),
                        "ordering": "key", "executor": executor, "handler": handler,
                        "concurrency": AT_ONCE, "records": records,
                    }  # fmt: skip
                    row = sides.run_app(spec, LIMIT_S, source)
                    runs.setdefault(f"{name}, beside" if source else name, []).append(row)
    return runs


@contextmanager
def _filled(bootstrap: str, spec: topics.TopicSpec, scale: float) -> Iterator[tuple[str, int]]:
    """A topic with its records, and how many there are."""
    few = replace(spec, records=max(1, int(spec.records * scale)))
    topic = topics.create(bootstrap, few)
    topics.fill(bootstrap, topic, few, lambda _: None)
    yield topic, few.records
    topics.delete(bootstrap, topic)


def table(runs: Runs) -> list[dict[str, Any]]:
    """One row a side; `passed` is None where there is no target."""
    possible = _switches(runs[SWITCHES_OF])
    return [_row(name, rows, runs[BARE], possible) for name, rows in runs.items()]


def _row(
    name: str, rows: list[dict[str, Any]], bare: list[dict[str, Any]], possible: float
) -> dict[str, Any]:
    each = [_us(row) for row in rows]
    us, switches = statistics.median(each), _switches(rows)
    over = statistics.median(one / _us(base) for one, base in zip(each, bare, strict=True))
    passed, target = None, ""
    if name in PERKEY:
        passed, target = over <= NOOP_MAX, f"at most {NOOP_MAX} × the bare client"
    elif name in SLEEPING:
        passed = us <= SLEEP_US_MAX and switches <= possible
        target = f"at most {SLEEP_US_MAX:g} µs and {possible:.2f} switches"
    return {
        "side": name,
        "us_per_record": round(us, 2),
        "over_bare": round(over, 2),
        "switches_per_record": round(switches, 3),
        "rounds_us": [round(one, 2) for one in sorted(each)],
        "target": target,
        "passed": passed,
    }


def _switches(rows: list[dict[str, Any]]) -> float:
    """Context switches per record."""
    return float(statistics.median(row["switches"] / row["records"] for row in rows))


def _us(row: dict[str, Any]) -> float:
    return float(1e6 * row["calls_cpu_s"] / row["records"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and end with 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the number of records")
    parser.add_argument("--beside", type=Path, metavar="SRC", help="Perkey of another commit, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.scale <= 0:
        parser.error("give --rounds of 1 or more, and a --scale above 0")
    if given.beside and not (given.beside / "perkey").is_dir():
        parser.error(f"--beside {given.beside}: give the `src` folder of a clone of Perkey")
    with LocalBroker() as broker:
        rows = table(measured(broker.bootstrap, given.rounds, given.scale, given.beside))
    if given.json:
        print(json.dumps({"machine": machine.facts(), "rows": rows}))
    for row in rows:
        verdict = {None: "    ", True: "ok  ", False: "MISS"}[row["passed"]]
        text = f"{verdict} {row['side']:30} {row['us_per_record']:6.2f} µs a record"
        text += f"  {row['over_bare']:5.2f} × bare  {row['switches_per_record']:6.3f} switches"
        print(f"{text}  {row['target']}", file=sys.stderr if given.json else sys.stdout)
    return 1 if any(row["passed"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
