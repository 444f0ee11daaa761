"""A member inside its Spark task: the same runtime as in one process, directed by the driver."""

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
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from perkey.app_options import AppOptions, Hosted
from perkey.core.commits import Found
from perkey.core.engine import Engine
from perkey.core.states import InternalError
from perkey.errors import ConfigError, PerkeyError
from perkey.kafka.connect import Connection, RealConnection
from perkey.kafka.ports import AdminPort
from perkey.runtime.calls.processes.protocol import by_value
from perkey.runtime.logs import event
from perkey.runtime.member.member_config import MemberConfig
from perkey.runtime.run.drain import passed
from perkey.runtime.run.outside import RunSource
from perkey.runtime.run.preflight import check_cluster
from perkey.runtime.run.run import Run
from perkey.spark.fleet.callbacks import REPORTED, no_results
from perkey.spark.fleet.limits import (
    AGAIN_MAX_S,
    AGAIN_S,
    ALIVE_EVERY_S,
    LOG_LINE_CHARS_MAX,
    LOG_LINES_MAX,
    ORPHAN_DRAIN_S,
    PROGRESS_EVERY_S,
)
from perkey.spark.fleet.link import DriverLink
from perkey.spark.fleet.membership import (
    MemberTask,
    client_id,
    has_ended,
    member_kafka,
    static_id,
)
from perkey.spark.fleet.outside import answered
from perkey.spark.fleet.shipping import dumps
from perkey.spark.fleet.slots import place_of, places_at_start
from perkey.spark.fleet.wire import Message
from perkey.types import RunReport, StopMode, TopicPartition

if TYPE_CHECKING:
    from perkey.spark.table.line import TableLine

_log = logging.getLogger("perkey")

#: interval of checks: while records move, and while nothing does
_LOOK_S, _IDLE_LOOK_S = 0.1, 0.4
COUNTS = ("done", "failures", "retries", "dead_lettered", "skipped", "parked", "superseded")


class MemberRun(Run):
    """The runtime of one process, with the additions that its host needs."""

    def __init__(
        self,
        app: Hosted,
        *,
        instance_id: str | None,
        checked: bool,
        table: TableLine | None,
        link: DriverLink,
    ) -> None:
        """`instance_id` is the member's static id in the group, None for a dynamic one.

        `checked`: an earlier run of this member has checked the cluster.
        `table`: the connection to the table for results.
        """
        self._link = link
        self.instance_id = instance_id
        self._checked = checked
        self._table = table
        super().__init__(app, until=None, stream=None)
        self._outside.muted = True  # the driver serves all members

    def _connect(self) -> Connection:
        connection = super()._connect()
        if self._table is None:
            return connection
        from perkey.spark.table.transactions import TableConnection, TableTransactor  # need PyArrow

        assert isinstance(connection, RealConnection)
        self.transactor = TableTransactor
        return TableConnection(connection.settings, self._table)

    def _check(self, admin: AdminPort) -> list[str]:
        # A restart takes half a second, and a new check would take a part of that.
        if self._checked:
            return self._routes.topics
        handlers = self._handlers
        if self._table is not None:
            from perkey.spark.table.sink import without_table

            handlers = tuple(without_table(handlers))
        return check_cluster(self._connection, admin, self._routes, handlers, self._options)

    def _member_config(self) -> MemberConfig:
        config = super()._member_config()
        also = config.on_found

        def found(committed: Mapping[TopicPartition, Found]) -> None:
            also(committed)
            rows = places_at_start(committed, self._options.on_offset_lost)
            self._link.deliver({"type": "begun", "partitions": rows})

        return replace(config, on_found=found)

    @property
    def may_restart(self) -> bool:
        """Whether a new member may not have the failure that ended this one."""
        return self.member is None or self.member.may_restart

    def hurry(self, drain_timeout_s: float) -> None:
        """From now on a stop may take no longer than this."""
        if self.member is not None:
            config = self.member.config
            config.drain_timeout_s = min(config.drain_timeout_s, drain_timeout_s)

    def latencies(self) -> dict[str, list[float]]:
        """Samples of the calls' durations in seconds, by handler."""
        return {plan.spec.name: plan.latency.samples() for plan in self._plans}


class MemberApp(Hosted, Protocol):
    """The app inside a member."""

    def adopt(self, run: Any, options: AppOptions) -> None:
        """Set the run that executes the app, and these options."""


class MemberHandle:
    """The target of a handler's `app.stop()`, `app.pause()` and the like inside a member.

    Requests that concern the whole fleet go to the driver.
    """

    def __init__(self, run: Run, link: DriverLink) -> None:
        self._run, self._link = run, link

    @property
    def over(self) -> bool:
        """Whether the member has ended."""
        return self._run.over

    def start(self) -> None:
        """A member is started by its task."""
        raise ConfigError("the app runs already, as a member of a fleet")

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end of this member."""
        return self._run.wait(timeout_s)

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the whole fleet."""
        self._link.deliver({"type": "ask", "what": "stop", "mode": mode})

    def pause(self, topic: str | None) -> None:
        """Pause on all members."""
        self._link.deliver({"type": "ask", "what": "pause", "topic": topic})

    def resume(self, topic: str | None) -> None:
        """Resume on all members."""
        self._link.deliver({"type": "ask", "what": "resume", "topic": topic})

    def snapshot(self) -> dict[str, Any]:
        """The current state of this member."""
        return self._run.snapshot()

    def open_results(self) -> NoReturn:
        """A member has no reader."""
        raise no_results("app.results()")

    def install_signals(self) -> None:
        """The task handles signals."""

    def restore_signals(self) -> None:
        """The task handles signals."""


class Host:
    """Runs one member until it has left for good; restarts it if only the member broke."""

    def __init__(
        self, task: MemberTask, link: DriverLink, welcome: Message, app: MemberApp
    ) -> None:
        self._link = link
        self._welcome = welcome
        self._table: TableLine | None = None
        if task.table is not None:
            from perkey.spark.table import line  # needs PyArrow

            self._table = line.TableLine(task.table, link.send, link.gone)
        self._app = app
        client = client_id(task.run, task.index, task.host, task.port)
        # Callbacks report to the driver, which calls the user's.
        known: dict[str, Any] = {
            name: partial(self._report, name) for name in REPORTED if name in welcome["callbacks"]
        }
        kafka = member_kafka(app.options.kafka, client)
        app.adopt(None, replace(app.options, kafka=kafka, **known))
        mine = static_id(task.name, task.index, int(welcome["suffix"]))
        self._instance_id = mine if welcome["static"] else None
        self._ends = {(topic, number): end for topic, number, end in welcome["ends"]}
        #: held while lasting orders change, and while a run that obeys them is created
        self._ordering = threading.Lock()
        #: the run that obeys them: the next one, from before its start, when `_run` is the last one
        self._ordered: MemberRun | None = None
        self._paused: set[str | None] = set(welcome["paused"])
        self._run: MemberRun | None = None
        self._stop_mode: StopMode | None = None
        self._why = "stopped"
        self._woken = threading.Event()
        self._parent = os.getppid()
        self._progress_at = 0.0
        #: the last report to the driver, and when the next one is due at the latest
        self._progress: dict[str, Any] = {}
        self._alive_at = 0.0
        #: nothing has changed since that report
        self._idle = False
        self._log = ToDriver(link)
        by_value(dumps)  # worker processes cannot import the app either

    def _report(self, name: str, items: list[Any]) -> None:
        self._link.deliver({"type": "event", "name": name, "items": [list(one) for one in items]})

    def run(self) -> dict[str, Any]:
        """Run until the end; returns the last message to the driver."""

        def terminated(_number: int, _frame: FrameType | None) -> None:
            # This process only: finish running calls and leave; the driver starts another one.
            # Only a thread: a signal handler may interrupt one that holds a lock.
            stopping = ("in_flight", "terminated")
            threading.Thread(target=self._stop, args=stopping, daemon=True).start()

        before = signal.signal(signal.SIGTERM, terminated)
        try:
            with self._log.installed(self._welcome["log_level"]):
                self._link.listen(self._on_message)
                bye = self._supervise()
        finally:
            signal.signal(signal.SIGTERM, before)
        self._log.flush()
        return bye

    # -- the member --------------------------------------------------------------------------------

    def _supervise(self) -> dict[str, Any]:
        again_s = AGAIN_S
        fresh = not self._welcome["again"]
        while True:
            try:
                report = self._live()
                assert self._run is not None
                reason = report.reason
                if self._stop_mode is not None or not self._run.may_restart:
                    self._report_progress(self._run)
                    code, error = report.exit_code, report.error and list(report.error)
                    why = self._why if code == 0 else "failed"
                    return {"why": why, "code": code, "reason": reason, "error": error}
            except Exception as error:
                _log.debug("the member did not start", exc_info=True)
                bad = isinstance(error, ConfigError)
                ours = isinstance(error, PerkeyError)  # its message needs no type name
                reason = str(error) if ours else f"{type(error).__name__}: {error}"
                if fresh:
                    return {"why": "refused" if bad else "failed", "reason": reason}
            fresh = False
            self._link.deliver({"type": "died", "reason": reason})
            # A stop ends this rest early.
            if self._woken.wait(again_s) or self._stop_mode is not None:
                return {"why": self._why}
            again_s = min(again_s * 2, AGAIN_MAX_S)

    def _live(self) -> RunReport:
        """One run of the member: from joining the group to having left it."""
        run = MemberRun(
            self._app,
            instance_id=self._instance_id,
            checked=bool(self._welcome["again"]),
            table=self._table,
            link=self._link,
        )
        self._app.adopt(MemberHandle(run, self._link), self._app.options)
        self._give_orders(run)
        run.start()
        self._run = run
        self._link.deliver({"type": "up"})
        if self._stop_mode is not None:  # requested while the run was being created
            run.stop(self._stop_mode)
        while not run.over:
            idle = self._idle and self._stop_mode is None
            self._woken.wait(_IDLE_LOOK_S if idle else _LOOK_S)
            self._woken.clear()
            self._look(run)
        return run.wait()

    def _give_orders(self, run: MemberRun) -> None:
        """Apply the orders in force; later ones are applied as they arrive."""
        with self._ordering:
            self._ordered = run
            for topic in self._paused:
                run.pause(topic)

    # -- checks ------------------------------------------------------------------------------------

    def _look(self, run: MemberRun) -> None:
        if self._stop_mode is None or self._why == "stopped":
            # Without its driver or executor it finishes soon, commits and leaves.
            if self._link.gone.is_set():
                self._leave("the driver is gone")
            elif os.getppid() != self._parent:
                self._leave("the executor is gone")
        self._log.flush()
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + PROGRESS_EVERY_S
            self._report_progress(run)

    def _report_progress(self, run: MemberRun) -> None:
        member = run.member
        if member is None:
            return

        def state(engine: Engine, _now: float) -> dict[str, Any]:
            """Inside the door, so that counts and places are of the same moment."""
            held = dict(member.partitions)
            return {
                "counts": {name: sum(getattr(h, name) for h in engine.handlers) for name in COUNTS},
                # Finished partitions that it owns; False: except for parked records.
                "finished": [
                    [*where, held[where].frontier >= end]
                    for where, end in self._ends.items()
                    if where in held and passed(held[where], end)
                ],
                "places": [[*where, place_of(partition)] for where, partition in held.items()],
            }

        try:
            known = member.door.call(state)
        except InternalError:  # the member ends by itself
            return
        known["parked"] = sum(one.parked for one in list(member.partitions.values()))
        self._idle, now = known == self._progress, time.monotonic()
        if self._idle and now < self._alive_at:
            return
        self._progress, self._alive_at = known, now + ALIVE_EVERY_S
        self._link.send({"type": "progress", **known})

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
            run = self._run
            if run is not None and not run.over:
                more = {"shot": run.snapshot(), "latencies": run.latencies()}
                self._link.send({"type": "snapshot", "id": message["id"], **more})
        elif kind == "question":
            self._answer(message)
        elif kind == "table" and self._table is not None:
            self._table.hear(message)
        elif kind == "welcome again":
            if not message["again"] and self._run is not None and not self._run.over:
                self._link.send({"type": "up"})  # the first one was lost with the connection
            if self._table is not None:
                self._table.again()
            # Apply orders that were given while there was no connection.
            paused: set[str | None] = set(message["paused"])
            for topic in self._paused - paused:
                self._pause(topic, on=False)
            for topic in paused - self._paused:
                self._pause(topic, on=True)
            if message["stop"]:
                self._stop(message["stop"], "stopped")
            elif message["leave"]:  # another member has its place
                self._leave("superseded")

    def _stop(self, mode: StopMode, why: str) -> None:
        self._stop_mode, self._why = mode, why
        if self._run is not None:
            self._run.stop(mode)
        self._woken.set()

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

    def _answer(self, question: Message) -> None:
        """Answer the driver's query about single records or a partition."""
        run = self._run
        known: Any = None
        if question["ask"] == "ended":
            known = has_ended(int(question["pid"]))
        elif run is not None and not run.over:
            known = answered(RunSource(run), question)
        self._link.send({"type": "answer", "id": question["id"], "answer": known})


class ToDriver(logging.Handler):
    """Sends Perkey's log lines of this process to the driver, which writes them."""

    def __init__(self, link: DriverLink, lines_max: int = LOG_LINES_MAX) -> None:
        super().__init__()
        self._link, self._lines_max = link, lines_max
        # Log calls may come from inside the door, where nothing may block: lines wait here.
        self._lines: deque[dict[str, Any]] = deque()
        #: dropped lines since the last one that was sent
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line for the next flush; above the limit, count it as left out."""
        if len(self._lines) >= self._lines_max:
            self._left_out += 1
            return
        fields = getattr(record, "perkey", None)
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._lines.append(
            {
                "type": "log",
                "level": record.levelno,
                "name": record.name,
                "text": text[:LOG_LINE_CHARS_MAX],
                "fields": {  # as JSON values: numbers stay numbers
                    name: one
                    if one is None or isinstance(one, bool | int | float)
                    else str(one)[:LOG_LINE_CHARS_MAX]
                    for name, one in (fields or {}).items()
                },
            }
        )

    def flush(self) -> None:
        """Send the waiting lines."""
        while self._lines and self._link.send(self._lines[0]):
            self._lines.popleft()
        if self._left_out and not self._lines:
            count, self._left_out = self._left_out, 0
            event("warning", "log lines of this member were left out", count=count)

    @contextmanager
    def installed(self, level: int) -> Iterator[None]:
        """Send Perkey's log to the driver instead of the executor's own log."""
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
