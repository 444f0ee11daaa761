"""The harness of the process tests: apps as real processes, faults, and the judge at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.support.chaos_app import VARIABLE, Plan
from tests.support.commit_watch import CommitWatch, judge_commits
from tests.support.handler_log import CHILD, Entry, Tail, identity
from tests.support.verdict import Excuse, Verdict, judge
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
LOOK_S = 0.01
STOOD_STILL = " the polling thread was blocked "
#: a condition is waited for so long at least: a busy machine is no broken promise
PATIENCE_S = 90.0
#: From "a commit was built" to "the broker has it", and how late a busy machine may be.
COMMIT_WAY_S = 0.5
#: A session that makes a dead member noticed soon, for who waits for that.
SESSION_S = 6.0
#: Everybody else's: longer than a busy machine stands still, so that nobody is thrown out by that.
PATIENT_SESSION_S = 45.0
#: A cooperative member goes on during a rebalance, but its commits wait on the same connection
#: behind its join, which is answered when the dead have timed out.
JOIN_WAY_S = SESSION_S + 2.0
#: A process that was stopped for longer than this sees that when it goes on.
STOPPED_S = 1.4
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
#: each protocol at night, the youngest on every push
ONE_ON_A_PUSH = [
    pytest.param(name, marks=[pytest.mark.long] * (name != "consumer")) for name in PROTOCOLS
]


def say(line: str) -> None:
    """On stdout, which pytest shows for a test that failed."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Broker(Protocol):
    """What the harness asks of a broker."""

    @property
    def bootstrap(self) -> str:
        """Its address."""

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""


def set_session(bootstrap: str, group: str, seconds: float) -> None:
    """The session of this group's members under KIP-848, where the broker decides."""
    entry = ConfigEntry(
        "consumer.session.timeout.ms",
        str(int(seconds * 1000)),
        incremental_operation=AlterConfigOpType.SET,
    )
    where = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.incremental_alter_configs([where])[where].result(PATIENCE_S)


def dead_threads(said: str) -> list[str]:
    """What a child says of threads of ours that died, whatever else went well."""
    return [line for line in said.splitlines() if "thread perkey-" in line and " died" in line]


def longest_pause(times: Iterable[float], began: float, ended: float) -> float:
    """The longest time without one of these in a span."""
    inside = sorted(at for at in times if began <= at <= ended)
    return max(after - before for before, after in pairwise([began, *inside, ended]))


class Child:
    """One app in a process of its own."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], output: Path) -> None:
        self.number, self.process, self.output = number, process, output
        #: as the log names it; signals go to `process`
        self.pid = identity(process.pid, number + 1)
        self.stopped = False

    @property
    def alive(self) -> bool:
        """It has not ended yet."""
        return self.process.poll() is None

    def said(self, chars_max: int = 3000) -> str:
        """The end of what it wrote to stderr."""
        text = self.output.read_text(errors="replace") if self.output.exists() else ""
        return (
            f"--- child {self.number} pid {self.pid} rc {self.process.poll()}\n{text[-chars_max:]}"
        )


class Chaos:
    """One scenario: a topic, a group, its members and what happened to them."""

    def __init__(
        self,
        broker: Broker,
        folder: Path,
        *,
        seed: int,
        protocol: str = "eager",
        partitions: int = 4,
        session_s: float = PATIENT_SESSION_S,
        **plan: Any,
    ) -> None:
        self.broker, self.folder, self.seed = broker, folder, seed
        self.dice = random.Random(seed)
        self._way_s = JOIN_WAY_S if protocol == "cooperative" else COMMIT_WAY_S
        name = uuid.uuid4().hex[:8]
        kafka = {**PROTOCOLS[protocol], **plan.pop("kafka", {})}
        if protocol != "consumer":
            kafka |= {"session.timeout.ms": int(session_s * 1000), "heartbeat.interval.ms": 300}
        self.plan = Plan(
            bootstrap=broker.bootstrap,
            group=f"chaos-{name}",
            topic=f"chaos-{name}",
            log=str(folder / "handlers.log"),
            release=str(folder / "release"),
            kafka=kafka,
            seed=seed,
            **plan,
        )
        broker.create_topic(self.plan.topic, partitions)
        if protocol == "consumer":
            set_session(broker.bootstrap, self.plan.group, session_s)
        self.children: list[Child] = []
        self.produced: dict[tuple[int, int], str] = {}
        #: partition -> when records of it were acknowledged
        self.acknowledged: dict[int, list[float]] = {n: [] for n in range(partitions)}
        self.entries: list[Entry] = []
        self.excuses: list[Excuse] = []
        self.ended: dict[int, float] = {}
        self.kills = 0
        self._completed: set[tuple[int, int]] = set()
        self._tail = Tail(Path(self.plan.log))
        self._feeding = threading.Event()
        self.watch = CommitWatch(broker.bootstrap, self.plan.group, self.plan.topic, partitions)

    def __enter__(self) -> Self:
        """Print the seed, watch the commits."""
        say(f"seed {self.seed}, group {self.plan.group}")
        self.watch.__enter__()
        # The first question makes the brokers find a coordinator, which takes a cold one seconds.
        self.until(lambda: self.watch.looks > 0, 60, "the coordinator answers")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End every child, whatever happened; tell what they said if it went wrong."""
        self._feeding.set()
        if kind is not None:
            self.dump()
        for child in self.children:
            child.process.kill()
            child.process.wait(PATIENCE_S)
        self.watch.__exit__()

    # -- records -----------------------------------------------------------------------------------

    def produce(self, count: int, keys: int = 40, *, stuck: str = "none") -> None:
        """Produce records; all are acknowledged when this returns.

        "first" or "all" of them are held by their handler until the release file is there.
        """

        def keyed(place: int) -> tuple[str, bytes]:
            if stuck == "all" or (stuck == "first" and place == 0):
                return f"stuck{place}", b"stuck"
            return f"k{self.dice.randrange(keys)}", b"v"

        self.send(map(keyed, range(count)))

    def send(self, records: Iterable[tuple[str, bytes]]) -> None:
        """Produce these keys and values; all are acknowledged when this returns."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
        for key, value in records:
            producer.produce(self.plan.topic, value, key.encode(), on_delivery=self._remember(key))
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0

    def supply(self, least: int, keys: int = 40) -> None:
        """Produce until so many are left to do, however much was done while nobody looked."""
        missing = least - (len(self.produced) - self.completed)
        if missing > 0:
            self.produce(missing, keys)

    def _remember(self, key: str) -> Callable[[Any, Any], None]:
        def acknowledged(error: Any, message: Any) -> None:
            if error is None:  # else it was not acknowledged: nothing is promised for it
                self.produced[message.partition(), message.offset()] = key
                self.acknowledged[message.partition()].append(time.monotonic())

        return acknowledged

    def feed(self, per_s: float, keys: int = 40) -> threading.Thread:
        """Produce steadily in the background until `stop_feeding`."""

        def run() -> None:
            # Idempotent: a killed broker may have appended what it did not acknowledge. Sent once
            # more it would be a second record, and the first one an input that is not in `produced`.
            producer = Producer({
                "bootstrap.servers": self.broker.bootstrap, "message.timeout.ms": 60_000,
                "enable.idempotence": True,
            })  # fmt: skip
            dice = random.Random(self.seed + 1)
            began, sent = time.monotonic(), 0
            while not self._feeding.wait(0.02):
                due = int((time.monotonic() - began) * per_s)
                for _ in range(due - sent):
                    key = f"k{dice.randrange(keys)}"
                    producer.produce(
                        self.plan.topic, b"v", key.encode(), on_delivery=self._remember(key)
                    )
                sent = max(sent, due)
                producer.poll(0)
            producer.flush(60)

        thread = threading.Thread(target=run, name="feed", daemon=True)
        thread.start()
        self._feeder = thread
        return thread

    def stop_feeding(self) -> None:
        """No more records; what was sent is acknowledged when this returns."""
        self._feeding.set()
        self._feeder.join(70)

    # -- children ----------------------------------------------------------------------------------

    def start(self, **changes: Any) -> Child:
        """Start a member; returns at once."""
        self.note("start", len(self.children))
        number = len(self.children)
        plan = replace(self.plan, **changes)
        output = self.folder / f"child-{number}.log"
        environment = {
            **os.environ,
            VARIABLE: plan.text(),
            CHILD: str(number + 1),
            "PYTHONPATH": f"{ROOT}/src:{ROOT}",
        }
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "perkey.cli.main", "run", "tests.support.chaos_app:app"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        child = Child(number, process, output)
        self.children.append(child)
        return child

    def living(self) -> list[Child]:
        """Members that run and are not stopped."""
        return [child for child in self.children if child.alive and not child.stopped]

    def kill(self, child: Child, stopped_at: float | None = None) -> Excuse:
        """End it with SIGKILL; the fault explains the last commit interval."""
        at = time.monotonic() if stopped_at is None else stopped_at
        self.note("kill", child.number)
        child.process.kill()
        child.process.wait(PATIENCE_S)
        self.kills += 1
        self.ended[child.pid] = time.monotonic()
        excuse = Excuse("kill", child.pid, self.since(at), self.ended[child.pid])
        self.excuses.append(excuse)
        return excuse

    def kill_at_work(self, child: Child, least: int, keys: int = 40) -> Excuse:
        """SIGKILL with calls under way; where it was quicker than we are it gets more records."""

        def more() -> None:
            self.supply(least, keys)

        return self.kill(child, self.suspend_at_work(child, more))

    @property
    def window_s(self) -> float:
        """How long before a fault what was done may not have been committed."""
        return self.plan.commit_s + self._way_s

    def since(self, at: float) -> float:
        """When what a fault at this time may repeat began, without what the machine stood still."""
        return self.watch.before(at, self.window_s)

    def terminate(
        self, child: Child, sig: int = signal.SIGTERM, timeout_s: float = 30.0, code: int = 0
    ) -> float:
        """Ask it to end and wait; how long that took."""
        # Before its own signal handlers are there, a signal ends it as any process.
        self.until(lambda: " starting " in child.said(10**6) or not child.alive, 30, "it starts")
        began = time.monotonic()
        self.note(signal.Signals(sig).name, child.number)
        child.process.send_signal(sig)
        self.wait_exit(child, timeout_s, code)
        return time.monotonic() - began

    def wait_exit(self, child: Child, timeout_s: float, code: int = 0) -> None:
        """Wait until it has ended with this exit code."""
        self.until(lambda: not child.alive, timeout_s, f"child {child.number} ends")
        self.ended[child.pid] = time.monotonic()
        assert child.process.returncode == code, child.said()

    def suspend(self, child: Child) -> float:
        """SIGSTOP; when."""
        at = time.monotonic()
        self.note("stop", child.number)
        child.process.send_signal(signal.SIGSTOP)
        child.stopped = True
        return at

    def wake(self, child: Child, since: float) -> Excuse:
        """SIGCONT.

        What it did in its last commit interval, and what ran until it heard that it was thrown
        out, may be repeated elsewhere.
        """
        seen = child.said(10**7).count(STOOD_STILL)
        self.note("continue", child.number)
        long = time.monotonic() - since > STOPPED_S
        child.process.send_signal(signal.SIGCONT)
        child.stopped = False
        if long:  # a busy machine lets it go on later
            self.until(lambda: child.said(10**7).count(STOOD_STILL) > seen, 30, "it goes on")
        excuse = Excuse(
            "stopped", child.pid, self.since(since), time.monotonic() + 1.0, overlap=True
        )
        self.excuses.append(excuse)
        return excuse

    def suspend_at_work(
        self, child: Child, meanwhile: Callable[[], object] = lambda: None
    ) -> float:
        """SIGSTOP, with calls under way; when. `meanwhile` is called before each further try."""
        while True:
            since = self.suspend(child)
            if self.running_in(child):
                return since
            self.excuses.remove(self.wake(child, since))  # within its session: it explains nothing
            meanwhile()
            threading.Event().wait(self.dice.uniform(0.0, LOOK_S))

    def running_in(self, child: Child) -> int:
        """How many calls of this child have begun and not ended."""
        self.look()
        mine = [entry.kind for entry in self.entries if entry.pid == child.pid]
        return 2 * mine.count("S") - len(mine)

    def note(self, what: str, number: int) -> None:
        """What was done to whom and when, for people who look into a failure."""
        pid = self.children[number].pid if number < len(self.children) else 0
        with (self.folder / "actions.log").open("a") as file:
            file.write(
                f"{time.monotonic():.3f} {time.time():.3f} {what} child {number} pid {pid}\n"
            )

    def standstills(self, began: float, ended: float) -> tuple[list[float], list[float]]:
        """The longest pause of each partition between two acknowledged records, and two starts."""
        self.look()
        starts: dict[int, list[float]] = {number: [] for number in self.acknowledged}
        for entry in self.entries:
            if entry.kind == "S":
                starts[entry.partition].append(entry.at)
        produced, started = (
            [longest_pause(times[number], began, ended) for number in sorted(times)]
            for times in (self.acknowledged, starts)
        )
        return produced, started

    # -- waiting -----------------------------------------------------------------------------------

    def look(self) -> list[Entry]:
        """Take in what was logged since the last look."""
        new = list(self._tail.new())
        self.entries += new
        self._completed.update(entry.record for entry in new if entry.kind == "E")
        return new

    @property
    def completed(self) -> int:
        """Records completed so far, each once."""
        self.look()
        return len(self._completed)

    def starts_of(self, child: Child) -> int:
        """How many calls this child has begun."""
        self.look()
        return sum(entry.pid == child.pid and entry.kind == "S" for entry in self.entries)

    def spared(self, excuse: Excuse) -> int:
        """What this process had completed before the window of its fault: must not repeat."""
        return sum(
            e.kind == "E" and e.pid == excuse.pid and e.at < excuse.since for e in self.entries
        )

    def let_work(self, child: Child, seconds: float) -> None:
        """Let it work so long, counted from its first call."""
        self.until(lambda: self.starts_of(child) > 0, 30, f"child {child.number} starts working")
        threading.Event().wait(seconds)

    def let_settle(self, child: Child) -> None:
        """Wait until a kill now would have to spare some of what it has completed."""

        def settled() -> bool:
            self.look()
            since = self.since(time.monotonic())
            return any(e.kind == "E" and e.pid == child.pid and e.at < since for e in self.entries)

        self.until(settled, 30, f"child {child.number} has committed")

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait for a condition; how long it took, for who has a bar to hold it to.

        Dumps every thread before it gives up, after PATIENCE_S at the earliest.
        """

        def gave_up() -> str:
            self.dump_threads()
            return f"{what} (seed {self.seed})"

        began = time.monotonic()
        wait_for(condition, max(timeout_s, PATIENCE_S), gave_up)
        return time.monotonic() - began

    def all_done(self, timeout_s: float, *, but: int = 0) -> float:
        """Wait until every record was completed, or all but so many."""
        return self.until(
            lambda: self.completed >= len(self.produced) - but,
            timeout_s,
            f"{len(self.produced)} records completed",
        )

    def committed(self) -> bool:
        """The group's frontier is past every record."""
        ends = {}
        for partition, offset in self.produced:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        frontiers = self.watch.frontiers()
        return all(frontiers.get(partition, 0) >= end for partition, end in ends.items())

    def dump_threads(self) -> None:
        """Have every living child write its stacks."""
        for child in self.living():
            child.process.send_signal(signal.SIGUSR1)
        threading.Event().wait(0.5)

    def dump(self) -> None:
        """What the children said."""
        for child in self.children[-8:]:
            say(child.said())

    def problems(self, verdict: Verdict) -> list[str]:
        """What handlers and commits got wrong."""
        seen = judge_commits(self.watch.seen, self.entries, self.produced)
        died = [line for child in self.children for line in dead_threads(child.said(10**7))]
        return verdict.problems() + seen + died

    # -- the end -----------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """The judge's word on everything so far; prints its summary, fails on any problem."""
        self.look()
        # What was committed last is in the answer to a question that was asked since then.
        looks = self.watch.looks
        self.until(lambda: self.watch.looks > looks + 1, 30, "the commits are read")
        self.watch.__exit__()
        verdict = judge(self.entries, self.produced, self.excuses, self.ended)
        problems = self.problems(verdict)
        say(f"{verdict.summary()} kills={self.kills} commits seen={len(self.watch.seen)}")
        assert self.watch.looks, "unknown: nobody saw a commit"
        assert not problems, f"seed {self.seed}: " + "\n".join(problems)
        return verdict
