"""One run of an app as a fleet on Spark: the handle on the driver."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from perkey import guard
from perkey.errors import ConfigError, FatalError
from perkey.routing import Routes
from perkey.runtime.logs import event
from perkey.runtime.run.exits import StopSignals
from perkey.runtime.run.outside import Outside
from perkey.runtime.run.run_snapshot import about_run
from perkey.spark.fleet import limits
from perkey.spark.fleet.aggregate import merged
from perkey.spark.fleet.callbacks import FleetCallbacks, no_results
from perkey.spark.fleet.dead_members import DeadMembers
from perkey.spark.fleet.ending import Ending, GroupDrain
from perkey.spark.fleet.lookout import Lookout
from perkey.spark.fleet.membership import MemberTask, instance_name
from perkey.spark.fleet.outside import FleetSource
from perkey.spark.fleet.roster import Orders, Receivers, Roster
from perkey.spark.fleet.server import Server
from perkey.spark.fleet.session import FleetSession, MemberJobs, one_line, open_session
from perkey.spark.fleet.settings import FleetSettings
from perkey.spark.fleet.shipping import forget, packed, sources_zip
from perkey.spark.fleet.upfront import Upfront
from perkey.spark.fleet.wire import Message
from perkey.spark.table.committer import served
from perkey.spark.table.sink import with_table
from perkey.types import RunReport, StopMode

if TYPE_CHECKING:
    from perkey.app_options import Hosted
    from perkey.spark.table.committer import TableCommitter

_log = logging.getLogger("perkey")

_LOOK_S = 0.1
_DRAINED_LOOK_S = 0.3
_TROUBLE_LOOK_S = 0.5


class FleetRun:
    """The handle of a fleet: `stop()`, `wait()`, `snapshot()`, as of a run in one process."""

    def __init__(self, app: Hosted, settings: FleetSettings, *, until: str | None) -> None:
        self._options = app.options
        self._settings = settings
        if settings.sink is not None:
            app = with_table(app)
        self._until = until
        self._run_id = secrets.token_hex(4)
        self._secret = secrets.token_bytes(32)
        self._upfront = Upfront(app)
        self._app_bytes = packed(app)
        self._sources = sources_zip(app, settings.data)
        self._drain: GroupDrain | None = None
        self._session: FleetSession | None = None
        self._server: Server | None = None
        self._jobs: MemberJobs | None = None
        self._dead: DeadMembers | None = None
        self._callbacks = FleetCallbacks(self._options)
        orders = Orders(
            static=self._upfront.static,
            ends=[],
            callbacks=self._callbacks.wanted(),
            log_level=_log.getEffectiveLevel(),
        )
        self._receivers = Receivers(self._fatal_from, self._asked, self._callbacks.event)
        self._roster = Roster(settings.members, orders, self._receivers)
        self._committer: TableCommitter | None = None
        self._lookout: Lookout | None = None
        self._ending = Ending()
        self._stopped_at: float | None = None
        self._starting = True
        self._hope_until = 0.0
        self._signals = StopSignals(self.stop, lambda: self._jobs is not None)
        self._report: RunReport | None = None
        self._over = threading.Event()
        self._about = about_run(self._options.group, f"fleet-{self._run_id}")
        source = FleetSource(self.snapshot, self._roster, self.stop)
        self._outside = Outside(self._options, source, Routes(app.handlers))

    # -- starting ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Check the cluster, start the members, and wait until all are in their group."""
        self._began = time.monotonic()
        try:
            if self._settings.sink is not None:
                self._settings.sink.check()
            topics = self._upfront.check()
            if self._until == "drained":
                self._drain = self._upfront.drain(topics)
                self._roster.orders.ends = self._drain.ends()
            if self._upfront.static:
                self._dead = self._upfront.dead_members(self._run_id)
                self._dead.look()
            self._outside.serve(self._upfront.connection)
            self._session = open_session(self._settings, self._options.group)
            self._signals.reinstall()
            self._launch(self._session, topics)
        except BaseException:
            self._clean_up()
            self._over.set()
            raise
        guard.thread("perkey-watch", self._watch).start()
        try:
            self._await_members()
        except BaseException:
            self.stop("now")
            self._over.wait(self._options.drain_timeout_s + limits.LEAVE_S)
            raise

    def _launch(self, session: FleetSession, topics: list[str]) -> None:
        sink, group = self._settings.sink, self._options.group
        table = None
        if sink is not None:
            table, self._committer = served(sink, group, session.spark, self._receivers)
        bind, host, port = session.control_address(self._settings.conf)
        self._server = Server(bind, port, self._secret, self._run_id, self._roster)
        session.ship(*self._sources)
        group = f"perkey-{self._run_id}"
        self._lookout = Lookout(self._roster, session, self._upfront.session_ms(), self._dead)
        self._jobs = MemberJobs(session, group, self._describe, self._next_task)
        event(
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
        name = instance_name(self._options.group, self._run_id)
        first = MemberTask(
            0, 0, name, host, self._server.port, self._secret, self._app_bytes, table
        )
        self._jobs.submit([replace(first, index=slot.index) for slot in self._roster.slots])

    def _describe(self, task: MemberTask) -> str:
        """The job's line in Spark's UI."""
        again = f", submitted again ({task.generation})" if task.generation else ""
        page = f", page http://{self._options.http}" if self._options.http else ""
        members = self._settings.members
        return f"perkey {self._options.group}: member {task.index} of {members}{again}{page}"

    def _await_members(self) -> None:
        """Wait until all are up. Raises the error that prevents it, in one line."""
        roster, members = self._roster, self._settings.members
        self._wait_until(lambda: self._no_hope() or roster.seen() == members, self._settings.wait_s)
        seen = roster.seen()
        if not self._is_ending and seen < members:
            assert self._session is not None
            assert self._server is not None
            raise ConfigError(
                f"{seen} of {members} members have dialled in after {self._settings.wait_s:.0f} s: "
                f"the cluster at {self._session.master} has free slots for no more tasks, or "
                f"its executors cannot reach the driver at port {self._server.port}: give fewer "
                "members=, more executors or cores, or set conf perkey.control.host and "
                "perkey.control.port; perkey.control.wait_s waits longer"
            )
        self._wait_until(roster.all_up, limits.UP_S)
        starting, self._starting = self._starting, False
        if starting and self._ending.fatal is not None:
            code, reason, _ = self._ending.fatal
            raise (ConfigError if code == 2 else FatalError)(reason)

    def _no_hope(self) -> bool:
        """Whether tasks fail before they can report: Spark would retry them hundreds of times."""
        now = time.monotonic()
        if self._session is None or self._roster.seen() or now < self._hope_until:
            return False
        self._hope_until = now + _TROUBLE_LOOK_S
        trouble = self._session.trouble(f"perkey-{self._run_id}")
        if trouble is not None:
            self._fatal_from(2, f"Spark could not run members: {one_line(trouble)}", None)
        return trouble is not None

    def _wait_until(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait for it, for the end of the run, or for the time-out."""
        deadline = time.monotonic() + seconds
        while not true() and not self._is_ending and time.monotonic() < deadline:
            # In slices: Python runs signal handlers between two waits, not inside a long one.
            with self._roster.changed:
                self._roster.changed.wait(_LOOK_S)

    @property
    def _is_ending(self) -> bool:
        return self._ending.fatal is not None or self._stopped_at is not None

    # -- Spark's jobs ------------------------------------------------------------------------------

    def _next_task(self, task: MemberTask, error: BaseException | None) -> MemberTask | None:
        """A member's job has ended: returns what to submit instead."""
        slot = self._roster.slots[task.index]
        if slot.ended or self._stopped_at is not None:
            return None
        if self._session is None or self._session.stopped:
            self._fatal_from(1, "the Spark session was stopped while the fleet ran", None)
            return None
        if error is not None and slot.incarnation is None:
            reason = f"Spark could not run member {task.index}: {one_line(error)}"
            self._fatal_from(2, reason, None)
            return None
        if error is not None:
            event("warning", "job failed", member=task.index, reason=one_line(error))
        return replace(task, generation=task.generation + 1)

    # -- received messages -------------------------------------------------------------------------

    def _fatal_from(
        self,
        code: int,
        reason: str,
        error: list[str] | None,
        up: bool = False,  # noqa: FBT001, FBT002  # as Receivers calls it
    ) -> None:
        if up and self._ending.fatal is None:
            self._starting = False  # its end is in the report, also while others start
        if self._ending.break_off(code, reason, error):
            if not self._starting:
                event("error", "stopping", reason=reason)
            self.stop("in_flight")

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
        """On a separate thread, to the end of the run: without it nothing would detect the end."""
        try:
            self._look_on()
        except BaseException as error:
            self._watch_broke(error)
            with self._roster.changed:
                self._roster.changed.wait_for(self._left, self._options.drain_timeout_s)
        try:
            assert self._jobs is not None
            self._finish(self._jobs)
        except BaseException as error:
            self._watch_broke(error)
        try:
            seconds = time.monotonic() - self._began
            report = self._ending.report(self._roster, self._signals.exit_code, seconds)
            self._report = report
            event(
                "info",
                "ended",
                exit_code=report.exit_code,
                reason=report.reason,
                done=report.done,
                seconds=round(report.seconds, 3),
            )
        finally:
            self._over.set()

    def _watch_broke(self, error: BaseException) -> None:
        guard.log_death("perkey-watch", error)
        self._ending.break_off(1, f"thread perkey-watch died: {type(error).__name__}: {error}")
        self.stop("in_flight")

    def _look_on(self) -> None:
        looked_at, patience_s = 0.0, self._options.drain_timeout_s + limits.LEAVE_S
        while not self._left():
            now = time.monotonic()
            if self._drain is not None and self._stopped_at is None:
                if now - looked_at > _DRAINED_LOOK_S:
                    looked_at = now
                    if self._roster.all_up() and self._drain.over(self._roster.finished()):
                        self._ending.note_drained(self._roster.parked())
                        self.stop("in_flight")
            elif self._stopped_at is not None and now > self._stopped_at + patience_s:
                break
            if self._stopped_at is None and self._lookout is not None:
                self._lookout.look()
            with self._roster.changed:
                self._roster.changed.wait(_LOOK_S)

    def _left(self) -> bool:
        """Whether a stop was requested and all members have left, or never came."""
        if self._stopped_at is None:
            return False
        now = time.monotonic()
        return all(
            slot.ended
            or (slot.wire is None and now - (slot.silent_since or 0.0) > limits.DRIVER_GONE_S + 1.0)
            for slot in self._roster.slots
        )

    def _finish(self, jobs: MemberJobs) -> None:
        stayed = [slot.index for slot in self._roster.slots if not slot.ended and slot.wire]
        if stayed:
            late = ", ".join(map(str, stayed))
            self._ending.break_off(1, f"member {late} did not leave in time and was killed")
        if stayed or not all(slot.ended for slot in self._roster.slots):
            jobs.cancel()
        jobs.join(10.0)
        self._ending.confirm(self._drain, self._roster)
        # Remove killed members from the group, so that no one waits a session for them.
        for name in [] if self._dead is None else self._dead.push_out_own():
            event("warning", "a member is still in the group", member=name)
        self._clean_up()
        self._callbacks.end()

    def _clean_up(self) -> None:
        for one in (self._outside, self._dead, self._server, self._committer):
            if one is not None:
                one.close()
        if self._session is not None:
            forget(self._sources[0])
            self._session.close()
        self._upfront.close()

    # -- control -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self._over.is_set()

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run: see `App.stop`."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        self._roster.orders.stop = mode
        self._roster.send_all({"type": "stop", "mode": mode})

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end and its report; TimeoutError if it did not come in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._over.wait(_LOOK_S):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the app has not ended within {timeout_s} s")
        assert self._report is not None
        return self._report

    def pause(self, topic: str | None) -> None:
        """See `App.pause`."""
        self._roster.orders.paused.add(topic)
        self._roster.send_all({"type": "pause", "topic": topic, "on": True})

    def resume(self, topic: str | None) -> None:
        """See `App.resume`."""
        paused = self._roster.orders.paused
        paused.discard(topic)
        if topic is None:
            paused.clear()
        self._roster.send_all({"type": "pause", "topic": topic, "on": False})

    def snapshot(self) -> dict[str, Any]:
        """See `App.snapshot`; it also has a row for each member."""
        shots = {} if self.over else self._roster.shots()
        members = [slot.facts() for slot in self._roster.slots]
        state = "starting" if self._starting else "running"
        if self.over:
            state = "failed" if self._ending.fatal is not None else "ended"
        elif self._is_ending:
            state = "stopping"
        return merged(state, shots, members, self._about)

    def open_results(self) -> NoReturn:
        """Results stay in the members."""
        raise no_results("app.results()")

    def install_signals(self) -> None:
        """SIGINT and SIGTERM stop the run; nothing off the main thread."""
        self._signals.install()

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""
        self._signals.restore()
