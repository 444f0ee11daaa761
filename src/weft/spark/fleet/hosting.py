"""A member inside its Spark task: the same runtime as in one process, led by the driver."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from weft.app_options import AppOptions
from weft.core.engine import Engine
from weft.core.epochs import Found
from weft.core.partition import Partition
from weft.core.states import InternalError
from weft.errors import ConfigError, WeftError
from weft.runtime.calls.processes.protocol import by_value
from weft.runtime.logs import event
from weft.runtime.run.drain import passed
from weft.runtime.run.outside import RunSource
from weft.runtime.run.result_stream import ResultStream
from weft.spark.fleet import pickles
from weft.spark.fleet.lending import Borrowing
from weft.spark.fleet.limits import (
    AGAIN_MAX_S,
    AGAIN_S,
    ALIVE_EVERY_S,
    LOG_LINE_CHARS_MAX,
    LOG_LINES_MAX,
    ORPHAN_DRAIN_S,
    PROGRESS_EVERY_S,
)
from weft.spark.fleet.link import Link
from weft.spark.fleet.member_run import MemberApp, MemberHandle, MemberRun
from weft.spark.fleet.member_task import MemberTask
from weft.spark.fleet.membership import client_id, has_ended, member_kafka, static_id
from weft.spark.fleet.outside import answered
from weft.spark.fleet.relay import REPORTED
from weft.spark.fleet.results import ResultsUp
from weft.spark.fleet.slots import place_of, places_at_start
from weft.spark.fleet.wire import Message
from weft.types import RunReport, StopMode, TopicPartition

if TYPE_CHECKING:
    from weft.spark.table.line import TableLine

_log = logging.getLogger("weft")

#: between two looks around: while something moves, and while nothing does
_LOOK_S, _IDLE_LOOK_S = 0.1, 0.4
Held = dict[TopicPartition, Partition]
COUNTS = ("done", "failures", "retries", "dead_lettered", "skipped", "parked", "superseded")


class Host:
    """Runs one member until it has left for good; starts it again when only it broke."""

    def __init__(self, task: MemberTask, link: Link, welcome: Message, app: MemberApp) -> None:
        self._link = link
        self._welcome = welcome
        self._table = _table_line(task, link)
        self._app = app
        app.adopt(
            None, _led(app, link, welcome, client_id(task.run, task.index, task.host, task.port))
        )
        mine = static_id(task.name, task.index, int(welcome["seat"]))
        self._instance_id = mine if welcome["static"] else None
        self._ends = {(topic, number): end for topic, number, end in welcome["ends"]}
        #: held while orders that last change, or a run is made that obeys them
        self._ordering = threading.Lock()
        #: the run that obeys them: the next one, from before its start
        self._ordered: MemberRun | None = None
        self._paused: set[str | None] = set(welcome["paused"])
        self._results_wanted = bool(welcome["results"])
        self._results = ResultsUp(link)
        self._stream: ResultStream | None = None
        self._run: MemberRun | None = None
        self._stop_mode: StopMode | None = None
        self._why = "stopped"
        self._woken = threading.Event()
        self._parent = os.getppid()
        self._progress_at = 0.0
        #: what the driver was told last, and when it must hear of us again
        self._progress: dict[str, Any] = {}
        self._alive_at = 0.0
        #: nothing has moved since then
        self._idle = False
        self._borrowing = Borrowing(
            link.send,
            link.deliver,
            needed=any(one.budget is not None for one in app.handlers),
        )
        self._borrowing.wake = self._woken.set
        self._log = _ToDriver(link)
        by_value(pickles.dumps)  # worker processes cannot import the app either

    def run(self) -> dict[str, Any]:
        """Run until the end; returns the last message to the driver."""
        with self._signals(), self._log.installed(self._welcome["log_level"]):
            self._link.listen(self._on_message)
            bye = self._supervise()
        self._log.flush()
        return bye

    # -- the member --------------------------------------------------------------------------------

    def _supervise(self) -> dict[str, Any]:
        again_s = AGAIN_S
        fresh = not self._welcome["again"]
        while True:
            try:
                report = self._live()
                reason = report.reason
                may_restart = self._run is None or self._run.may_restart
                if self._stop_mode is not None or not may_restart:
                    return self._bye(report)
            except Exception as error:
                _log.debug("the member did not start", exc_info=True)
                bad = isinstance(error, ConfigError)
                ours = isinstance(error, WeftError)  # whose messages stand by themselves
                reason = str(error) if ours else f"{type(error).__name__}: {error}"
                if fresh:
                    return {"why": "refused" if bad else "failed", "reason": reason}
            fresh = False
            self._link.deliver({"type": "died", "reason": reason})
            # A stop ends this rest early.
            if self._woken.wait(again_s) and self._stop_mode is not None:
                return {"why": self._why}
            again_s = min(again_s * 2, AGAIN_MAX_S)

    def _live(self) -> RunReport:
        """One life of the member: from joining the group to having left it."""
        run = MemberRun(
            self._app,
            stream=None,
            instance_id=self._instance_id,
            checked=bool(self._welcome["again"]),
            table=self._table,
            on_found=self._begun,
            borrowing=self._borrowing,
        )
        self._app.adopt(MemberHandle(run, self._link), self._app.options)
        self._give_orders(run)
        run.start()
        self._run = run
        self._link.deliver({"type": "up"})
        if self._stop_mode is not None:  # it came while the run was being made
            run.stop(self._stop_mode)
        while not run.over:
            idle = self._idle and self._stop_mode is None
            self._woken.wait(self._borrowing.within_s(_IDLE_LOOK_S if idle else _LOOK_S))
            self._woken.clear()
            self._look(run)
        self._borrowing.end()
        self._results.flush()
        return run.wait()

    def _give_orders(self, run: MemberRun) -> None:
        """What is in force; what comes while it starts, and later, it is given as it comes."""
        with self._ordering:
            self._ordered = run
            for topic in self._paused:
                run.pause(topic)
            self._stream = None
            if self._results_wanted:
                self._follow(run)

    def _follow(self, run: MemberRun) -> None:
        self._stream = run.open_results()
        self._results.follow(self._stream)

    def _begun(self, found: Mapping[TopicPartition, Found]) -> None:
        rows = places_at_start(found, self._app.options.on_offset_lost)
        self._link.deliver({"type": "begun", "partitions": rows})

    def _bye(self, report: RunReport) -> dict[str, Any]:
        run = self._run
        assert run is not None
        self._report_progress(run)
        error = None if report.error is None else list(report.error)
        why = self._why if report.exit_code == 0 else "failed"
        return {"why": why, "code": report.exit_code, "reason": report.reason, "error": error}

    # -- looking around ----------------------------------------------------------------------------

    def _look(self, run: MemberRun) -> None:
        if self._stop_mode is None or self._why == "stopped":
            self._look_for_orphanage()
        self._borrowing.look()
        self._log.flush()
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_EVERY_S
            self._report_progress(run)

    def _look_for_orphanage(self) -> None:
        """The driver is gone: finish soon, commit, leave."""
        if self._link.gone.is_set():
            why = "the driver is gone"
        elif os.getppid() != self._parent:
            why = "the executor is gone"
        else:
            return
        self._leave(why)

    def _report_progress(self, run: MemberRun) -> None:
        member = run.member
        if member is None:
            return
        try:
            known = member.door.call(lambda engine, _: self._known(engine, dict(member.partitions)))
        except InternalError:  # the member ends by itself
            return
        known["parked"] = sum(one.parked for one in list(member.partitions.values()))
        self._idle, now = known == self._progress, time.monotonic()
        if self._idle and now < self._alive_at:
            return
        self._progress, self._alive_at = known, now + ALIVE_EVERY_S
        self._link.send({"type": "progress", **known})

    def _known(self, engine: Engine, held: Held) -> dict[str, Any]:
        """Inside the door, so that counts and places are of one moment."""
        handlers = engine.handlers
        return {
            "counts": {name: sum(getattr(one, name) for one in handlers) for name in COUNTS},
            "finished": self._finished(held),
            "places": [[*where, place_of(partition)] for where, partition in held.items()],
        }

    def _finished(self, held: Held) -> list[list[Any]]:
        """What is held here and at its end of the start; False: but for parked."""
        return [
            [*where, held[where].frontier >= end]
            for where, end in self._ends.items()
            if where in held and passed(held[where], end)
        ]

    # -- the driver's messages ---------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        kind = message["type"]
        if kind == "stop":
            self._stop(message["mode"], "stopped")
        elif kind == "leave":
            self._leave(str(message.get("why", "superseded")))
        elif kind == "pause":
            self._pause(message["topic"], on=bool(message["on"]))
        elif kind == "snapshot":
            self._send_snapshot(message["id"])
        elif kind == "question":
            self._answer(message)
        elif kind == "results":
            self._want_results(on=bool(message["on"]))
        elif kind == "table" and self._table is not None:
            self._table.hear(message)
        elif kind == "lent":
            self._borrowing.lent(message)
        elif kind == "taken":
            self._results.acknowledged(int(message["sequence"]))
        elif kind == "welcome again":
            if not message["again"] and self._run is not None and not self._run.over:
                self._link.send({"type": "up"})  # it was lost with the line
            self._results.again()
            self._borrowing.again()
            if self._table is not None:
                self._table.again()
            self._catch_up(message)

    def _stop(self, mode: StopMode, why: str) -> None:
        self._stop_mode, self._why = mode, why
        if self._run is not None:
            self._run.stop(mode)
        self._woken.set()

    def _catch_up(self, orders: Message) -> None:
        """What was ordered while there was no line."""
        paused: set[str | None] = set(orders["paused"])
        for topic in self._paused - paused:
            self._pause(topic, on=False)
        for topic in paused - self._paused:
            self._pause(topic, on=True)
        self._want_results(on=bool(orders["results"]))
        if orders["stop"]:
            self._stop(orders["stop"], "stopped")
        elif orders["leave"]:  # another member has its place
            self._leave("superseded")

    def _leave(self, why: str) -> None:
        if self._run is not None:
            self._run.hurry(ORPHAN_DRAIN_S)
        self._stop("in_flight", why)

    def _pause(self, topic: str | None, *, on: bool) -> None:
        with self._ordering:
            if on:
                self._paused.add(topic)
            elif topic is None:
                self._paused.clear()
            else:
                self._paused.discard(topic)
            if self._ordered is not None:
                (self._ordered.pause if on else self._ordered.resume)(topic)

    def _send_snapshot(self, number: int) -> None:
        run = self._run
        if run is None or run.over:
            return
        shot, latencies = run.snapshot(), run.latencies()
        self._link.send({"type": "snapshot", "id": number, "shot": shot, "latencies": latencies})

    def _answer(self, question: Message) -> None:
        """Answer a query about single records or a partition, from the driver."""
        run = self._run
        known: Any = None
        if question["ask"] == "ended":
            known = has_ended(int(question["pid"]))
        elif run is not None and not run.over:
            known = answered(RunSource(run), question)
        self._link.send({"type": "answer", "id": question["id"], "answer": known})

    def _want_results(self, *, on: bool) -> None:
        with self._ordering:
            self._results_wanted = on
            if not on and self._stream is not None:
                self._stream.close()
            elif on and self._ordered is not None and (self._stream is None or self._stream.closed):
                self._follow(self._ordered)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM to this process alone: finish what runs and leave; the driver brings another."""

        def terminated(_number: int, _frame: FrameType | None) -> None:
            # Only a thread: a signal handler may interrupt one that holds a lock.
            stopping = ("in_flight", "terminated")
            threading.Thread(target=self._stop, args=stopping, daemon=True).start()

        before = signal.signal(signal.SIGTERM, terminated)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _table_line(task: MemberTask, link: Link) -> TableLine | None:
    """The member's way to the table, if its results go into one."""
    if task.table is None:
        return None
    from weft.spark.table.line import TableLine  # needs PyArrow

    return TableLine(task.table, link.send, link.gone)


def _led(app: MemberApp, link: Link, welcome: Message, client: str) -> AppOptions:
    """The app's options in a member; its callbacks report to the driver, which calls the user's."""

    def reporter(name: str) -> Any:
        def report_to(items: list[Any]) -> None:
            link.deliver({"type": "event", "name": name, "items": [list(item) for item in items]})

        return report_to

    known = {name: reporter(name) for name in REPORTED if name in welcome["callbacks"]}
    return replace(app.options, kafka=member_kafka(app.options.kafka, client), **known)


def _plain(value: Any) -> Any:
    """A log line's value as JSON has it: numbers stay numbers."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:LOG_LINE_CHARS_MAX]


class _ToDriver(logging.Handler):
    """Weft's log lines of this process, written by the driver."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        # Log calls may come from inside the door, where nothing may block: lines wait here.
        self._lines: deque[dict[str, Any]] = deque()
        #: lines that found too many waiting, since the last one that was sent
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) >= LOG_LINES_MAX:
            self._left_out += 1
            return
        fields = getattr(record, "weft", None)
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._lines.append(
            {
                "type": "log",
                "level": record.levelno,
                "name": record.name,
                "text": text[:LOG_LINE_CHARS_MAX],
                "fields": {name: _plain(value) for name, value in (fields or {}).items()},
            }
        )

    def flush(self) -> None:
        """Send the waiting lines."""
        while self._lines and self._link.send(self._lines[0]):
            self._lines.popleft()
        if self._left_out and not self._lines:
            count, self._left_out = self._left_out, 0
            event(_log, "warning", "log lines of this member were left out", count=count)

    @contextmanager
    def installed(self, level: int) -> Iterator[None]:
        """Weft's logger sends to the driver instead of the executor's own log."""
        before = _log.level, _log.propagate
        _log.setLevel(level)
        _log.propagate = False
        _log.addHandler(self)
        try:
            yield
        finally:
            _log.removeHandler(self)
            _log.setLevel(before[0])
            _log.propagate = before[1]
