"""The same sleeps with no Kafka: the least time any consumer of this kind could take.

Run as a process of its own, as Perkey is: `python -m benchmarks.bare '<json of BareSpec>'`.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.loops import new_event_loop
from benchmarks.sleeps import sleep_s
from benchmarks.threads import switches


@dataclass(frozen=True)
class BareSpec:
    """What to sleep: `lanes` is how many sequences run side by side at most; None: no limit."""

    kind: str
    handler: str
    records: int
    workers: int
    lanes: int | None
    #: with threads: processor time of Python in each call, after its sleep
    python_us: float = 0.0


def main() -> None:
    """Print what was measured from the first sleep to the end of the last, as JSON."""
    spec = BareSpec(**json.loads(sys.argv[1]))
    if spec.kind == "async":
        row: dict[str, float] = {"seconds": _run_async(queues(spec))}
    else:
        row = _run_threads(queues(spec), spec.python_us / 1e6)
    print(json.dumps({**row, "cpu_s": time.process_time(), "records": spec.records}))


def queues(spec: BareSpec) -> list[Iterator[float]]:
    """One iterator of sleeps a worker: its own lane where lanes are few, else one shared by all.

    `next` on a list iterator is atomic, so threads may share it.
    """
    sleeps = [sleep_s(spec.handler, offset) for offset in range(spec.records)]
    if spec.lanes is not None and spec.lanes < spec.workers:
        return [iter(sleeps[lane :: spec.lanes]) for lane in range(spec.lanes)]
    shared = iter(sleeps)
    return [shared] * spec.workers


def _run_async(queues: list[Iterator[float]]) -> float:
    async def worker(queue: Iterator[float]) -> None:
        for seconds in queue:
            await asyncio.sleep(seconds)

    async def all_workers() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(worker(queue) for queue in queues))
        return time.perf_counter() - started

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(all_workers())


def _run_threads(queues: list[Iterator[float]], python_s: float) -> dict[str, float]:
    gate = threading.Barrier(len(queues) + 1)

    def worker(queue: Iterator[float]) -> None:
        gate.wait()
        for seconds in queue:
            time.sleep(seconds)
            if python_s:
                until = time.thread_time() + python_s
                while time.thread_time() < until:
                    pass

    threads = [threading.Thread(target=worker, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    switched, on_cpu, started = switches(), time.process_time(), time.perf_counter()
    gate.wait()
    for thread in threads:
        thread.join()
    return {
        "seconds": time.perf_counter() - started,
        "calls_cpu_s": time.process_time() - on_cpu,
        "switches": switches() - switched,
    }


if __name__ == "__main__":
    main()
