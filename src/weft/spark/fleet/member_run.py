"""A run that is one member of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from weft.app_options import AppOptions
from weft.core.epochs import Found
from weft.errors import ConfigError
from weft.kafka.connect import Connection, RealConnection
from weft.kafka.ports import AdminPort
from weft.routing import Routes
from weft.runtime.handling import HandlerPlan
from weft.runtime.hosted import Hosted
from weft.runtime.member.member import Member
from weft.runtime.member.member_config import MemberConfig
from weft.runtime.run.preflight import check_cluster
from weft.runtime.run.result_stream import ResultStream
from weft.runtime.run.run import Run
from weft.runtime.run.shares import Shares
from weft.spark.fleet.lending import Borrowing
from weft.spark.fleet.link import Link
from weft.types import RunReport, StopMode, TopicPartition

if TYPE_CHECKING:
    from weft.spark.table.line import TableLine


class Lent(Shares):
    """A member of a fleet has no shares by its partitions: the driver lends."""

    def __init__(self, routes: Routes, plans: Sequence[HandlerPlan], borrowing: Borrowing) -> None:
        super().__init__(routes, plans)
        self._borrowing = borrowing

    def begin(self, member: Member, admin: AdminPort) -> None:
        """Before the member has anything."""
        self._borrowing.begin(member)

    def look(self, member: Member, admin: AdminPort | None) -> None:
        """Nothing to look up."""


class MemberRun(Run):
    """The runtime of one process, with what its host needs to see and to hurry."""

    def __init__(
        self,
        app: Hosted,
        *,
        stream: ResultStream | None,
        instance_id: str | None,
        checked: bool,
        table: TableLine | None,
        on_found: Callable[[Mapping[TopicPartition, Found]], None],
        borrowing: Borrowing,
    ) -> None:
        """`instance_id` is the member's static id in the group, None for a dynamic one.

        `checked`: an earlier life on an executor has found the cluster in order.
        `table`: the way to the table that results go into.
        `on_found` gets the committed offsets of partitions as they are assigned.
        `borrowing`: what the driver lends of budgets.
        """
        self._on_found = on_found
        self.instance_id = instance_id
        self._checked = checked
        self._table = table
        self._borrowing = borrowing
        super().__init__(app, until=None, stream=stream)
        self._outside.muted = True  # the driver shows all members
        self._shares = Lent(self._routes, self._plans, borrowing)

    def _connect(self) -> Connection:
        connection = super()._connect()
        if self._table is None:
            return connection
        from weft.spark.table.transactions import (
            TableConnection,  # needs PyArrow
            TableTransactor,
        )

        assert isinstance(connection, RealConnection)
        self.transactor = TableTransactor
        return TableConnection(connection.settings, self._table)

    def _check(self, admin: AdminPort) -> list[str]:
        # Coming back is a matter of half a second, and asking again would take a part of that.
        if self._checked:
            return self._routes.topics
        handlers = self._handlers
        if self._table is not None:
            from weft.spark.table.sink import without_table

            handlers = tuple(without_table(handlers))
        return check_cluster(self._connection, admin, self._routes, handlers, self._options)

    def _member_config(self) -> MemberConfig:
        config = super()._member_config()
        also = config.on_found

        def found(committed: Mapping[TopicPartition, Found]) -> None:
            also(committed)
            self._on_found(committed)

        return replace(config, on_found=found, on_lease=self._borrowing.urge)

    @property
    def may_restart(self) -> bool:
        """It broke in a way that a new one in its place may not."""
        return self._member is None or self._member.may_restart

    def hurry(self, drain_timeout_s: float) -> None:
        """A stop may take no longer than this from now on."""
        if self._member is not None:
            config = self._member.config
            config.drain_timeout_s = min(config.drain_timeout_s, drain_timeout_s)

    def latencies(self) -> dict[str, list[float]]:
        """Samples of the calls' durations in seconds, by handler."""
        return {plan.spec.name: plan.latency.samples() for plan in self._plans}


# -- handle ----------------------------------------------------------------------------------------
# What `app.stop()`, `app.pause()` and the like do when a handler calls them inside a member.


class MemberApp(Hosted, Protocol):
    """The app inside a member."""

    def adopt(self, run: Any, options: AppOptions) -> None:
        """Be run by this member, with these options."""


class MemberHandle:
    """The run of one member: it speaks for itself, and asks the driver for what concerns all."""

    def __init__(self, run: Run, link: Link) -> None:
        self._run, self._link = run, link

    @property
    def over(self) -> bool:
        """The member has ended."""
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

    def open_results(self) -> ResultStream:
        """Results are the driver's."""
        raise ConfigError("app.results() is read on the driver of a fleet, not in a member")

    def install_signals(self) -> None:
        """Signals are the task's."""

    def restore_signals(self) -> None:
        """Signals are the task's."""
