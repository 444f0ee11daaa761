"""What every peer's handler does with a record; it needs the standard library only.

A program gets one argument, the JSON of a job: bootstrap, topic, group, concurrency, and its mode:

- stuck: the call for offset `hang` never returns; every other one appends its offset to `log`;
- rate: each call waits `wait_s`; after `records` the time and processor time are printed;
- skew: a value is the nanosecond at which it was produced, then "s" if its call takes 1 s; after
  `records` the latencies of the others are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

FOR_EVER_S = 1e6
SLOW_S = 1.0


class Work:
    """The handler's body, as a coroutine and as a function."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self._mode = job["mode"]
        self._hang = int(job.get("hang", -1))
        self._wait_s = float(job.get("wait_s", 0))
        self._left = int(job.get("records", 0))
        self._log = -1
        if "log" in job:
            self._log = os.open(job["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._started = (0.0, 0.0)
        self._latencies_ms: list[float] = []

    async def call_async(self, offset: int, value: bytes) -> None:
        """Handle one record; `offset` is unique within the job."""
        wait_s = self._begin(offset, value)
        if wait_s:
            await asyncio.sleep(wait_s)
        self._end(offset, value)

    def call(self, offset: int, value: bytes) -> None:
        """The same for a thread or a plain loop."""
        wait_s = self._begin(offset, value)
        if wait_s:
            time.sleep(wait_s)
        self._end(offset, value)

    def _begin(self, offset: int, value: bytes) -> float:
        """Seconds that this call waits."""
        if not self._started[0]:
            self._started = (time.perf_counter(), time.process_time())
        if self._mode == "stuck":
            return FOR_EVER_S if offset == self._hang else 0.0
        if self._mode == "skew":
            return SLOW_S if value.endswith(b"s") else 0.0
        return self._wait_s

    def _end(self, offset: int, value: bytes) -> None:
        if self._mode == "stuck":
            os.write(self._log, offset.to_bytes(8, "big"))
            return
        if self._mode == "skew" and not value.endswith(b"s"):
            self._latencies_ms.append((time.time_ns() - int(value)) / 1e6)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._report()

    def _report(self) -> None:
        answer = {
            "seconds": time.perf_counter() - self._started[0],
            "cpu_s": time.process_time() - self._started[1],
        }
        if self._latencies_ms:
            ordered = sorted(self._latencies_ms)
            answer["p50_ms"] = ordered[len(ordered) // 2]
            answer["p99_ms"] = ordered[len(ordered) * 99 // 100]
        os.write(1, json.dumps(answer).encode() + b"\n")
        os._exit(0)


def work() -> Work:
    """Of the job on the command line."""
    return Work(json.loads(sys.argv[1]))
