"""One run of an app as a fleet on Spark: the handle on the driver."""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.engine import StopMode
from weft.errors import ConfigError, FatalError
from weft.runtime.as_handled import as_handled
from weft.runtime.logs import event
from weft.runtime.reports import ResultStream
from weft.spark.fleet import limits
from weft.spark.fleet.aggregate import merged
from weft.spark.fleet.drained import GroupDrain
from weft.spark.fleet.jobs import MemberJobs
from weft.spark.fleet.relay import Relay
from weft.spark.fleet.roster import Ears, Orders, Roster
from weft.spark.fleet.server import Server
from weft.spark.fleet.session import FleetSession, one_line, open_session
from weft.spark.fleet.settings import FleetSettings
from weft.spark.fleet.shipping import packed, sources_zip
from weft.spark.fleet.signals import FleetSignals
from weft.spark.fleet.task import MemberTask
from weft.spark.fleet.upfront import Upfront
from weft.spark.fleet.wire import Message
from weft.types import ErrorInfo, RunReport

if TYPE_CHECKING:
    from weft.app import App

_log = logging.getLogger("weft")

_LOOK_S = 0.1
_DRAINED_LOOK_S = 0.3


class FleetRun:
    """The handle of a fleet: `stop()`, `wait()`, `snapshot()`, as of a run in one process."""

    def __init__(
        self, app: App, settings: FleetSettings, *, until: str | None, stream: ResultStream | None
    ) -> None:
        self._options = app.options
        self._settings = settings
        self._until = until
        self._run_id = secrets.token_hex(4)
        self._secret = secrets.token_bytes(32)
        self._upfront = Upfront(app)
        self._app_bytes = packed(app)
        self._sources = sources_zip(app)
        self._drain: GroupDrain | None = None
        self._session: FleetSession | None = None
        self._server: Server | None = None
        self._jobs: MemberJobs | None = None
        self._relay = Relay(self._options, stream, self._want_results, as_handled(app.handlers))
        orders = Orders(
            static=self._upfront.static,
            ends=[],
            callbacks=self._relay.wanted(),
            log_level=_log.getEffectiveLevel(),
        )
        ears = Ears(self._fatal_from, self._asked, self._relay.take, self._relay.event)
        self._roster = Roster(settings.members, orders, ears)
        #: (exit code, reason, error) of what ends the run before its time
        self._fatal: tuple[int, str, list[str] | None] | None = None
        self._stopped_at: float | None = None
        self._drained = False
        self._parked_at_drain = 0
        self._starting = True
        self._signals = FleetSignals(self.stop, lambda: self._jobs is not None)
        self._began = time.monotonic()
        self._report: RunReport | None = None
        self._over = threading.Event()

    # -- starting ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the cluster, start the members, and wait until all are in their group."""
        self._began = time.monotonic()
        try:
            topics = self._upfront.check()
            if self._until == "drained":
                self._drain = self._upfront.drain(topics)
                self._roster.orders.ends = self._drain.ends()
            self._session = open_session(self._settings, self._options.group)
            self._signals.reinstall()
            self._launch(self._session, topics)
        except BaseException:
            self._clean_up()
            self._over.set()
            raise
        threading.Thread(target=self._watch, name="weft-watch", daemon=True).start()
        try:
            self._await_members()
        except BaseException:
            self.stop("now")
            self._over.wait(self._options.drain_timeout_s + limits.LEAVE_S)
            raise

    def _launch(self, session: FleetSession, topics: list[str]) -> None:
        bind, host, port = session.control_address(self._settings.conf)
        self._server = Server(bind, port, self._secret, self._roster)
        session.context.addPyFile(str(self._sources))
        group = f"weft-{self._run_id}"
        self._jobs = MemberJobs(session.context, group, self._describe, self._next_task)
        event(
            _log,
            "info",
            "starting fleet",
            members=self._settings.members,
            master=session.master,
            run=self._run_id,
            control=f"{host}:{self._server.port}",
            ui=session.ui,
            topics=",".join(topics),
            **self._options.shown(),
        )
        self._relay.begin()
        self._jobs.submit(
            [
                MemberTask(
                    slot.index,
                    0,
                    self._upfront.instance_name(self._run_id),
                    host,
                    self._server.port,
                    self._secret,
                    self._app_bytes,
                )
                for slot in self._roster.slots
            ]
        )

    def _describe(self, task: MemberTask) -> str:
        """The job's line in Spark's UI."""
        again = f", submitted again ({task.generation})" if task.generation else ""
        return f"weft {self._options.group}: member {task.index} of {self._settings.members}{again}"

    def _await_members(self) -> None:
        """Until all are up. Raises what stops them before that, in one line."""
        roster, members = self._roster, self._settings.members
        self._wait_until(lambda: roster.seen() == members, self._settings.wait_s)
        seen = roster.seen()
        if not self._ending and seen < members:
            raise ConfigError(self._too_few(seen))
        self._wait_until(roster.all_up, limits.UP_S)
        self._starting = False
        if self._fatal is not None:
            code, reason, _ = self._fatal
            raise (ConfigError if code == 2 else FatalError)(reason)

    def _too_few(self, seen: int) -> str:
        assert self._session is not None
        assert self._server is not None
        return (
            f"{seen} of {self._settings.members} members have dialled in after "
            f"{self._settings.wait_s:.0f} s: the cluster at {self._session.master} has free slots "
            "for only so many tasks, or its executors cannot reach the driver at port "
            f"{self._server.port}: give fewer members=, more executors or cores, or set conf "
            "weft.control.host and weft.control.port; weft.control.wait_s waits longer"
        )

    def _wait_until(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait for it, for the end of the run, or for the time to be over."""
        deadline = time.monotonic() + seconds
        while not true() and not self._ending and time.monotonic() < deadline:
            # In slices: Python runs signal handlers between two waits, not inside a long one.
            with self._roster.changed:
                self._roster.changed.wait(_LOOK_S)

    @property
    def _ending(self) -> bool:
        return self._fatal is not None or self._stopped_at is not None

    # -- Spark's jobs ------------------------------------------------------------------------------

    def _next_task(self, task: MemberTask, error: BaseException | None) -> MemberTask | None:
        """A member's job has ended: what to submit in its place."""
        slot = self._roster.slots[task.index]
        if slot.ended or self._stopped_at is not None:
            return None
        if self._session is None or self._session.context._jsc is None:  # noqa: SLF001  # a stopped context has none
            self._fatal_from(1, "the Spark session was stopped while the fleet ran", None)
            return None
        if error is not None and not slot.seen:
            reason = f"Spark could not run member {task.index}: {one_line(error)}"
            self._fatal_from(2, reason, None)
            return None
        if error is not None:
            event(_log, "warning", "job failed", member=task.index, reason=one_line(error))
        with self._roster.changed:
            slot.generation = task.generation + 1
        return replace(task, generation=slot.generation)

    # -- what members say --------------------------------------------------------------------------

    def _fatal_from(self, code: int, reason: str, error: list[str] | None) -> None:
        if self._fatal is None:
            self._fatal = (code, reason, error)
            if not self._starting:
                event(_log, "error", "stopping", reason=reason)
            self.stop("in_flight")

    def _want_results(self, on: bool) -> None:  # noqa: FBT001  # as Relay calls it
        self._roster.orders.results = on
        self._roster.tell_all({"type": "results", "on": on})

    def _asked(self, message: Message) -> None:
        """A handler called app.stop(), app.pause() or app.resume() in its member."""
        what = message["what"]
        if what == "stop":
            self.stop(message["mode"])
        elif what == "pause":
            self.pause(message["topic"])
        elif what == "resume":
            self.resume(message["topic"])

    # -- watching ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        assert self._jobs is not None
        looked_at = 0.0
        while not self._left():
            now = time.monotonic()
            if self._drain is not None and self._stopped_at is None:
                if now - looked_at > _DRAINED_LOOK_S:
                    looked_at = now
                    self._look_at_drain(self._drain)
            elif self._stopped_at is not None and now > self._patience_ends_at():
                break
            with self._roster.changed:
                self._roster.changed.wait(_LOOK_S)
        self._finish(self._jobs)

    def _left(self) -> bool:
        """A stop was asked for and everybody has left, or never came."""
        if self._stopped_at is None:
            return False
        now = time.monotonic()
        return all(
            slot.ended
            or (slot.wire is None and now - (slot.silent_since or 0.0) > limits.DRIVER_GONE_S + 1.0)
            for slot in self._roster.slots
        )

    def _patience_ends_at(self) -> float:
        assert self._stopped_at is not None
        return self._stopped_at + self._options.drain_timeout_s + limits.LEAVE_S

    def _look_at_drain(self, drain: GroupDrain) -> None:
        if self._roster.all_up() and drain.over(self._roster.finished()):
            self._parked_at_drain = self._roster.parked()
            self._drained = True
            self.stop("in_flight")

    def _finish(self, jobs: MemberJobs) -> None:
        stayed = [slot.index for slot in self._roster.slots if not slot.ended and slot.wire]
        if stayed and self._fatal is None:
            late = ", ".join(map(str, stayed))
            self._fatal = (1, f"member {late} did not leave in time and was killed", None)
        if stayed or not all(slot.ended for slot in self._roster.slots):
            jobs.cancel()
        jobs.join(10.0)
        self._confirm_drain()
        self._clean_up()
        self._relay.end()
        self._report = self._make_report()
        event(
            _log,
            "info",
            "ended",
            exit_code=self._report.exit_code,
            reason=self._report.reason,
            done=self._report.done,
            seconds=round(self._report.seconds, 3),
        )
        self._over.set()

    def _confirm_drain(self) -> None:
        if self._drain is None or not self._drained or self._fatal is not None:
            return
        parked = [where for where, at_end in self._roster.finished().items() if not at_end]
        missing = self._drain.missing(parked) if not self._parked_at_drain else []
        if missing:
            names = ", ".join(f"{topic}[{number}]" for topic, number in missing[:5])
            reason = f"a member was killed while it left: {names} not committed to the end"
            self._fatal = (1, reason, None)

    def _clean_up(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._session is not None:
            _forget_sources(self._sources)
            self._session.close()
        shutil.rmtree(self._sources.parent, ignore_errors=True)
        self._upfront.close()

    def _make_report(self) -> RunReport:
        code, reason = self._outcome()
        error = None if self._fatal is None else self._fatal[2]
        total = self._roster.total
        return RunReport(
            exit_code=code,
            reason=reason,
            done=total("done"),
            failed_attempts=total("failures"),
            retried=total("retries"),
            dead_lettered=total("dead_lettered"),
            skipped=total("skipped"),
            parked=total("parked"),
            superseded=total("superseded"),
            seconds=time.monotonic() - self._began,
            error=None if not error else ErrorInfo(*error),
        )

    def _outcome(self) -> tuple[int, str]:
        if self._signals.exit_code is not None:
            return self._signals.exit_code, "stopped by a second signal"
        if self._fatal is not None:
            return self._fatal[0], self._fatal[1]
        if self._drained and self._parked_at_drain:
            return 3, "drained, but parked records remain"
        return (0, "drained") if self._drained else (0, "stopped")

    # -- control -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """The run has ended."""
        return self._over.is_set()

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run: see `App.stop`."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        self._roster.orders.stop = mode
        self._roster.tell_all({"type": "stop", "mode": mode})

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end and its report; TimeoutError when it did not come in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._over.wait(_LOOK_S):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the app has not ended within {timeout_s} s")
        assert self._report is not None
        return self._report

    def pause(self, topic: str | None) -> None:
        """See `App.pause`."""
        self._roster.orders.paused.add(topic)
        self._roster.tell_all({"type": "pause", "topic": topic, "on": True})

    def resume(self, topic: str | None) -> None:
        """See `App.resume`."""
        paused = self._roster.orders.paused
        paused.discard(topic)
        if topic is None:
            paused.clear()
        self._roster.tell_all({"type": "pause", "topic": topic, "on": False})

    def snapshot(self) -> dict[str, Any]:
        """See `App.snapshot`; it also has a line for each member."""
        shots = {} if self.over else self._roster.shots()
        members = [slot.facts() for slot in self._roster.slots]
        return merged(self._state(), shots, members)

    def _state(self) -> str:
        if self.over:
            return "failed" if self._fatal is not None else "ended"
        if self._ending:
            return "stopping"
        return "starting" if self._starting else "running"

    def open_results(self) -> ResultStream:
        """A stream of the results from now on."""
        return self._relay.open()

    def install_signals(self) -> None:
        """SIGINT and SIGTERM stop the run; nothing off the main thread."""
        self._signals.install()

    def restore_signals(self) -> None:
        """Put the handlers of before back."""
        self._signals.restore()


def _forget_sources(path: Path) -> None:
    """Spark puts what it ships on the driver's own path too, where it has no business."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(path.name)]
