"""Commands to one run: which are in force, until when, and the answers.

The engine gets all commands in force as one state (`Engine.steer`). So a command that comes twice
changes nothing twice, and one that expires is simply missing in the next state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perkey.account.finding import first_of
from perkey.core.events import Pause, Steering, Target, Tuning
from perkey.core.states import InternalError
from perkey.errors import ConfigError
from perkey.observe.orders import RECORD_ACTIONS, SETTINGS, Answer, Order, what
from perkey.observe.sentences import clock
from perkey.options import CONCURRENCY_MAX, THREADS_MAX
from perkey.runtime.logs import event
from perkey.runtime.run.record_control import (
    NAMED_MAX,
    meant_by,
    obeyed_by,
    summary,
    targets_of,
    would_be,
    would_rows,
)

if TYPE_CHECKING:
    from perkey.kafka.log_reader import LogReader
    from perkey.routing import Routes
    from perkey.runtime.handling import HandlerPlan
    from perkey.runtime.member.member import Member
    from perkey.types import StopMode

#: outcome, detail, until, rows: see `Answer`
_Done = tuple[str, str, float | None, Sequence[Mapping[str, Any]]]

LOG_MAX = 200
#: commands in force in one member; each comes from a person
IN_FORCE_MAX = 1_000


#: cause -> the setting that can bring it about
SETTING_OF = {"rate_limit": "rate_limit_per_s", "slots": "concurrency"}


class _Force(NamedTuple):
    """A command that is in force until a time."""

    order: Order
    until: float


class Controlled(Protocol):
    """What commands, and queries from outside, need of the run."""

    @property
    def member(self) -> Member | None:
        """Its member, once it exists."""

    def stop(self, mode: StopMode) -> None:
        """End it."""

    def snapshot(self, *, worst: bool = True, mapped: bool = False) -> dict[str, Any]:
        """See `App.snapshot`; `Snapshots.taken` describes the options."""


def logged(order: Order, answer: Answer) -> None:
    """Log a command and its answer; not a dry run."""
    if not order.dry_run:
        event(
            "warning" if answer.outcome == "refused" else "info",
            f"command {order.action}", about=what(order), outcome=answer.outcome,
            detail=answer.detail, reason=order.reason, claimed_by=order.claimed_by or "?",
            id=order.id,
        )  # fmt: skip


class Control:
    """Obeys commands, and ends them in time. Thread-safe."""

    def __init__(
        self, run: Controlled, routes: Routes, names: Sequence[str],
        reader: Callable[[], LogReader], time_of: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`names`: of the handlers, in order; `reader` of logs; `time_of`: UNIX seconds."""
        self._run, self._routes, self._names, self._time = run, routes, list(names), time_of
        self._reader = reader
        self._force: list[_Force] = []
        self._sent = Steering()
        self._lock = threading.Lock()
        self._log: deque[dict[str, Any]] = deque(maxlen=LOG_MAX)
        #: this member's name, from the first snapshot
        self._member = ""

    def obey(self, order: Order) -> Answer:
        """Obey it; returns the answer when the engine has it."""
        of_records = order.action in RECORD_ACTIONS
        # It grows with the partitions, and commands to keys come by the thousand: not for those.
        shot = {} if of_records and self._member else self._run.snapshot(worst=False)
        if shot:
            self._member = str(shot["app"]["member"])
        member = self._member
        try:
            if of_records:  # outside the lock: it waits for a commit
                answer = self._of_records(order, member)
            else:
                with self._lock:
                    answer = Answer(member, *self._obeyed(order, shot))
        except ConfigError as error:
            answer = Answer(member, "refused", str(error))
        self.note(order, answer)
        return answer

    def note(self, order: Order, answer: Answer) -> None:
        """Store a command and its answer for queries, and log it."""
        with self._lock:
            row = {**order.row(), **answer.row(), "records": len(order.records), "rows": []}
            self._log.append({"at": round(self._time(), 3), **row})
        logged(order, answer)

    def _of_records(self, order: Order, name: str) -> Answer:
        self._checked(order)
        member = self._run.member
        if member is None:
            raise ConfigError("it is starting: ask again")
        until = self._time() + order.for_s
        try:
            meant = None if order.where is None else meant_by(member, order, self._reader)
            targets = targets_of(order) if meant is None else list(meant)
            obeyed = partial(obeyed_by, member, order, unix_s=self._time())
            firsts = order.action == "skip" and not order.records
            rows: list[dict[str, Any]] = []
            if order.dry_run or firsts:
                rows = obeyed(targets, until, dry=True)
            if order.dry_run:
                rows, count = would_be(member, order, rows, meant, self._time())
                return summary(name, order, rows, None, count)
            if firsts:  # of each key the first record: if repeated, the same one
                first = [one for one in rows if one["outcome"] == "skipped"]
                targets = [
                    Target(one["topic"], None, one["partition"], one["offset"]) for one in first
                ]
                rows = [one for one in rows if one["outcome"] != "skipped"]
            rows += obeyed(targets, until)
        except InternalError:
            raise ConfigError("the engine has failed: this run is ending") from None
        return summary(name, order, rows, until if order.action == "hold" else None)

    def look(self) -> None:
        """End expired commands."""
        if self._force:
            with self._lock:
                ended = [one for one in self._force if one.until <= self._time()]
                if ended and self._send():
                    for one in ended:
                        event(
                            "info", f"command {one.order.action} expired",
                            about=what(one.order), reason=one.order.reason, id=one.order.id,
                        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The commands in force, and the last ones with their answers, newest last."""
        with self._lock:
            force = [{**one.order.row(), "until": round(one.until, 3)} for one in self._force]
            return {"in_force": force, "log": list(self._log)}

    def with_settings(self, halts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The same causes; one that a setting by command brings about has that command.

        Without the lock: a command asks for a snapshot while it is obeyed.
        """
        found = []
        for halt in halts:
            name, more = SETTING_OF.get(halt["cause"], ""), dict[str, Any]()
            for order, until in tuple(self._force):
                if name in order.settings and order.handler in (None, halt.get("handler")):
                    every = (
                        f"{one}={'default' if value is None else f'{value:g}'}"
                        for one, value in order.settings.items()
                    )
                    more = {} if order.settings[name] is None else {
                        "value": " ".join(every), "until": round(until, 3),
                        "reason": order.reason,
                        "why": "all" if order.handler is None else "handler",
                    }  # fmt: skip
            found.append({**halt, **more})
        return found

    def _obeyed(self, order: Order, shot: Mapping[str, Any]) -> _Done:
        rows: Sequence[Mapping[str, Any]] = shot["partitions"]
        handler = self._checked(order)
        if self._run.member is None:
            return self._at_the_start(order)
        if order.action == "stop" and not order.dry_run:
            self._run.stop(order.mode)  # type: ignore[arg-type]  # checked by order_of
            return "done", f"stopping, mode {order.mode}", None, ()
        name = None if handler is None else self._names[handler]
        meant = [
            row
            for row in rows
            if order.topic in (None, row["topic"]) and name in (None, row.get("handler", name))
        ]
        buffered = sum(row["buffered"] for row in meant)
        here = f"{len(meant):,} of its partitions, {buffered:,} records here"
        if order.action == "resume":
            return self._resumed(order, handler, shot["halts"], here)
        until = self._time() + order.for_s
        settings = ", ".join(
            f"{name}={'as declared' if value is None else f'{value:g}'}"
            for name, value in order.settings.items()
        )
        if order.dry_run and order.action == "stop":
            return self._would(order, handler, f"stop, mode {order.mode}: {here}", None)
        if order.dry_run:
            words = [f"{order.action} {what(order)}", settings, here]
            return self._would(order, handler, ": ".join(filter(None, words)), until)
        # A pause or a setting; it replaces an earlier one of the same.
        alike = [
            one
            for one, its in ((one, one.order) for one in self._force)
            if (its.action, its.topic, its.handler) == (order.action, order.topic, order.handler)
            and its.settings.keys() == order.settings.keys()
        ]
        if len(self._force) >= IN_FORCE_MAX and not alike:
            raise ConfigError(f"{IN_FORCE_MAX:,} commands are in force: end some of them first")
        self._force = [one for one in self._force if one not in alike]
        self._force.append(_Force(order, until))
        self._check_sent()
        verb = "set" if order.action == "set" else "paused"
        return "done", f"{verb} {what(order)} until {clock(until)}: {settings or here}", until, ()

    def _at_the_start(self, order: Order) -> _Done:
        """A start that waits can be stopped; there is no engine for any other command."""
        if order.action != "stop":
            raise ConfigError("it is starting: ask again")
        if order.dry_run:
            return "would", "stop its start, which waits (perkey why)", None, ()
        self._run.stop(order.mode)  # type: ignore[arg-type]  # checked by order_of
        return "done", "stopping: it was starting", None, ()

    def _resumed(
        self, order: Order, handler: int | None, halts: Sequence[Mapping[str, Any]], here: str
    ) -> _Done:
        """End pauses, and the outages of handlers whose records wait for a probe."""
        waiting: list[str] = []
        if order.topic is None:
            waits = {one["handler"] for one in halts if one["cause"] in ("outage", "brake")}
            waiting = sorted(waits if order.handler is None else waits & {order.handler})
        paused = [one for one in self._force if one.order.action == "pause"]
        whole = order.topic is None and order.handler is None
        target = (order.topic, order.handler)
        ended = [o for o in paused if whole or (o.order.topic, o.order.handler) == target]
        left = ", ".join(what(one.order) for one in paused if one not in ended)
        if not ended and not waiting:
            more = f"; in force: {left}" if left else ""
            return "unchanged", f"no command paused {what(order)}{more}", None, ()
        if order.dry_run:
            return self._would(order, handler, f"resume {what(order)}: {here}", None)
        self._force = [one for one in self._force if one not in ended]
        self._check_sent()
        numbers, member = list(map(self._names.index, waiting)), self._run.member
        if numbers and member is not None:
            member.door.call(lambda engine, at: engine.end_outages(at, numbers))
        more = f"; still paused: {left}" if left else ""
        return "done", f"resumed {what(order)}: {here}{more}", None, ()

    def _would(self, order: Order, handler: int | None, words: str, until: float | None) -> _Done:
        """The answer of a dry run: with the first affected records."""
        assert self._run.member is not None
        topic = order.topic
        try:
            first = self._run.member.door.call(
                lambda engine, now: first_of(engine, topic, handler, NAMED_MAX)
            )
        except InternalError:
            raise ConfigError("the engine has failed: this run is ending") from None
        rows = would_rows(first)
        named = "; ".join(
            f"{one['topic']}:{one['partition']}:{one['offset']} {one['detail']}" for one in rows
        )
        return "would", f"{words}; first: {named}" if named else words, until, rows

    def _checked(self, order: Order) -> int | None:
        """The number of the handler; ConfigError if this app has no such handler or topic."""
        if order.topic is not None:
            self._routes.options_of(order.topic)
        number = None
        if order.handler is not None:
            if order.handler not in self._names:
                names = ", ".join(self._names)
                raise ConfigError(f"handler {order.handler} does not exist: one of {names}")
            number = self._names.index(order.handler)
        wanted = order.settings.get("concurrency")
        if wanted is not None and self._run.member is not None:
            plans = self._run.member.config.plans
            for plan in plans if number is None else [plans[number]]:
                most, why = _calls_most(plan)
                if wanted > most:
                    name = plan.spec.name
                    raise ConfigError(
                        f"concurrency={wanted:g}: handler {name} {why}: give {most} or less"
                    )
        return number

    def _check_sent(self) -> None:
        if not self._send():
            raise ConfigError("the engine has failed: this run is ending")

    def _send(self) -> bool:
        """Pass all commands in force to the engine; whether it accepted them."""
        now, member = self._time(), self._run.member
        self._force = [one for one in self._force if one.until > now]
        pauses, settings = [], dict[int, dict[str, Any]]()
        for order, until in self._force:
            index = None if order.handler is None else self._names.index(order.handler)
            if order.action == "pause":
                pauses.append(Pause(order.topic, index, round(until, 3), order.reason))
                continue
            for handler in range(len(self._names)) if index is None else [index]:
                settings.setdefault(handler, {}).update(order.settings)
        steering = Steering(
            tuple(pauses), {index: Tuning(**set_) for index, set_ in settings.items()}
        )
        if steering == self._sent or member is None:
            return True
        for number, plan in enumerate(member.config.plans):  # before the engine grants more
            tuned = steering.tunings.get(number)
            plan.set_calls = (tuned.concurrency if tuned else 0) or 0
        try:
            member.door.call(lambda engine, at: engine.steer(at, steering))
        except InternalError:
            return False
        self._sent = steering
        return True


def _calls_most(plan: HandlerPlan) -> tuple[int, str]:
    """How many concurrent calls a command may set, and the reason for the limit."""
    declared = plan.spec.concurrency
    if plan.kind == "processes":
        return declared, f"has {declared} worker processes until a restart"
    if plan.ledger is not None:
        return declared, f"has a ledger with connections for {declared} calls until a restart"
    limit = CONCURRENCY_MAX if plan.kind == "async" else THREADS_MAX
    return limit, f"runs at most {limit:,} calls ({plan.kind})"


assert set(SETTINGS) == set(Tuning._fields)  # every setting exists in the core
