"""The same sleeps with no Kafka: the least time any consumer of this kind could take.

Run as a process of its own, as Weft is: `python -m benchmarks.bare '<json of BareSpec>'`.
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


@dataclass(frozen=True)
class BareSpec:
    """What to sleep: `lanes` is how many sequences run side by side at most; None: no limit."""

    kind: str
    handler: str
    records: int
    workers: int
    lanes: int | None


def main() -> None:
    """Print the seconds from the first sleep to the end of the last, and the CPU time, as JSON."""
    spec = BareSpec(**json.loads(sys.argv[1]))
    run = _run_async if spec.kind == "async" else _run_threads
    seconds = run(queues(spec))
    print(json.dumps({"seconds": seconds, "cpu_s": time.process_time(), "records": spec.records}))


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


def _run_threads(queues: list[Iterator[float]]) -> float:
    gate = threading.Barrier(len(queues) + 1)

    def worker(queue: Iterator[float]) -> None:
        gate.wait()
        for seconds in queue:
            time.sleep(seconds)

    threads = [threading.Thread(target=worker, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    started = time.perf_counter()
    gate.wait()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
