"""What a run exposes: a socket on this machine, HTTP, and two topics of its group."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perkey import guard
from perkey.account.finding import find, find_key
from perkey.app_options import AppOptions
from perkey.core.states import InternalError
from perkey.errors import ConfigError
from perkey.kafka.clientlog import Sparse
from perkey.kafka.connect import Connection, WordsPort
from perkey.kafka.secrets import connecting
from perkey.observe.asking import Source
from perkey.observe.group import GroupSource, wanted_of
from perkey.observe.local import LocalServer
from perkey.observe.orders import Answer, Order
from perkey.observe.reports import Reporter
from perkey.policies import letters_of
from perkey.runtime.logs import event
from perkey.runtime.run.control import Control, Controlled
from perkey.runtime.run.group_control import GroupControl
from perkey.runtime.run.run_snapshot import add_calls, picture_of
from perkey.runtime.suspension import since_boot

if TYPE_CHECKING:
    from perkey.observe.serving import Serving
    from perkey.routing import Routes
    from perkey.runtime.run.watching import Watching

#: `perkey run` sets it; 1: `app.run()` opens a socket, too; 0: no socket
SOCKET_VARIABLE = "PERKEY_SOCKET"
#: after so long a restart is needed: the polling thread or the handlers' loop is blocked
POLL_BLOCKED_S = 10.0
LOOP_BLOCKED_S = 60.0


class Seen(Controlled, Protocol):
    """What is queried of a run."""

    watching: Watching | None
    control: Control


class RunSource:
    """A run of this process, as queried from outside."""

    def __init__(self, run: Seen) -> None:
        self.snapshot, self.measures = run.snapshot, partial(run.snapshot, worst=False)
        self.report = partial(run.snapshot, mapped=True)
        self._run = run

    def members(self) -> list[dict[str, Any]]:
        """Only this run: nothing else of the group is known."""
        return [self.snapshot()]

    def sums(self) -> list[dict[str, Any]]:
        """The same at lower cost: without the most blocking records."""
        return [self.measures()]

    def picture(self, topic: str, partition: int) -> dict[str, Any] | None:
        """One partition's offset map and worst records; None if it is unknown."""
        return picture_of(self._run.member, topic, partition)

    def find(self, topic: str, partition: int, offset: int) -> dict[str, Any]:
        """Where one record is."""
        nowhere = {"topic": topic, "partition": partition, "offset": offset, "place": "elsewhere"}
        found = self._asked(
            lambda state, now, epoch_s: find(state, now, epoch_s, topic, partition, offset)
        )
        return nowhere if found is None else self._with_calls([dict(found)])[0]

    def find_key(self, key: bytes, topic: str | None) -> list[dict[str, Any]]:
        """Where the first records of one key are."""
        found = self._asked(lambda state, now, epoch_s: find_key(state, now, epoch_s, key, topic))
        return [] if found is None else self._with_calls(list(found))

    def _with_calls(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add executor and stack to each row, also to the rows of what they wait for."""
        member = self._run.member
        behind = []
        for row in rows:
            if head := row.get("behind"):
                shared = {name: row[name] for name in ("topic", "partition", "handler")}
                row["behind"] = {**shared, **head}
                behind.append(row["behind"])
        if member is not None:
            add_calls(member, [row for row in [*rows, *behind] if "attempts" in row])
        return rows

    def _asked(self, ask: Callable[[Any, float, float], Any]) -> Any:
        member = self._run.member
        if member is None:
            return None
        try:
            # The last is the UNIX time at which the engine's clock, which reads `now`, was zero.
            return member.door.call(lambda engine, now: ask(engine, now, time.time() - now))
        except InternalError:
            return None

    def control(self, order: Order) -> list[Answer]:
        """Obey a command."""
        return [self._run.control.obey(order)]

    def commands(self) -> list[dict[str, Any]]:
        """The commands in force, and the last ones."""
        app = self.measures()["app"]
        return [{"member": app["member"], **self._run.control.state()}]

    def live(self) -> tuple[bool, str]:
        """False if only a restart helps; an unavailable broker is no such case."""
        member, watching = self._run.member, self._run.watching
        if member is None or watching is None:
            return True, "starting"
        if member.door.broken is not None:
            return False, f"the engine has failed: {member.door.broken}"
        if member.ending or member.ended.is_set():
            return True, "ending"
        blocked_s = since_boot() - member.door.round_at
        if blocked_s > POLL_BLOCKED_S:
            return False, f"the polling thread has not run for {blocked_s:.0f} s"
        if watching.loop is not None and watching.loop.blocked_s() > LOOP_BLOCKED_S:
            blocked_s = watching.loop.blocked_s()
            by = watching.loop.blocked_by().partition(":")[0]  # no token required: no line of code
            reason = f"the handlers' loop has not run for {blocked_s:.0f} s: {by}"
            return False, reason
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """True while records are handled, or would be if there were any."""
        well, reason = self.live()
        if not well:
            return False, reason
        member, watching = self._run.member, self._run.watching
        if member is None or watching is None:
            return False, "starting: not in the group yet"
        if member.leaving or member.fatal is not None or member.engine.stop_mode is not None:
            return False, "stopping"
        if (away_s := watching.broker_away_s()) is not None:
            return False, f"the broker has not answered for {away_s:.0f} s"
        if member.partitions:
            return True, "ok"
        if watching.in_reserve:
            return True, "idle: the group has more members than partitions"
        return False, "no partition is assigned yet"


class Outside:
    """Everything that a run serves; nothing until it is opened."""

    def __init__(
        self,
        options: AppOptions,
        source: Source,
        routes: Routes,
    ) -> None:
        self._options, self._routes = options, routes
        self._source = source
        #: a member of a fleet: its driver serves all of them
        self.muted = False
        self._local: LocalServer | None = None
        self._http: Serving | None = None
        self._reporter: Reporter | None = None
        self._words: WordsPort | None = None
        self._followed: GroupControl | None = None
        self._failures = Sparse()
        #: invalid reports of other members
        self._refusals = 0

    def listen(self) -> None:
        """Open the socket, if that has not happened: a start that waits answers, too."""
        if self.muted or self._local is not None or os.environ.get(SOCKET_VARIABLE) != "1":
            return
        try:
            self._local = LocalServer(self._source, connecting(self._options.kafka))
        except (ConfigError, OSError) as error:  # it is optional: a run continues without it
            event("warning", "no socket for perkey status", reason=str(error))

    def open(self, clients: Connection) -> None:
        """Serve what the options request. Raises ConfigError for an unusable address."""
        if self._options.reports is not None:
            source = self._source

            def failed(reason: str) -> None:
                self._log("reports", "report not written", reason)

            self._reporter = Reporter(
                self._options.reports,
                lambda: source.ready()[1],
                source.report,
                lambda: clients.producer(lambda: None, failed),
                failed,
            )
        if self._options.control is not None:
            member = str(self._source.measures()["app"]["member"])
            self._followed = GroupControl(
                self._options.control, self._options.group, member, clients, self._source.control
            )
            self._followed.wait_ready()
        if not self.muted:
            self.serve(clients)

    def followed(self) -> dict[str, Any] | None:
        """For the snapshot: how the control topic is followed; None without one."""
        followed = self._followed  # the end of the run sets it to None
        return None if followed is None else followed.state()

    def serve(self, clients: Connection) -> None:
        """Open the socket and HTTP. Raises ConfigError as `open` does."""
        options, source = self._options, self._source
        if options.reports is not None and options.http is not None:
            group = options.group  # the page shows the whole group
            self._words = clients.last_words(
                options.reports,
                wanted_of(group),
                lambda reason: self._log("unread", "reports of the group not read", reason),
            )
            source = GroupSource(source, self._words, group, self._refused)
        if options.http is not None:
            from perkey.observe.http import serve

            self._http = serve(
                source, options.http, options.http_token_file,
                allow_control=options.allow_control, letters=self._letters, reach=reach_of(options),
            )  # fmt: skip
            event("info", "serving http", address=self._http.address)
        self.listen()
        if self._local is not None:
            self._local.source = source

    def _letters(self, topics: Iterable[str]) -> list[str]:
        """The dead-letter topics of the handlers of these topics, plus the named ones."""
        names = set()
        for topic in {*topics, *self._routes.literal}:
            if self._reads(topic):
                names.add(letters_of(self._routes.options_of(topic).on_exhausted, topic))
        return sorted(names - {""})

    def _reads(self, topic: str) -> bool:
        try:
            self._routes.handler_of(topic)
        except ConfigError:
            return False
        return True

    def _refused(self, reason: str) -> None:
        self._refusals += 1
        self._log("refused", "report refused", reason, count=self._refusals)

    def _log(self, kind: str, what: str, reason: str, **more: Any) -> None:
        if self._failures.left_out(kind) is not None:
            event("warning", what, topic=self._options.reports, reason=reason, **more)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop serving; with a limit, what takes longer is left behind.

        Without brokers each client waits for seconds: they are closed at the same time.
        """
        clients = (self._reporter, self._words, self._followed)
        closing = [
            guard.thread("perkey-close", client.close) for client in clients if client is not None
        ]
        for thread in closing:
            thread.start()
        for served in (self._local, self._http):
            if served is not None:
                served.close()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in closing:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        self._reporter = self._words = self._followed = self._local = self._http = None


def reach_of(options: AppOptions) -> dict[str, Any]:
    """How the commands that the page shows reach the group: options of the command line.

    `command`: of commands to members; None: the page's own address with `token_file`, which is
    None if no token is required. `servers`: of commands that read Kafka.
    """
    address = shlex.quote(str(options.kafka.get("bootstrap.servers", "")))
    servers = f"--bootstrap-servers {address}"
    if str(options.kafka.get("security.protocol", "plaintext")).lower() != "plaintext":
        servers += " --config FILE"
    group = f"--group {shlex.quote(options.group)}"
    command: str | None = group
    if options.control is not None and (options.reports is not None or not options.allow_control):
        command = f"--control {shlex.quote(options.control)} {group} {servers}"
    elif options.allow_control:
        command = None
    token_file = options.http_token_file
    if token_file is not None:
        token_file = shlex.quote(str(Path(token_file).expanduser().absolute()))
    return {"group": group, "command": command, "servers": servers, "token_file": token_file}
