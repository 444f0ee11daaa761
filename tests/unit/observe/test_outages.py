"""Thirteen outages: the first line of `perkey why`, and that docs/troubleshooting.md has exactly that."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import wait_for
from tests.unit.core.conftest import make_desk  # noqa: F401  # a fixture of the tests below

import perkey
from perkey.account.account import Unread, take
from perkey.account.snapshot import snapshot
from perkey.core.events import HandlerSpec, Limits
from perkey.kafka.ports import KafkaUnavailable, LoginRefused
from perkey.observe import sentences
from perkey.observe import why as module
from perkey.observe.asking import Question, answer
from perkey.observe.overview import overview
from perkey.observe.why import why
from perkey.runtime.member import run_log
from perkey.runtime.member.member import Member
from perkey.runtime.run import run_snapshot
from perkey.runtime.run.outside import RunSource
from perkey.runtime.run.run import Run
from perkey.runtime.run.run_snapshot import Starting
from perkey.testing import MemoryKafka

PAGE = Path(__file__).parents[3] / "docs/troubleshooting.md"
WAIT_S = 30.0
REFUSED = (
    "Kafka at kafka-1:9093: cannot describe orders: Authentication failed: the broker refuses the "
    "credentials: check security.protocol and sasl.*"
)


class Stage:
    """An app on the topic `orders`; its handlers wait at a gate, which opens at the end."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka, self.gate = kafka, threading.Event()
        self.run: Run | None = None
        #: what the members report, where no run does
        self.reported: list[dict[str, Any]] | None = None

    def start(self, handler: Any, keys: list[bytes], *, app: Any = None, **consume: Any) -> None:
        """Handle a record of each key."""
        self.kafka.create_topic("orders")
        for key in keys:
            self.kafka.produce("orders", b"x", key=key)
        one = perkey.App(
            group="g", kafka={"bootstrap.servers": self.kafka.bootstrap}, **(app or {})
        )
        one.consume("orders", **consume)(handler)
        run = one.start()
        assert isinstance(run, Run)
        self.run = run

    def waits(self, record: perkey.Record) -> None:
        """A handler that waits at the gate."""
        self.gate.wait()

    def until(self, about: str) -> dict[str, Any]:
        """The first sentence, once it is about this."""
        assert self.run is not None
        source = RunSource(self.run)

        def said() -> dict[str, Any] | None:
            (first, *_) = answer(source, Question())["sentences"]
            found = first["about"] == about and (about != "hangs" or len(first["stack"]) > 1)
            return dict(first) if found else None

        return dict(wait_for(said))

    def members(self) -> list[dict[str, Any]]:
        """What the members report now."""
        if self.reported is not None:
            return self.reported
        assert self.run is not None
        return [self.run.snapshot()]

    def report(self, **fields: Any) -> dict[str, Any]:
        """The first sentence of a member that reports this."""
        app = {"group": "g", "member": "m1", "pid": 4711, "started_at": time.time() - 3600}
        at = round(time.time(), 3)
        self.reported = [{"state": "running", "at": at, "app": app, "failures": [], **fields}]
        return why({**overview(self.reported), "state": "running"})[0].row()

    def end(self) -> None:
        """Let go of everything."""
        self.gate.set()
        if self.run is not None:
            self.run.stop("now")
            self.run.wait(WAIT_S)


@pytest.fixture
def stage(memory_broker, monkeypatch):
    """Calls hang after moments, not after seconds."""
    monkeypatch.setattr(module, "HANGS_S", 0.3)
    monkeypatch.setattr(module, "STUCK_S", 0.3)
    monkeypatch.setattr(module, "BRIEF_S", 0.1)
    monkeypatch.setattr(sentences, "BRIEF_S", 0.1)
    monkeypatch.setattr(run_snapshot, "STACK_AFTER_S", 0.1)
    one = Stage(memory_broker)
    yield one
    one.end()


def waits(record: perkey.Record) -> None:
    """For a worker process."""
    threading.Event().wait()


KEYS = [b"cust-17", b"cust-18", b"cust-19", b"cust-20"]


def hung_async(stage: Stage, **_: Any) -> Any:
    """A service that never answers."""

    async def waits(record: perkey.Record) -> None:
        await asyncio.Event().wait()

    stage.start(waits, KEYS, concurrency=2)
    return stage.until("hangs")


def hung_threads(stage: Stage, **_: Any) -> Any:
    """The same, called by a plain function."""
    stage.start(stage.waits, KEYS, concurrency=2)
    return stage.until("hangs")


def hung_processes(stage: Stage, **_: Any) -> Any:
    """The same in a worker process."""
    stage.start(waits, KEYS, concurrency=1, executor="processes")
    return stage.until("hangs")


def blocked_loop(stage: Stage, **_: Any) -> Any:
    """A plain call in an `async def`: the loop stands, and no time-out can end anything."""

    async def waits(record: perkey.Record) -> None:
        stage.gate.wait()

    stage.start(waits, KEYS, concurrency=2, timeout_s=0.5)
    return stage.until("loop")


def broker_away(stage: Stage, monkeypatch: pytest.MonkeyPatch, **_: Any) -> Any:
    """Nobody answers any more; nothing is fetched, and the group does not know us."""
    stage.start(lambda record: None, KEYS)
    assert stage.run is not None
    stage.until("healthy")
    run = stage.run

    def refuse(*_: Any) -> Any:
        raise KafkaUnavailable("no answer")

    monkeypatch.setattr(Member, "answers", lambda *_: False)
    monkeypatch.setattr(run._admin, "describe", refuse)
    assert run.member is not None
    run.member.run_log.broker_seen_at -= 60.0
    return stage.until("broker")


def waiting_start(stage: Stage, **_: Any) -> Any:
    """What the lifespan connects to does not answer: there is no member yet."""
    starting = Starting()
    starting.waits("lifespan", stack=lambda: ["shop/app.py:7 lifespan: await connect()"])
    nothing: dict[str, Any] = {"partitions": [], "handlers": {}, "blockers": []}
    return stage.report(**nothing, halts=[starting.halt()])


def every_call_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch, **_: Any) -> Any:
    """A service is away, and the handler has neither `hold=` nor `brake=`."""
    monkeypatch.setattr(run_log, "FAILING_S", 0.0)

    def check(record: perkey.Record) -> None:
        if not stage.gate.is_set():
            raise ConnectionError("db-1:5432 refused")

    stage.start(check, KEYS, retry=perkey.Retry(attempts=None, delay_s=0.01, delay_max_s=0.1))
    return stage.until("failing")


def login_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch, **_: Any) -> Any:
    """The password was changed."""
    stage.start(lambda record: None, KEYS)
    stage.until("healthy")
    assert stage.run is not None
    run = stage.run

    def refuse(*_: Any) -> Any:
        raise LoginRefused(REFUSED)

    monkeypatch.setattr(run._admin, "describe", refuse)
    assert run.member is not None
    run.member.run_log.broker_seen_at -= 60.0
    return stage.until("refused")


def map_full(stage: Stage, desk: Callable[..., Any], **_: Any) -> Any:
    """One record hangs at the frontier, and what is done beyond it fills the map."""
    one = desk(HandlerSpec("check"), limits=Limits(map_chars=16))
    (partition,) = one.assign(0, topic="orders")
    one.poll(partition, 0, key=b"cust-17")
    for offset in range(1, 300):
        one.poll(partition, offset, key=b"%d" % offset)
        one.do("calls_ended", [w for w in one.started() if w.record.key != b"cust-17"])
    one.now += 312.0
    shot = snapshot(take(one.engine, one.now), time.time() - one.now)
    assert shot["partitions"][0]["map_used"] == 1.0
    return stage.report(**shot)


def buffers_full(stage: Stage, monkeypatch: pytest.MonkeyPatch, **_: Any) -> Any:
    """A backlog, and nothing wrong."""
    monkeypatch.setattr(module, "HANGS_S", 60.0)
    keys = [b"%d" % n for n in range(3_000)]
    stage.start(stage.waits, keys, concurrency=5, app={"buffer_records": 20})
    return stage.until("buffers")


def poison(stage: Stage, **_: Any) -> Any:
    """One record fails, the others of its key wait."""

    def handler(record: perkey.Record) -> None:
        if record.key == b"cust-17":
            raise ValueError("no such customer")

    retry = perkey.Retry(attempts=5, delay_s=0.0)
    stage.start(handler, [b"cust-17"] * 3 + [b"cust-18"] * 3, retry=retry)
    return stage.until("parked")


def dead_member(stage: Stage, **_: Any) -> Any:
    """It reports nothing any more, and nobody has taken its partitions."""
    stage.start(stage.waits, KEYS)
    stage.until("running")
    assert stage.run is not None
    return stage.report(**{**stage.run.snapshot(), "silent_s": 33.0})


def stale_leader(stage: Stage, desk: Callable[..., Any], **_: Any) -> Any:
    """The start of a partition is looked up at a leader that has moved."""
    one = desk(HandlerSpec("check"))
    waits = Unread("orders", 3, "check", "start_unknown", -40.0, "it has no leader that answers")
    return stage.report(**snapshot(take(one.engine, one.now), time.time(), unread=[waits]))


OUTAGES: list[Callable[..., Any]] = [
    hung_async, hung_threads, hung_processes, blocked_loop, broker_away, login_refused, map_full, buffers_full,
    poison, dead_member, stale_leader, waiting_start, every_call_fails,
]  # fmt: skip


def plain(text: str) -> str:
    """Without what differs from run to run: numbers, names of members, lines of code, and ticks."""
    text = text.replace("`", "")
    text = re.sub(r", at .*$", ", at …", text)
    text = re.sub(r"\d[\d,.:]*\d|\d", "#", text)
    return re.sub(r"(?<=[Mm]ember )\S+", "…", text)


def rows() -> dict[str, tuple[str, str]]:
    """What the page says of each outage: the first line, and the next step."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4:
            found[cells[0]] = (plain(cells[1]), plain(cells[3]))
    return found


def spawns(outage: Callable[..., Any]) -> Any:
    """A case; one that starts a process takes as long as the machine does for that."""
    marks = [pytest.mark.push] if outage is hung_processes else []
    return pytest.param(outage, marks=marks, id=outage.__name__)


@pytest.mark.parametrize("outage", [spawns(one) for one in OUTAGES])
def test_the_first_line_of_an_outage(outage, stage, make_desk, monkeypatch):  # noqa: F811  # the fixture
    """It names the cause, the next line the cure; the page has both."""
    told = outage(stage=stage, desk=make_desk, monkeypatch=monkeypatch)
    name = outage.__name__.replace("_", " ")
    assert (plain(told["text"]), plain(told["next"])) == rows()[name]


@pytest.mark.parametrize("outage", [spawns(one) for one in OUTAGES[:3]])
def test_a_hanging_call_shows_where_it_is(outage, stage):
    """The outermost line is the handler's own, whatever calls it; then what it waits for."""
    told = outage(stage=stage)
    outermost, *_, innermost = told["stack"]
    assert outermost.startswith("observe/test_outages.py:")
    assert " waits: " in outermost
    assert re.search(r"(locks|threading)\.py:\d+ wait: ", innermost)


@pytest.mark.parametrize("outage", [hung_threads, dead_member])
def test_what_the_first_line_counts_is_not_repeated(outage, stage):
    """Calls of a handler of which none ends, and calls of a member that is gone."""
    first = outage(stage=stage)
    told = why({**overview(stage.members()), "state": "running"})
    assert [one.about for one in told] == [first["about"]]


def test_a_success_ends_a_series_of_failures(stage, monkeypatch):
    """One record that still fails is then named by itself, and so is nothing when all is done."""
    every_call_fails(stage, monkeypatch)
    stage.gate.set()
    stage.until("healthy")


def test_the_page_has_no_other_outages():
    """And no others."""
    named = [outage.__name__.replace("_", " ") for outage in OUTAGES]
    assert list(rows())[1:] == named  # the first is the table's head
