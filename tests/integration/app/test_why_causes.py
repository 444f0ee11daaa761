"""Every place and every cause, brought about and asked for through the socket.

One row each: what brings it about, what `perkey why` is asked, and what it says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from tests.integration.app.conftest import Kafka
from tests.support.waiting import wait_for

import perkey
from perkey.broker import LocalBroker
from perkey.cli import main
from perkey.observe import sentences
from perkey.observe.orders import Order
from perkey.reasons import HALTS, PLACES
from perkey.runtime.member import refetching, run_log

pytestmark = pytest.mark.push

WAIT_S = 60.0
#: more than one poll brings
MANY = 12_000


@pytest.fixture(autouse=True)
def own_sockets(tmp_path, monkeypatch):
    """Runs of this test alone, and they serve."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PERKEY_SOCKET", "1")
    monkeypatch.setattr(run_log, "FAILING_S", 0.0)
    monkeypatch.setattr(sentences, "BRIEF_S", 0.0)  # advice for calls that have just started


class Stage:
    """What a row plays with. Handlers wait at the gate; it opens at the end."""

    def __init__(self, kafka: Kafka, request: Any, tmp_path: Any) -> None:
        self.kafka, self.request, self.folder = kafka, request, tmp_path
        self.gate = threading.Event()
        self.begun: list[int] = []
        self.broker: LocalBroker | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.app: Any = None
        self.topic = ""
        self.writers: list[Producer] = []

    def mortal(self) -> None:
        """From now on a real broker, which may be frozen."""
        self.broker = self.request.getfixturevalue("mortal_broker")
        self.kafka = Kafka(self.broker.bootstrap)

    def freeze(self) -> None:
        """The broker answers nothing more."""
        assert self.broker is not None
        self.broker.kill(sig=signal.SIGSTOP)

    def wait_here(self, record: Any) -> None:
        """A handler that waits at the gate."""
        self.begun.append(record.offset)
        self.gate.wait(120)

    def start(self, records: list[Any], handler: Any = None, *, partitions=1, app=None, **consume):
        """An app on a new topic with these records; waits for nothing."""
        self.topic = self.kafka.topic(partitions)
        self.kafka.fill(self.topic, records)
        return self.again(handler, app=app, **consume)

    def again(self, handler: Any = None, *, app=None, **consume):
        """One more app on the same topic."""
        self.app = self.kafka.app(**(app or {}))
        self.app.consume(self.topic, **consume)(handler or self.wait_here)
        return self.kafka.start(self.app)

    def until(self, field: str, count: int) -> None:
        """Wait until the partitions together have so many."""
        app = self.app
        wait_for(lambda: sum(p[field] for p in app.snapshot()["partitions"]) == count, WAIT_S)

    def calls(self, count: int) -> None:
        """Wait until so many calls have begun: a granted one that has not ends with its partition."""
        wait_for(lambda: len(self.begun) == count, WAIT_S)

    def end(self) -> None:
        """All goes on, and ends."""
        for process in self.processes:
            process.kill()
            process.wait()
        if self.broker is not None:
            self.broker.kill(sig=signal.SIGCONT)
        self.gate.set()
        for writer in self.writers:
            writer.abort_transaction(60)
        self.kafka.end_all()


@pytest.fixture
def stage(kafka, request, tmp_path):
    """It is cleared away whatever happens."""
    one = Stage(kafka, request, tmp_path)
    yield one
    one.end()


def keyed(*keys: str) -> list[Any]:
    """Records of these keys."""
    return [{"value": b"x", "key": key} for key in keys]


def one_hangs(record):
    """Nothing comes back of key `slow`."""
    if record.key == b"slow":
        threading.Event().wait(120)


def output(stage: Stage, **how: Any) -> None:
    """A handler with one output; the broker is gone when it returns."""
    stage.mortal()
    out = stage.kafka.topic()

    def handler(record):
        stage.gate.wait(120)
        return perkey.Produce(b"out", topic=out)

    stage.start(keyed("a"), handler, **how)
    stage.until("in_flight", 1)
    stage.freeze()
    stage.gate.set()


# -- places ----------------------------------------------------------------------------------------


def ready(stage):
    stage.start([b"x"] * 3, concurrency=1)
    return f"{stage.topic}:0:1"


def gathering(stage):
    batch = perkey.Batch(max_records=100, linger_s=60.0)
    stage.start([b"x"] * 3, lambda batch: None, batch=batch)
    return f"{stage.topic}:0:1"


def behind(stage):
    stage.start(keyed("a", "a"))
    return f"{stage.topic}:0:1"


def past_map(stage):
    """Half of 24,528 offsets at random are behind one that hangs: their map has no more room."""
    chance = random.Random(7)
    some = [{"value": b"", "key": "slow" if chance.random() < 0.5 else None} for _ in range(40_000)]

    async def handler(record):
        if record.key == b"slow":
            await asyncio.sleep(600)  # until it is cancelled

    stage.start([*keyed("slow"), *some, {"value": b"", "key": None}], handler, concurrency=50)
    return f"{stage.topic}:0:40001"


def held(stage):
    """Two partitions, a call in each; another member takes one of them, the other one comes back."""
    both = [{"value": b"x", "key": "k", "partition": number} for number in (0, 1)] * 2
    group = {"group": stage.kafka.name("g"), "revoke_timeout_s": 0.1}
    stage.start(both, partitions=2, app=group)
    stage.calls(2)
    stage.again(app=group)
    return stage.topic


def marking(stage):
    stage.mortal()
    stage.start([b"x"] * 3, concurrency=1, delivery="at_most_once")
    stage.calls(1)  # its own mark is committed
    stage.freeze()
    stage.gate.set()
    return f"{stage.topic}:0:1"


def running(stage):
    stage.start(keyed("a"), timeout_s=100.0)
    return f"{stage.topic}:0"


def not_begun(stage):
    """The prefetch waits at the gate."""
    stage.start(keyed("a"), prefetch=lambda records: stage.gate.wait(120))
    return f"{stage.topic}:0"


def none_begins(stage):
    stage.start(keyed("a"), prefetch=lambda records: stage.gate.wait(120))


def sending(stage):
    output(stage)
    return f"{stage.topic}:0"


def committing(stage):
    stage.mortal()
    stage.start(keyed("a"), commit=perkey.Commit(each=True))
    stage.until("in_flight", 1)
    stage.freeze()
    stage.gate.set()
    return f"{stage.topic}:0"


def pending(stage):
    output(stage, delivery="exactly_once")
    return f"{stage.topic}:0"


def fails(record):
    raise ValueError("no such customer")


def retrying(stage):
    stage.start(keyed("a"), fails, retry=perkey.Retry(attempts=2, delay_s=60.0))
    return f"{stage.topic}:0"


def failing(stage):
    """Each record has failed once and waits: with short delays one of them may run just then."""
    retry = perkey.Retry(attempts=None, delay_s=60.0)
    stage.start(keyed(*"abcdefghij"), fails, retry=retry)
    stage.until("retrying", run_log.FAILING_MIN)


def parked(stage):
    stage.start(keyed("a"), fails, retry=perkey.Retry(attempts=1))
    return f"{stage.topic}:0"


def fetching(stage):
    """It is released, and the log is not read while the gate is closed."""
    patch = stage.request.getfixturevalue("monkeypatch")
    patch.setattr(refetching, "fetch", lambda *_: stage.gate.wait(120) and iter(()))
    run = stage.start(keyed("a"), fails, retry=perkey.Retry(attempts=1))
    stage.until("parked", 1)
    release = Order("release", "a test", "id", stage.topic, records=((0, 0),))
    wait_for(lambda: run.control.obey(release).outcome == "done", WAIT_S)
    return f"{stage.topic}:0:0"


def unfetched(stage):
    """The last is not done by the map of the first run, and the second has no room to come to it."""
    group = {"group": stage.kafka.name("g")}
    records = [*keyed(*["slow"] * 20), *[b"x"] * MANY, *keyed("last"), b"x"]

    def handler(record):
        if record.key in (b"slow", b"last"):
            stage.gate.wait(120)

    first = stage.start(records, handler, app=group, commit=perkey.Commit(interval_s=0.05))
    stage.until("remaining", 21)
    wait_for(lambda: stage.app.snapshot()["partitions"][0]["map_chars"], WAIT_S)
    first.stop("now")
    first.wait(WAIT_S)
    stage.again(handler, app={**group, "buffer_records": 5})
    return f"{stage.topic}:0:{MANY + 20}"


def not_read(stage):
    stage.start([b"x"] * MANY, concurrency=1, app={"buffer_records": 5})
    return f"{stage.topic}:0:{MANY - 1}"


# -- causes ----------------------------------------------------------------------------------------


def unassigned(stage):
    group = {"group": stage.kafka.name("g")}
    stage.start([], app=group)
    wait_for(lambda: stage.app.snapshot()["partitions"], WAIT_S)
    stage.again(app=group)


def paused_topic(stage):
    stage.start([b"x"])
    stage.app.pause(stage.topic)


def paused(stage):
    stage.start([b"x"])
    stage.app.pause()


def stopping(stage):
    run = stage.start([b"x"], app={"drain_timeout_s": 100.0})
    stage.calls(1)
    run.stop()


def revoking(stage):
    group = {"group": stage.kafka.name("g"), "revoke_timeout_s": 90.0}
    stage.start([b"x"], app=group)
    stage.calls(1)
    stage.again(app=group)


def outputs(stage):
    """Far more outputs than the producer may hold."""
    stage.mortal()
    out = stage.kafka.topic()

    def handler(record):
        stage.gate.wait(120)
        return [perkey.Produce(b"out", topic=out)] * 10

    small = {"producer": {"queue.buffering.max.messages": 10}}
    stage.start([b"x"] * 50, handler, app=small, concurrency=20)
    stage.until("in_flight", 20)
    stage.freeze()
    stage.gate.set()


def results(stage):
    """Nobody reads what `app.results()` brings."""
    stage.topic = stage.kafka.topic()
    stage.kafka.fill(stage.topic, [b"x"] * 5_000)
    stage.app = stage.kafka.app()
    stage.app.consume(stage.topic)(lambda record: None)
    stage.results = stage.app.results()
    stage.kafka.start(stage.app)


MEMBER = """
import sys, perkey
app = perkey.App(group="g", kafka={"bootstrap.servers": sys.argv[1]})
@app.consume(sys.argv[2])
def handler(record): ...
app.run()
"""


def membership(stage):
    """A process stands still for longer than a polling thread may; the broker cannot clear it up."""
    stage.mortal()
    topic = stage.kafka.topic()
    script = stage.folder / "member.py"
    script.write_text(MEMBER)
    given = [sys.executable, str(script), stage.kafka.bootstrap, topic]
    process = subprocess.Popen(given, env=dict(os.environ))
    stage.processes.append(process)
    wait_for(lambda: list(stage.folder.glob("perkey/*.sock")), WAIT_S)
    wait_for(lambda: asked("status")[0]["partitions"], WAIT_S)
    stage.freeze()
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)  # it stands still: that is what happens here
    process.send_signal(signal.SIGCONT)


def rate_limit(stage):
    stage.start([b"x"] * 50, lambda record: None, rate_limit_per_s=0.5)


def outage(stage):
    """What it calls is away; asked as a whole."""

    def handler(record):
        raise OSError("503")

    stage.start([b"x"] * 3, handler, hold=perkey.Hold(OSError, probe_s=60))


def outage_of_a_value(stage):
    """The same for one value; asked for a record that waits."""

    def handler(record):
        raise OSError("503")

    hold = perkey.Hold(OSError, probe_s=60, by=lambda record: record.topic)
    stage.start([b"x"] * 3, handler, hold=hold)
    return f"{stage.topic}:0:2"


def budget(stage):
    """One call at a time; the others wait for it."""
    stage.start([b"x"] * 3, budget=perkey.Budget("openai", in_flight=1))


def in_a_budget(stage):
    """The same; asked for a record that waits."""
    budget(stage)
    return f"{stage.topic}:0:2"


def brake(stage):
    """Two of two records used up their attempts."""

    def handler(record):
        raise ValueError("no such customer")

    rule = perkey.Brake(share=1, at_least=2, probe_s=60)
    stage.start([b"x"] * 9, handler, concurrency=1, retry=perkey.Retry(attempts=1), brake=rule)


def slots(stage):
    stage.start([b"x"] * 3, concurrency=1)


def buffers(stage):
    stage.start([b"x"] * MANY, concurrency=1, app={"buffer_records": 5})


def open_transaction(stage):
    """Another service has written, and not ended its transaction; a plain record is behind it."""
    stage.mortal()
    stage.start([b"x"], lambda record: None)
    stage.until("remaining", 0)
    writer = Producer(
        {
            "bootstrap.servers": stage.kafka.bootstrap,
            "transactional.id": stage.kafka.name("x"),
            "transaction.timeout.ms": 300_000,
            "log_level": 0,
        }
    )
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(stage.topic, b"not yet")
    assert writer.flush(60) == 0
    stage.kafka.fill(stage.topic, [b"behind it"])
    stage.writers.append(writer)  # else it is thrown away, and its transaction with it
    return f"{stage.topic}:0"


class Row(NamedTuple):
    """One cause or place: who brings it about, and what is said of it."""

    bring: Callable[[Stage], str | None]
    about: str
    text: str
    next: str


ROWS = (
    Row(ready, "ready", r"record 1 is ready and waits for a free slot", "see what blocks all records"),
    Row(gathering, "gathering", r"record 1 is in a batch that is filling or lingering", "Batch.linger_s"),
    Row(behind, "behind", r"record 1 \(key a\) is queued behind record 0, which runs", "a thread"),
    Row(past_map, "past_map", r"is beyond the reach of the offset map", "record at the frontier"),
    Row(held, "held", r"Record 0 \(key k\) waits for a call of an earlier assignment that still "
        r"runs in its lane", "wait for that call"),
    Row(marking, "marking", r"record 1 waits for [\d.]+ s for its started-mark to be committed",
        "check that the broker is up"),
    Row(running, "running", r"Record 0 \(key a\) runs in member \S+ for [\d.]+ s, attempt 1 of 5",
        "past timeout_s=100 it counts as overdue"),
    Row(not_begun, "not_begun", r"Record 0 \(key a\) waits in member \S+ for [\d.]+ s for its call "
        r"to begin", "its prefetch has not returned"),
    Row(none_begins, "not_begun", r"No call of wait_here has begun for [\d.]+ s: 1 wait",
        "its prefetch has not returned"),
    Row(sending, "sending", r"is handled; its outputs wait for [\d.]+ s for the broker's ack",
        "check that the output topic exists"),
    Row(committing, "committing", r"is done and waits for [\d.]+ s for its commit", "check that the broker"),
    Row(pending, "pending", r"is handled and waits for [\d.]+ s for its transaction",
        "transaction aborted"),
    Row(retrying, "retrying", r"failed once: ValueError: no such customer; attempt 2 of 2 starts in",
        "fix the error"),
    Row(parked, "parked", r"is parked for [\d.]+ s, given up after one attempt: "
        r"ValueError: no such customer", "fix the cause and release it"),
    Row(fetching, "fetching", r"is being read from the log again: it was released",
        "it continues when it is here"),
    Row(unfetched, "unfetched", r"is not done in the restored offset map, and not fetched again",
        "with the next fetches"),
    Row(not_read, "not_read", r"is in the log but not fetched yet: the consumer is at", "`buffers`"),
    Row(unassigned, "unassigned", r"This member (joins its group|is idle|has no partition)", "partition"),
    Row(paused_topic, "paused", r"Nothing of \S+ starts: the application called app\.pause\(\)",
        r"app.resume('"),
    Row(paused, "paused", r"Nothing starts: the application called app\.pause\(\)", "app.resume()"),
    Row(stopping, "stopping", r"Nothing starts: a stop was requested \(in_flight\)", "drain_timeout_s"),
    Row(revoking, "revoking", r"Nothing of \S+\[0\] starts: the partition is being revoked",
        "revoke_timeout_s"),
    Row(outputs, "outputs", r"Nothing starts: the producer queue is full of outputs", "output topic has a leader"),
    Row(results, "results", r"Nothing starts: the reader of app\.results\(\) is slower", "read faster"),
    Row(membership, "membership", r"Nothing starts: the polling thread was blocked", "a commit"),
    Row(rate_limit, "rate_limit", r"Calls of \S+ wait for its rate_limit_per_s", "raise rate_limit"),
    Row(failing, "failing", r"Every attempt of fails has failed for [\d.]+ s: the last 10, the latest "
        r"with ValueError: no such customer\. Records that wait to be retried: 10\.",
        "perkey pause --handler fails --reason TEXT"),
    Row(outage, "outage", r"The service that handler calls has been unavailable for [\d.]+ s: OSError: 503\. "
        r"Records wait",
        "restore that service"),
    Row(outage_of_a_value, "outage", r"record 2 waits because the service that its handler calls is "
        r"unavailable",
        "restore that service"),
    Row(budget, "budget", r"2 keys of wait_here wait for budget openai \(1 in flight\): 1 call is "
        r"in flight", "they start as calls end"),
    Row(in_a_budget, "budget", r"record 2 waits in the queue of its handler's budget",
        "perkey why names the budget"),
    Row(brake, "brake", r"The brake holds handler for [\d.]+ s: 2 of its last 2 records used up their "
        r"attempts, the latest one with ValueError: no such customer", "perkey resume --handler handler"),
    Row(slots, "slots", r"All concurrency slots of wait_here are taken", "normal"),
    Row(open_transaction, "open_transaction", r"\[0\]: the records from offset 1 wait behind an open "
        r"transaction of another producer \(last stable offset 1, end 3\)", "kafka-transactions.sh"),
    Row(buffers, "buffers", r"Fetching of \S+\[0\] is paused: the buffers are full", "normal"),
)  # fmt: skip
#: these freeze a broker, or write to it in transactions of others
REAL = {marking, sending, committing, pending, outputs, membership, open_transaction}
#: brought about by test_seen.py, tests/unit/observe/test_outages.py, test_sentences.py,
#: tests/unit/runtime/test_unread.py and test_control.py
ELSEWHERE = {
    "starting",
    "broker",
    "loop",
    "map",
    "refused",
    "start_unknown",
    "not_fetched",
    "command",
    "on_hold",
}
_told: dict[str, Any] = {}


def asked(*arguments: str) -> list[dict[str, Any]]:
    """The answers of all runs, as `perkey … --json` prints them."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.echo", lambda text, err=False: printed.append(text))
        code = main.run([*arguments, "--json"])
    return json.loads(printed[0]) if code == 0 else []


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.broker] * (row.bring in REAL)) for row in ROWS],
    ids=lambda row: row.bring.__name__,
)
def test_it_is_named_with_what_to_do(row, stage, capsys):
    """The sentence, and the next step, in JSON and in text."""
    where = row.bring(stage)
    question = [] if where is None else [where]

    def sentence():
        told = [one for answer in asked("why", *question) for one in answer["sentences"]]
        return next((one for one in told if one["about"] == row.about), None)

    told = wait_for(sentence, WAIT_S, what=lambda: asked("why", *question))
    assert re.search(row.text, told["text"]), told
    assert row.next in told["next"]
    capsys.readouterr()
    assert main.run(["why", *question]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(row.text, shown), shown
    assert row.next in shown


def test_no_place_and_no_cause_is_without_a_row():
    """What is new in the account comes in here."""
    named = {one.name for one in (*PLACES, *HALTS)}
    assert named <= {row.about for row in ROWS} | ELSEWHERE
