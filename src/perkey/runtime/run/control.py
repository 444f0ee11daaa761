"""Commands to one run: each action is obeyed and answered here, whichever way the command came.

Pauses and settings change the desired state (`desired.py`) and end in time. The other actions are
verbs: they are done once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from perkey.core.events import Steering
from perkey.core.states import InternalError
from perkey.errors import ConfigError
from perkey.observe.orders import RECORD_ACTIONS, Answer, Order, what
from perkey.observe.sentences import clock
from perkey.options import CONCURRENCY_MAX, THREADS_MAX
from perkey.runtime.logs import event
from perkey.runtime.run.desired import Desired, settings_text
from perkey.runtime.run.record_control import Row, first_rows, obeyed_of_records

if TYPE_CHECKING:
    from perkey.kafka.log_reader import LogReader
    from perkey.routing import Routes
    from perkey.runtime.handling import HandlerPlan
    from perkey.runtime.member.member import Member
    from perkey.types import StopMode

LOG_MAX = 200


class Controlled(Protocol):
    """What commands, and queries from outside, need of the run."""

    @property
    def member(self) -> Member | None:
        """Its member, once it exists."""

    def stop(self, mode: StopMode) -> None:
        """End it."""

    def snapshot(self, *, worst: bool = True, mapped: bool = False) -> dict[str, Any]:
        """See `App.snapshot`; `Snapshots.taken` describes the options."""


class Control:
    """Obeys commands, and ends them in time. Thread-safe."""

    def __init__(
        self, run: Controlled, routes: Routes, names: Sequence[str],
        reader: Callable[[], LogReader], time_of: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`names`: of the handlers, in order; `reader` of logs; `time_of`: UNIX seconds."""
        self._run, self._routes, self._names, self._time = run, routes, list(names), time_of
        self._reader = reader
        self._desired, self._sent = Desired(names), Steering()
        self._lock = threading.Lock()
        self._log: deque[dict[str, Any]] = deque(maxlen=LOG_MAX)
        #: this member's name, from the first snapshot
        self._name = ""

    def obey(self, order: Order) -> Answer:
        """Obey it; returns the answer when the engine has it."""
        of_records = order.action in RECORD_ACTIONS
        # It grows with the partitions, and commands to keys come by the thousand: not for those.
        shot = {} if of_records and self._name else self._run.snapshot(worst=False)
        if shot:
            self._name = str(shot["app"]["member"])
        try:
            if of_records:  # outside the lock: it waits for a commit
                answer = self._of_records(order)
            else:
                with self._lock:
                    answer = self._of_run(order, shot)
        except InternalError:
            answer = self._answer("refused", "the engine has failed: this run is ending")
        except ConfigError as error:
            answer = self._answer("refused", str(error))
        self.note(order, answer)
        return answer

    def note(self, order: Order, answer: Answer) -> None:
        """Store a command and its answer for queries, and log it."""
        with self._lock:
            row = {**order.row(), **answer.row(), "records": len(order.records), "rows": []}
            self._log.append({"at": round(self._time(), 3), **row})
        if not order.dry_run:
            event(
                "warning" if answer.outcome == "refused" else "info",
                f"command {order.action}", about=what(order), outcome=answer.outcome,
                detail=answer.detail, reason=order.reason, claimed_by=order.claimed_by or "?",
                id=order.id,
            )  # fmt: skip

    def look(self) -> None:
        """End expired commands."""
        if self._desired.commands:
            with self._lock, suppress(InternalError):
                ended = self._desired.over(self._time())
                if ended:
                    self._send()
                for order, _ in ended:
                    event(
                        "info", f"command {order.action} expired",
                        about=what(order), reason=order.reason, id=order.id,
                    )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The commands in force, and the last ones with their answers, newest last."""
        with self._lock:
            return {
                "in_force": [command.row() for command in self._desired.commands],
                "log": list(self._log),
            }

    def with_settings(self, halts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same causes; one that a setting by command brings about has that command.

        Without the lock: a command asks for a snapshot while it is obeyed.
        """
        return [{**halt, **self._desired.behind(halt)} for halt in halts]

    # -- actions ---------------------------------------------------------------------------------

    def _of_records(self, order: Order) -> Answer:
        self._check(order)
        return obeyed_of_records(self._started(), self._name, order, self._reader, self._time())

    def _of_run(self, order: Order, shot: Mapping[str, Any]) -> Answer:
        self._check(order)
        if order.action == "stop":
            return self._stop(order, _here(order, shot))
        self._started()
        if order.action == "resume":
            return self._resume(order, shot["halts"], _here(order, shot))
        return self._put(order, _here(order, shot))

    def _stop(self, order: Order, here: str) -> Answer:
        """Also of a start that waits, which no other command reaches."""
        starting, mode = self._run.member is None, order.mode
        if order.dry_run and starting:
            return self._answer("would", "stop its start, which waits (perkey why)")
        if order.dry_run:
            return self._would(order, f"stop, mode {mode}: {here}")
        self._run.stop(mode)  # type: ignore[arg-type]  # checked by order_of
        return self._answer(
            "done", "stopping: it was starting" if starting else f"stopping, mode {mode}"
        )

    def _put(self, order: Order, here: str) -> Answer:
        """A pause or a setting."""
        until = self._time() + order.for_s
        settings = settings_text(order.settings, ", ", "as declared")
        if order.dry_run:
            words = [f"{order.action} {what(order)}", settings, here]
            return self._would(order, ": ".join(filter(None, words)), until)
        self._desired.put(order, until)
        self._send()
        verb = "set" if order.action == "set" else "paused"
        detail = f"{verb} {what(order)} until {clock(until)}: {settings or here}"
        return self._answer("done", detail, until)

    def _resume(self, order: Order, halts: Sequence[Mapping[str, Any]], here: str) -> Answer:
        """End pauses, and the outages of handlers whose records wait for a probe."""
        waiting: set[str] = set()
        if order.topic is None:
            waiting = {halt["handler"] for halt in halts if halt["cause"] in ("outage", "brake")}
        if order.handler is not None:
            waiting &= {order.handler}
        ended, left = self._desired.resumed_by(order)
        if not ended and not waiting:
            left_text = f"; in force: {left}" if left else ""
            return self._answer("unchanged", f"no command paused {what(order)}{left_text}")
        if order.dry_run:
            return self._would(order, f"resume {what(order)}: {here}")
        self._desired.end(ended)
        self._send()
        if waiting:
            numbers = [self._names.index(name) for name in sorted(waiting)]
            self._started().door.call(lambda engine, at: engine.end_outages(at, numbers))
        left_text = f"; still paused: {left}" if left else ""
        return self._answer("done", f"resumed {what(order)}: {here}{left_text}")

    def _would(self, order: Order, words: str, until: float | None = None) -> Answer:
        """The answer of a dry run: with the first affected records."""
        index = None if order.handler is None else self._names.index(order.handler)
        rows = first_rows(self._started(), order.topic, index)
        first = "; ".join(
            f"{row['topic']}:{row['partition']}:{row['offset']} {row['detail']}" for row in rows
        )
        return self._answer("would", f"{words}; first: {first}" if first else words, until, rows)

    def _answer(
        self, outcome: str, detail: str, until: float | None = None, rows: Sequence[Row] = ()
    ) -> Answer:
        return Answer(self._name, outcome, detail, until, rows)

    def _started(self) -> Member:
        member = self._run.member
        if member is None:
            raise ConfigError("it is starting: ask again")
        return member

    def _check(self, order: Order) -> None:
        """ConfigError if this app has no such handler or topic, or cannot run so many calls."""
        if order.topic is not None:
            self._routes.options_of(order.topic)
        if order.handler is not None and order.handler not in self._names:
            names = ", ".join(self._names)
            raise ConfigError(f"handler {order.handler} does not exist: one of {names}")
        wanted = order.settings.get("concurrency")
        if wanted is None or self._run.member is None:
            return
        for plan in self._run.member.config.plans:
            name, (most, why) = plan.spec.name, _calls_most(plan)
            if order.handler in (None, name) and wanted > most:
                raise ConfigError(
                    f"concurrency={wanted:g}: handler {name} {why}: give {most} or less"
                )

    def _send(self) -> None:
        """Pass all that is in force now to the engine; InternalError if it has failed."""
        self._desired.end(self._desired.over(self._time()))
        steering, member = self._desired.steering(), self._run.member
        if steering == self._sent or member is None:
            return
        for number, plan in enumerate(member.config.plans):  # before the engine grants more
            tuned = steering.tunings.get(number)
            plan.set_calls = (tuned.concurrency if tuned else 0) or 0
        member.door.call(lambda engine, at: engine.steer(at, steering))
        self._sent = steering


def _here(order: Order, shot: Mapping[str, Any]) -> str:
    """How much of this member a command concerns, as text."""
    rows = [
        row
        for row in shot["partitions"]
        if order.topic in (None, row["topic"])
        and order.handler in (None, row.get("handler", order.handler))
    ]
    buffered = sum(row["buffered"] for row in rows)
    return f"{len(rows):,} of its partitions, {buffered:,} records here"


def _calls_most(plan: HandlerPlan) -> tuple[int, str]:
    """How many concurrent calls a command may set, and the reason for the limit."""
    declared = plan.spec.concurrency
    if plan.kind == "processes":
        return declared, f"has {declared} worker processes until a restart"
    if plan.ledger is not None:
        return declared, f"has a ledger with connections for {declared} calls until a restart"
    limit = CONCURRENCY_MAX if plan.kind == "async" else THREADS_MAX
    return limit, f"runs at most {limit:,} calls ({plan.kind})"
