"""A fleet as a user runs it, for the tests: an app in a folder, `weft run`, and its witnesses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

ROOT = Path(__file__).parents[3]
#: Long: what comes back sooner came back by its static id.
SESSION_MS = 30_000
#: A machine that runs other things too takes its time to start Java and Python.
START_S = 150

#: Logs each call as it begins and ends, in one file that members append to.
APP = """
import asyncio, json, os, time
from contextlib import asynccontextmanager
import weft
from neighbour import line

KAFKA = {kafka!r}
LOG = {log!r}

def note(**fields):
    with open(LOG, "ab", buffering=0) as file:
        file.write(line(dict(fields, pid=os.getpid(), at=time.time())))

@asynccontextmanager
async def lifespan(app):
    note(what="open")
    yield "state of " + str(os.getpid())
    note(what="close")

app = weft.App(group={group!r}, kafka=KAFKA, lifespan=lifespan, drain_timeout_s=10)

@app.consume({topic!r}, concurrency={concurrency}{options})
async def handle(record):
    assert app.state == "state of " + str(os.getpid())
    note(what="begin", p=record.partition, o=record.offset, k=str(record.key))
    await asyncio.sleep({seconds})
    note(what="end", p=record.partition, o=record.offset, k=str(record.key))
"""
NEIGHBOUR = """
import json

def line(fields):
    return json.dumps(fields).encode() + b"\\n"
"""


@dataclass
class Fleet:
    """One `weft run --engine spark` and what it leaves behind."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        """What it has written to its standard error."""
        return (self.folder / "stderr").read_text(errors="replace")

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """What the handlers and lifespans noted."""
        path = self.folder / "calls.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        noted = [json.loads(line) for line in lines]
        return [one for one in noted if what in (None, one["what"])]

    def done(self) -> set[tuple[int, int]]:
        """(partition, offset) of every call that ended."""
        return {(one["p"], one["o"]) for one in self.events("end")}

    def members(self) -> set[int]:
        """Process ids that have handled something in the last second."""
        now = time.time()
        return {one["pid"] for one in self.events("begin") if now - one["at"] < 1.0}

    def descendants(self) -> list[psutil.Process]:
        """Java, the daemon and the workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: int) -> None:
        """Send a signal to the driver alone."""
        os.kill(self.process.pid, number)

    def ctrl_c(self) -> None:
        """SIGINT to the driver's process group, as a terminal sends it: Java gets it too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout_s: float = 40.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)


def write_app(folder: Path, bootstrap: str, topic: str, **more: Any) -> None:
    """Write fleetapp.py, and the module beside it that it imports."""
    options = "".join(f", {name}={text}" for name, text in more.pop("options", {}).items())
    # The new group protocol leaves these to the broker.
    times = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
    kafka = {
        "bootstrap.servers": bootstrap,
        **(times if more.pop("own_times", True) else {}),
        **more.pop("kafka", {}),
    }
    values = {
        "kafka": kafka,
        "log": str(folder / "calls.jsonl"),
        "group": f"g-{topic}",
        "topic": topic,
        "concurrency": 20,
        "seconds": 0.01,
        "options": options,
        **more,
    }
    (folder / "fleetapp.py").write_text(APP.format(**values))
    (folder / "neighbour.py").write_text(NEIGHBOUR)


@contextmanager
def running(
    folder: Path, *arguments: str, engine: str = "spark", wait_s: int = START_S
) -> Iterator[Fleet]:
    """`weft run fleetapp:app …` in that folder; killed at the end, with its kin."""
    command = [sys.executable, "-m", "weft.cli.main", "run", "fleetapp:app"]
    conf = ["--conf", "spark.ui.enabled=false", "--conf", f"weft.control.wait_s={wait_s}"]
    how = [] if engine == "local" else ["--engine", "spark", *conf]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command, *how, *arguments], cwd=folder, stderr=errors, stdout=errors, start_new_session=True,
            env=environment,
        )  # fmt: skip
    try:
        yield Fleet(process, folder)
    finally:
        kin = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for one in (process, *kin):
            kill(one.pid)
        process.wait(10)


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for something that becomes true; what it was."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)  # between two looks
    return value


def all_gone(processes: list[psutil.Process], seconds: float) -> list[str]:
    """Wait for these to end; the command lines of those that did not."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [" ".join(one.cmdline())[:120] for one in alive if one.status() != "zombie"]


def fill(bootstrap: str, topic: str, count: int, partitions: int, keys: int = 50) -> None:
    """Write records; the value is the number of the record within its key."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(count):
        key = number % keys
        producer.produce(topic, b"%d" % (number // keys), b"k%d" % key, key % partitions)
    assert producer.flush(30) == 0


def order_breaks(events: list[dict[str, Any]]) -> list[str]:
    """Calls that began before an earlier record of their key had ended, in one life of a member.

    What a kill cut off begins again, so an offset may begin twice; it may never be overtaken.
    """
    ended: dict[tuple[int, str], set[int]] = {}
    begun: dict[tuple[int, str], set[int]] = {}
    breaks = []
    for one in events:
        if one["what"] not in ("begin", "end"):
            continue
        lane = (one["p"], one["k"])
        if one["what"] == "end":
            ended.setdefault(lane, set()).add(one["o"])
            continue
        before = {o for o in begun.get(lane, ()) if o < one["o"]}
        late = before - ended.get(lane, set())
        if late:
            breaks.append(f"{lane} began {one['o']} before {sorted(late)} ended")
        begun.setdefault(lane, set()).add(one["o"])
    return breaks
