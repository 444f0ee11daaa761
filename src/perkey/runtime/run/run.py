"""One run of an app in this process: started, watched, stopped, reported."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.app_options import AppOptions, Hosted
from perkey.core.events import Limits
from perkey.core.states import InternalError
from perkey.kafka.connect import Connection
from perkey.kafka.ports import AdminPort
from perkey.options import HandlerOptions
from perkey.routing import Routes
from perkey.runtime.calls.executors import Executors, needs_loop
from perkey.runtime.calls.invoke import decided
from perkey.runtime.calls.loops import HandlerLoop
from perkey.runtime.calls.tracing import tracing
from perkey.runtime.door import Door, Event
from perkey.runtime.handling import Executor
from perkey.runtime.logs import event
from perkey.runtime.member.group_membership import Fail, GroupMembership
from perkey.runtime.member.member import Member
from perkey.runtime.member.member_config import MemberConfig
from perkey.runtime.member.topic_ids import TopicIds
from perkey.runtime.member.transactor import Transactor, transactional_id
from perkey.runtime.run import gc_pace
from perkey.runtime.run.control import Control
from perkey.runtime.run.drain import Drain
from perkey.runtime.run.exits import StopSignals
from perkey.runtime.run.handler_plans import commit_after, commit_of, log_end, log_start, plans_of
from perkey.runtime.run.outside import Outside, RunSource
from perkey.runtime.run.preflight import (
    FirstStart,
    admin_of,
    check_cluster,
    connection_of,
    drain_of,
    is_transactional,
)
from perkey.runtime.run.result_stream import Results, ResultStream, as_handled
from perkey.runtime.run.run_snapshot import Snapshots, Starting, ending_of, report_of, under_way
from perkey.runtime.run.shares import Shares
from perkey.runtime.run.watching import Watching
from perkey.types import RunReport, StopMode

if TYPE_CHECKING:
    from perkey.ledger.ledger_run import LedgerRun

#: between two checks: while records come or a drain is awaited, and while nothing happens
WATCH_S, WATCH_IDLE_S = 0.1, 0.4
LOOK_FIRST_S = 0.005  # so that a short run ends quickly
LOOP_CLOSE_S = 5.0
CLOSE_NOW_S = 0.5  # for the last report, after a second signal
TOPIC_IDS_S = 1.0  # limits how long the watch waits


class Run:
    """The handle of a run: `stop()`, `wait()`, `snapshot()`."""

    #: the static member id in a fleet
    instance_id: str | None = None
    transactor: type[Transactor] = Transactor

    def __init__(self, app: Hosted, *, until: str | None, stream: ResultStream | None) -> None:
        self._app = app
        self._options, self._handlers = self._declared(app)
        self._until = until
        self._routes = Routes(self._handlers)
        self._connection = self._connect()
        self._plans = plans_of(
            self._handlers, self._connection.around, tracing(self._options.group)
        )
        self._results = Results(
            self._plans, self._options.on_result, stream, as_handled(self._handlers)
        )
        self._loop: HandlerLoop | None = None
        #: once it has been created
        self.member: Member | None = None
        self._drain: Drain | None = None
        self._admin: AdminPort | None = None
        self._drained = False
        self.watching: Watching | None = None
        #: what the start waits for; None once the member runs
        self._starting: Starting | None = Starting()
        names = [plan.spec.name for plan in self._plans]
        self.control = Control(self, self._routes, names, self._connection.log_reader)
        self._outside = Outside(self._options, RunSource(self), self._routes)
        self._stop_asked: StopMode | None = None
        self._signals = StopSignals(self.stop, lambda: self.member is not None)
        self._began = 0.0
        name = self.instance_id or self._connection.instance_id()
        self._snapshots = Snapshots(self._plans, self._options.group, name)
        self._report: RunReport | None = None
        self._over = threading.Event()
        self._early: list[Event] | None = []  # before the start; None from then on
        self._posting = threading.Lock()
        self._release_id: Callable[[], None] = lambda: None
        self._ledgers: list[LedgerRun] = []
        self._on_commit = self._options.on_commit
        self._shares = Shares(self._routes, self._plans)
        self._topic_ids = TopicIds(self._ask_topic_ids, self._forget_topic_id)

    # -- creating ----------------------------------------------------------------------------------

    def _declared(self, app: Hosted) -> tuple[AppOptions, Sequence[HandlerOptions]]:
        return app.options, app.handlers

    def _drain_of(self, admin: AdminPort, topics: list[str]) -> Drain:
        group = self._options.group
        return drain_of(admin, self._connection, group, topics, self._routes.patterns)

    def _connect(self) -> Connection:
        return connection_of(self._options, self._handlers, self.instance_id)

    def _make_transactor(self, membership: GroupMembership) -> Transactor:
        identity, self._release_id = transactional_id(
            self._options.group, self._connection.instance_id()
        )
        batches = any(plan.spec.batch is not None for plan in self._plans)
        port = self._connection.transactions(identity)
        return self.transactor(membership, port, self._options.group, batches=batches)

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Check the cluster, open the lifespan and join the group; then returns immediately."""
        self._began = time.monotonic()
        starting = self._starting = Starting()
        try:
            starting.waits("brokers", self._connection.described())
            self._outside.listen()
            self._admin = admin_of(
                self._connection, self._options, lambda: self._stop_asked is not None
            )
            topics = self._check(self._admin)
            if any(handler.ledger is not None for handler in self._handlers):
                from perkey.runtime.run.handler_plans import (  # needs SQLAlchemy
                    open_ledgers,
                    pruning,
                )

                group = self._options.group
                self._ledgers = open_ledgers(
                    self._handlers, self._plans, group, self._admin, starting.waits
                )
                self._on_commit = pruning(self._ledgers, self._options.on_commit)
            if self._until == "drained":
                starting.waits("brokers", self._connection.described())
                self._drain = self._drain_of(self._admin, topics)
            opens = self._options.lifespan is not None or needs_loop(self._handlers)
            if loop is None and opens:
                self._loop = HandlerLoop()
                starting.waits("lifespan", stack=self._loop.opening)
                self._app.state = self._loop.enter_and_wait(self._options.lifespan, self._app)
            for ledger in self._ledgers:
                if self._loop is not None:
                    self._loop.at_exit(ledger.close_async)
            member = self.member = Member(self._member_config())
            self._connection.clock.watch(lambda: self._under_way(member))
            log_start(self._options, self._handlers, self._plans, topics, self._until)
            if self._loop is not None:
                self._loop.died = member.died
            watching = self.watching = Watching(member, self._options.group, self._loop)
            starting.waits("control")
            self._outside.open(self._connection)
            self._results.begin(member)
            gc_pace.slow_down()
            with self._posting:
                for event in self._early or ():
                    member.door.post(event)
                self._early = None
            self._shares.begin(member, self._admin)
            self._starting = None
            member.start()
        except BaseException:
            self._abandon()
            raise
        if self._stop_asked is not None:
            member.stop(self._stop_asked)
        guard.thread("perkey-watch", self._watch, guard.log_death, member, watching).start()

    def _abandon(self) -> None:
        """The start failed: nothing runs, and the app may be started again."""
        if not self.over:
            self._close_loop(LOOP_CLOSE_S)
            self._close_clients()
            self._results.end()
            self._app.state = None
            self._over.set()

    def _check(self, admin: AdminPort) -> list[str]:
        return check_cluster(
            self._connection,
            admin,
            self._routes,
            self._handlers,
            self._options,
            lambda: self._stop_asked is not None,
            None if self._starting is None else self._starting.failed,
        )

    def _member_config(self) -> MemberConfig:
        options = self._options
        return MemberConfig(
            group=options.group,
            topics=self._routes.topics,
            plans=self._plans,
            route=self._routes.handler_of,
            limits=Limits(
                buffer_records=options.buffer_records,
                buffer_bytes=options.buffer_bytes,
                commit=commit_of(self._handlers),
                commit_after=commit_after(self._handlers),
                forget_parked=True,
            ),
            make_consumer=self._connection.consumer,
            make_reader=partial(self._connection.log_reader, as_consumer=True),
            make_producer=self._connection.producer,
            make_executors=self._make_executors,
            make_transactor=self._make_transactor if is_transactional(self._handlers) else None,
            drain_timeout_s=options.drain_timeout_s,
            revoke_timeout_s=min(
                options.revoke_timeout_s, self._connection.max_poll_interval_s() / 3
            ),
            on_offset_lost=options.on_offset_lost,
            on_commit=self._on_commit,
            on_assign=options.on_assign,
            on_revoke=options.on_revoke,
            on_error=options.on_error,
            decide=decided,
            on_finished=self._results.put,
            on_found=FirstStart(options.group, options.kafka, self._handlers).report,
            topic_ids=self._topic_ids,
            clock=self._connection.clock,
        )

    def _make_executors(self, door: Door, fail: Fail) -> list[Executor]:
        """One executor per handler, in their order."""
        loop = None if self._loop is None else self._loop.loop
        for plan in self._plans:
            if plan.charges is not None:
                plan.charges.door = door
        make = Executors(door, fail, loop, self._options.group, self._options.lifespan)
        return [make.of(*both) for both in zip(self._handlers, self._plans, strict=True)]

    def open_results(self) -> ResultStream:
        """A stream of the results from now on."""
        return self._results.open()

    # -- watching ----------------------------------------------------------------------------------

    def _watch(self, member: Member, watching: Watching) -> None:
        """On a separate thread: detect a drain, and then the end."""
        try:
            look_s, turns = LOOK_FIRST_S, guard.Turns("perkey-watch")
            while not member.ended.wait(look_s):
                idle = watching.quiet and self._drain is None
                look_s = min(2 * look_s, WATCH_IDLE_S if idle else WATCH_S)
                stops = member.engine.stop_mode is not None
                if self._drain is not None and not stops:  # a stop does not wait for answers
                    self._drain.look(member.partitions)
                with contextlib.suppress(InternalError):  # then the member's thread ends the run
                    member.look_at_topic_ids()
                    self._shares.look(member, self._admin)
                    self.control.look()
                    self._look_at_drain(member)
                with turns.turn():  # it only logs and counts
                    watching.look(self._admin)
                if self._drain is not None and self._drain.acknowledging:
                    look_s = LOOK_FIRST_S
        except BaseException as error:
            member.died("perkey-watch", error)
            member.ended.wait()
        try:
            # The rest of a drain's time is for the lifespan; a loop that hangs gets a second.
            patient = member.patient and member.engine.stop_mode != "now"
            self._close_loop(LOOP_CLOSE_S if patient else 1.0)
            self._close_clients()
            gc_pace.restore()
            self._results.end()
            member.run_log.write(last=True)
            if self._loop is None or self._loop.own:
                self._app.state = None
        except BaseException as error:
            member.died("perkey-watch", error)
        try:
            code, reason = ending_of(member, self._signals.exit_code, drained=self._drained)
            self._report = report_of(member, code, reason, time.monotonic() - self._began)
            log_end(self._report)
        finally:
            self._over.set()  # in any case: callers that wait for the end are released

    def _look_at_drain(self, member: Member) -> None:
        drain = self._drain
        if drain is None or self._drained or member.ended.is_set():
            return
        ours = dict(member.partitions)
        if member.door.call(lambda engine, now: drain.finished(engine, now, ours)):
            self._drained = True
            member.stop("in_flight")
        elif line := member.door.call(lambda _, now: drain.held_line(now, ours)):
            event("info", "the drain waits for records that are held", **line)

    def _ask_topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        admin = self._admin
        described = {} if admin is None else admin.describe(topics, TOPIC_IDS_S)
        return {topic: facts.topic_id for topic, facts in described.items()}

    def _forget_topic_id(self, topic: str) -> None:
        for ledger in self._ledgers:
            ledger.topic_ids.pop(topic, None)

    def _under_way(self, member: Member) -> int:
        """For a test's clock before it skips time; the run may be over already."""
        self._look_at_drain(member)
        return under_way(member)

    # -- ending ------------------------------------------------------------------------------------

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run: see `App.stop`."""
        self._stop_asked = mode  # for `start`, if it has not come that far
        event("info", "stop asked", mode=mode)
        if self.member is not None:
            self.member.stop(mode)

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end and its report; TimeoutError if it did not come in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # In slices: Python runs signal handlers between two waits, not inside a long one.
        while not self._over.wait(0.1):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the app has not ended within {timeout_s} s")
        assert self._report is not None
        return self._report

    async def serve(self) -> RunReport:
        """Run on the caller's loop; cancelling drains and then continues the cancellation."""
        loop = asyncio.get_running_loop()
        self._loop = HandlerLoop(loop)
        try:
            self._starting = Starting()
            self._starting.waits("lifespan", stack=self._loop.opening)
            self._outside.listen()
            self._app.state = await self._loop.enter(self._options.lifespan, self._app)
            cancelled = await self._outlast(asyncio.to_thread(self.start, loop))
            cancelled = await self._outlast(asyncio.to_thread(self.wait)) or cancelled
        except BaseException:
            self._abandon()
            raise
        finally:
            await self._loop.exit()
            self._app.state = None
        if cancelled:
            raise asyncio.CancelledError
        return self.wait()

    async def _outlast(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Wait for it, also when cancelled meanwhile: the first time drains, the second stops now.

        Returns whether it was cancelled.
        """
        task, cancelled = asyncio.create_task(call), False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                self.stop("now" if cancelled else "in_flight")
                cancelled = True
        task.result()
        return cancelled

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self._over.is_set()

    def _close_loop(self, timeout_s: float) -> None:
        if self._loop is not None:
            self._loop.close(timeout_s)

    def _close_clients(self) -> None:
        hurried = self.member is not None and self.member.hurried
        self._outside.close(CLOSE_NOW_S if hurried else None)
        for ledger in self._ledgers:
            ledger.close()
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        self._release_id()

    # -- control -----------------------------------------------------------------------------------

    def pause(self, topic: str | None) -> None:
        """See `App.pause`."""
        self._post(lambda engine, now: engine.pause(now, topic, on=True))

    def resume(self, topic: str | None) -> None:
        """See `App.resume`."""
        self._post(lambda engine, now: engine.pause(now, topic, on=False))

    def _post(self, event: Event) -> None:
        """Post an event to the engine; before the start it is stored."""
        with self._posting:
            if self._early is not None:
                self._early.append(event)
                return
        assert self.member is not None, "which took the early ones"
        self.member.door.post(event)

    def snapshot(self, *, worst: bool = True, mapped: bool = False) -> dict[str, Any]:
        """See `App.snapshot`; `Snapshots.taken` describes the options."""
        shot = self._snapshots.taken(
            self.member,
            self.watching,
            starting=self._starting,
            over=self.over,
            worst=worst,
            mapped=mapped,
        )
        halts = self.control.with_settings(shot["halts"])
        return {**shot, "halts": halts, "control": self._outside.followed()}

    def install_signals(self) -> None:
        """SIGINT and SIGTERM stop the run; only the main thread may do this."""
        self._signals.install()

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""
        self._signals.restore()
