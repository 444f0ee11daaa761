"""A fleet as a user runs it, for the tests: an app in a folder, `perkey run`, and its witnesses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from tests.support.waiting import wait_for

from perkey.broker.state import free_ports

ROOT = Path(__file__).parents[3]
#: Long: what comes back sooner came back by its static id, also where the machine stood still.
SESSION_MS = 120_000
#: A machine that runs other things too takes its time to start Java and Python.
START_S = 200
#: And to end them.
END_S = 60

#: Logs each call as it begins and ends, in one file that members append to.
APP = """
import asyncio, json, os, time
from contextlib import asynccontextmanager
import perkey
from neighbour import line

KAFKA = {kafka!r}
LOG = {log!r}

def note(**fields):
    with open(LOG, "ab", buffering=0) as file:
        file.write(line(dict(fields, pid=os.getpid(), at=time.time())))

def be_patient():  # so long a machine may stand still while somebody leaves
    from perkey.kafka import consumer
    from perkey.runtime.member import member
    from perkey.spark.fleet import hosting
    consumer.JOIN_END_S = hosting.ORPHAN_DRAIN_S = member.LEAVE_S = member.LEAVE_LEAST_S = 45

def opened():
    with open(LOG, "rb") as file:
        return file.read().count(b'"what": "open"')

@asynccontextmanager
async def lifespan(app):
    be_patient()
    note(what="open", perkey=perkey.__file__)
    while opened() < {together}:  # nobody begins before the others are there
        await asyncio.sleep(0.05)
    yield "state of " + str(os.getpid())
    note(what="close")

app = perkey.App(group={group!r}, kafka=KAFKA, lifespan=lifespan, drain_timeout_s={drain_s})

@app.consume({topic!r}, concurrency={concurrency})
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
    """One `perkey run --engine spark` and what it leaves behind."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        """What it has written to its standard error."""
        return (self.folder / "stderr").read_text(errors="replace")

    def events(self, what: str | None = None) -> list[dict[str, Any]]:
        """What the handlers and lifespans noted."""
        path = self.folder / "calls.jsonl"
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # the last line may be half written
        noted = [json.loads(line) for line in whole.splitlines()]
        return [one for one in noted if what in (None, one["what"])]

    def done(self) -> set[tuple[int, int]]:
        """(partition, offset) of every call that ended."""
        return {(one["p"], one["o"]) for one in self.events("end")}

    def members(self) -> set[int]:
        """Process ids that have handled something in the last second."""
        now = time.time()
        return {one["pid"] for one in self.events("begin") if now - one["at"] < 1.0}

    def handlers(self) -> set[int]:
        """Process ids that have ever handled something."""
        return {one["pid"] for one in self.events("begin")}

    def descendants(self) -> list[psutil.Process]:
        """Java, the daemon and the workers."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal(self, number: int) -> None:
        """Send a signal to the driver alone."""
        os.kill(self.process.pid, number)

    def ctrl_c(self) -> None:
        """SIGINT to the driver's process group, as a terminal sends it: Java gets it too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self, timeout_s: float = START_S) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)


def at_work(fleet: Fleet, members: int = 2) -> set[int]:
    """Wait until so many members handle records; their process ids."""

    def now() -> set[int] | None:
        found = fleet.members()
        return found if len(found) == members else None

    return wait_for(now, START_S, f"{members} at work")


def free_port() -> int:
    """A port that nobody has, and that nobody is given who asks the system for any."""
    return free_ports(1)[0]


def write_app(folder: Path, bootstrap: str, topic: str, **more: Any) -> None:
    """Write fleetapp.py, and the module beside it that it imports.

    `together`: so many lifespans are open before the first record is handled, so that no member
    is done before another one has started.
    """
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
        "together": 1,
        # Longer than a machine stands still: a drain that works ends long before.
        "drain_s": 90,
        **more,
    }
    (folder / "fleetapp.py").write_text(APP.format(**values))
    (folder / "neighbour.py").write_text(NEIGHBOUR)


@contextmanager
def running(
    folder: Path,
    *arguments: str,
    engine: str = "spark",
    wait_s: int = START_S,
    env: dict[str, str] | None = None,
    command: list[str] | None = None,
) -> Iterator[Fleet]:
    """`perkey run fleetapp:app …` in that folder, or `command`; killed at the end, with its kin."""
    run = [sys.executable, "-m", "perkey.cli.main", "run", "fleetapp:app"]
    conf = ["--conf", f"perkey.control.wait_s={wait_s}"]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1", **(env or {})
    }  # fmt: skip
    if "SPARK_REMOTE" not in environment and not any(one.startswith("sc://") for one in arguments):
        conf += ["--conf", "spark.ui.enabled=false"]
    how = [] if engine == "local" else ["--engine", "spark", *conf]
    whole = [*run, *how, *arguments] if command is None else command
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            whole, cwd=folder, stderr=errors, stdout=errors, start_new_session=True,
            env=environment,
        )  # fmt: skip
    fleet = Fleet(process, folder)
    try:
        yield fleet
    except BaseException:
        print(fleet.text[-6_000:], file=sys.stderr)  # what the driver said, below the failure
        raise
    finally:
        kin = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        for one in (process, *kin):
            kill(one.pid)
        process.wait(END_S)


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


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
    assert producer.flush(END_S) == 0


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
