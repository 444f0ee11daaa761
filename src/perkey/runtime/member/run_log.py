"""Log lines of failures: limited in number, with counts of omitted ones, and summed up by kind.

Inside the door failures are only counted and stored; the watching thread writes the lines, as it
may wait for the reader of the log.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from perkey.account.shown import shown_key, shown_text
from perkey.core import effects as fx
from perkey.core.work import Work, last_frame
from perkey.errors import RemoteError
from perkey.kafka.clientlog import Sparse
from perkey.kafka.ports import Polled
from perkey.runtime.logs import traced
from perkey.runtime.member.group_membership import Callbacks
from perkey.types import ErrorInfo, Raised, TopicPartition

_log = logging.getLogger("perkey")

T = TypeVar("T")

ALIKE_EVERY_S = 10.0
SUMMARY_EVERY_S = 60.0
#: distinct kinds of failures; a handler whose errors are all different counts as one kind
KINDS_MAX = 200
#: lines that wait for the watching thread; more than any normal run produces
LINES_MAX = 1_000
#: exceptions kept for the line of their record's end: they keep their frames alive
RAISED_MAX = 100
#: waiting calls of `on_error`; further ones are dropped and counted
CALLS_MAX = 1_000
DRAIN_SHOWN_MAX = 10

_GIVEN_UP = {
    "parked": "record parked",
    "dead_lettered": "record dead-lettered",
    "skipped": "record skipped",
}


#: instead of a traceback that the line of the last attempt has
ABOVE = "(traceback: at its last attempt, above)"


class Line(NamedTuple):
    """One line for the log."""

    level: str
    what: str
    fields: dict[str, Any]
    traceback: str = ""
    error: BaseException | None = None


class Alike:
    """Lines of one kind: one per interval is logged, the others are counted."""

    __slots__ = ("at", "fields", "left_out")

    def __init__(self, at: float, fields: dict[str, Any]) -> None:
        self.at = at
        #: the fields that they have in common
        self.fields = fields
        self.left_out = 0


class RunLog:
    """Collects the log lines of one run."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        on_error: Callable[..., Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        # Not a default argument: that would be bound at import, and be real in the simulator, too.
        self._clock = clock = clock or time.monotonic
        self._on_error, self._callbacks = on_error, callbacks
        self._not_called, self._sparse = 0, Sparse(clock=clock)
        #: the last exception of records that failed, oldest first
        self._raised: dict[Work, BaseException] = {}
        #: tracebacks of the failed attempts that have a line, oldest first
        self._traced: dict[Work, str] = {}
        #: since when no broker has answered; None while one does, as far as known
        self.broker_lost_at: float | None = None
        self.broker_seen_at = clock()
        #: why the brokers refuse the login; None while they do not
        self.refused: str | None = None
        #: when the group's coordinator last failed, and how; None from the next stored commit on
        self.coordinator_lost: tuple[float, str] | None = None
        #: when a connection to any broker last failed, and how
        self.connection_lost: tuple[float, str] | None = None
        #: partitions stuck before the end of their log -> the last stable offset; replaced as a
        #: whole by the watching thread, any thread reads it
        self.stable_ends: Mapping[TopicPartition, int] = {}
        #: when a broker answered again after none had
        self.broker_back_at = float("-inf")
        self._lines: deque[Line] = deque()
        #: lines dropped because LINES_MAX were waiting
        self._left_out = 0
        self._failures: dict[Hashable, Alike] = {}
        self._given_up: dict[Hashable, Alike] = {}
        self.troubles = Troubles()

    def received(self, polled: Polled) -> None:
        """Update the time of the last broker contact: records and stored commits prove it.

        A failed commit proves nothing: librdkafka reports failures for unreachable brokers.
        """
        stored = any(commit.verdict == "stored" for commit in polled.commits)
        if polled.batches or polled.ends or stored:
            self.broker_seen(self._clock())
        if polled.connection:
            self.connection_lost = self._clock(), polled.connection
        if polled.coordinator:
            self.coordinator_lost = self._clock(), polled.coordinator
        elif stored:
            self.coordinator_lost = None

    def broker_seen(self, at: float) -> None:
        """A broker has answered."""
        if self.broker_lost_at is not None:
            self.broker_back_at = at
        self.broker_seen_at, self.broker_lost_at, self.refused = at, None, None

    def line(self, level: str, what: str, *, traceback: str = "", **fields: Any) -> None:
        """Queue a log line. Any thread, also inside the door."""
        self._add(Line(level, what, fields, traceback))

    def _add(self, line: Line) -> None:
        if len(self._lines) < LINES_MAX:
            self._lines.append(line)
        else:
            self._left_out += 1

    def drain_timed_out(
        self, seconds: float, left: Sequence[Work], now: float, kinds: Sequence[str]
    ) -> None:
        """A stop did not wait any longer for these records; `kinds`: each handler's executor."""
        shown = [f"{w.partition.topic}[{w.partition.number}]@{w.record.offset}" for w in left]
        self.line(
            "warning",
            "drain timed out",
            seconds=seconds,
            running=len(left),
            records=" ".join(shown[:DRAIN_SHOWN_MAX]),
            next=_after_drain(left, now, kinds),
        )

    # -- inside the door ---------------------------------------------------------------------------

    def trouble(self, effect: fx.Troubled) -> None:
        """An attempt failed, or a record was given up."""
        known = self._raised.pop(effect.work, None)
        raised = effect.error.raised if isinstance(effect.error, Raised) else None
        if effect.outcome == "failed" and raised is not None:
            _keep(self._raised, effect.work, raised)
        found = raised or known
        # The exception, if it is still known here. A refused dead letter is another error than the
        # exception of its record.
        if found is None or type(found).__name__ != effect.error.type:
            found = RemoteError(*effect.error)
        effect = effect._replace(error=ErrorInfo(*effect.error))  # stored without frames
        self.troubles.note(effect)
        if self.troubles.is_first_of_none(effect):
            handler = effect.work.partition.handler.name
            self.line(
                "warning",
                "every attempt has failed so far",
                handler=handler,
                attempts=FAILING_MIN,
                error=_text(effect.error),
                next=f"fix the error; `perkey pause --handler {handler} --reason TEXT` keeps the "
                "attempts that remain",
            )
        if effect.outcome == "failed":
            self._failed(effect, found)
        else:
            self._gave_up(effect, found)
        if self._on_error is not None and self._callbacks is not None:
            # The user's `on_error`, on the callbacks' thread.
            if self._callbacks.waiting < CALLS_MAX:
                self._callbacks.call(
                    self._on_error, effect.record, found, effect.attempts, effect.outcome
                )
                return
            self._not_called += 1
            if self._sparse.left_out() is not None:
                self.line(
                    "warning",
                    "on_error is too slow, calls are dropped",
                    left_out_so_far=self._not_called,
                    waiting=CALLS_MAX,
                )

    def _failed(self, effect: fx.Troubled, raised: BaseException) -> None:
        """Log a failed attempt: one per ten seconds for each handler, error type and place."""
        error, handler = effect.error, effect.work.partition.handler.name
        kind: Hashable = (handler, error.type, last_frame(error.traceback))
        now = self._clock()
        alike = self._failures.get(kind)
        if alike is None:
            if len(self._failures) >= KINDS_MAX:
                kind = handler
            alike = self._failures.get(kind)
        if alike is not None and now - alike.at < ALIKE_EVERY_S:
            alike.left_out += 1
            return
        left_out = {"left_out": alike.left_out} if alike is not None and alike.left_out else {}
        common = {"handler": handler, "error_type": error.type}
        self._failures[kind] = Alike(now, common)
        fields = {**_where(effect), "attempt": effect.attempts, "error": _text(error), **left_out}
        self._add(Line("warning", "attempt failed", fields, error.traceback, raised))
        _keep(self._traced, effect.work, error.traceback)

    def _gave_up(self, effect: fx.Troubled, raised: BaseException) -> None:
        """Log the first dead letter, skip or park per handler and error type; sum up the others."""
        error, handler = effect.error, effect.work.partition.handler.name
        above = error.traceback and self._traced.pop(effect.work, "") == error.traceback
        kind: Hashable = (handler, effect.outcome, error.type)
        if kind not in self._given_up and len(self._given_up) >= KINDS_MAX:
            kind = (handler, effect.outcome)
        alike = self._given_up.get(kind)
        if alike is not None:
            alike.left_out += 1
            return
        common = {"handler": handler, "outcome": effect.outcome, "error_type": error.type}
        self._given_up[kind] = Alike(self._clock(), common)
        fields = {**_where(effect), "attempts": effect.attempts, "error": _text(error)}
        message = _GIVEN_UP[effect.outcome]
        # Never empty: a formatter would print the exception, unescaped.
        trace = ABOVE if above else error.traceback or error.line
        self._add(Line("error", message, fields, trace, raised))

    # -- on the watching thread --------------------------------------------------------------------

    def write(self, *, last: bool = False) -> int:
        """Write the queued lines and the sums that are due, at the end all; returns how many."""
        now = self._clock()
        for alike in list(self._given_up.values()):
            if alike.left_out and (last or now - alike.at >= SUMMARY_EVERY_S):
                count, alike.left_out, alike.at = alike.left_out, 0, now
                self.line("warning", "more records given up", **alike.fields, count=count)
        for alike in list(self._failures.values()) if last else ():
            if alike.left_out:
                count, alike.left_out = alike.left_out, 0
                self.line("warning", "more attempts failed", **alike.fields, left_out=count)
        lines = len(self._lines)
        while self._lines:
            line = self._lines.popleft()
            traced(_log, line.level, line.what, line.fields, line.traceback, line.error)
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._add(Line("warning", "log lines were left out", {"count": count}, ""))
        return lines


def _after_drain(left: Sequence[Work], now: float, kinds: Sequence[str]) -> str:
    """What to do about calls that outlast the drain."""
    if not left:
        return (
            "no call runs: outputs or a commit were not acknowledged (see the lines before), "
            "or app.results() is not read"
        )
    again = "these are handled again after the next start: "
    handlers = [work.partition.handler for work in left]
    for work, handler in zip(left, handlers, strict=True):
        kind, limit_s = kinds[handler.index], handler.timeout_s
        if kind == "threads":
            return (
                f"{again}a call on a thread cannot be cancelled: set a time-out on what it waits "
                "for, or raise drain_timeout_s"
            )
        if kind == "async" and limit_s is not None and now - work.since >= limit_s:
            return (
                f"{again}a call of {handler.name} has run past timeout_s={limit_s:g} and has not "
                "ended when cancelled: let asyncio.CancelledError through"
            )
    if any(handler.timeout_s is None for handler in handlers):
        return f"{again}raise drain_timeout_s, or set timeout_s on the handler"
    longest_s = max(handler.timeout_s or 0.0 for handler in handlers)
    return f"{again}raise drain_timeout_s above timeout_s={longest_s:g}"


def _keep(kept: dict[Work, T], work: Work, value: T) -> None:
    """Store this for the record; only the latest entries are kept."""
    while len(kept) >= RAISED_MAX:
        del kept[next(iter(kept))]
    kept[work] = value


def _where(effect: fx.Troubled) -> dict[str, Any]:
    work = effect.work
    return {
        "handler": work.partition.handler.name,
        "topic": work.partition.topic,
        "partition": work.partition.number,
        "offset": work.record.offset,
    }


def _text(error: ErrorInfo) -> str:
    return shown_text(error.line)


#: so many attempts in a row, over so many seconds, and no success: then every attempt fails
FAILING_MIN, FAILING_S = 10, 1.0
#: distinct kinds; further ones are counted as one
KINDS_SHOWN_MAX = 50
OTHERS = "(other types)"


class Kind:
    """Failures of one handler with one type of error."""

    __slots__ = ("attempt", "counts", "error", "first_at", "last_at", "work")

    def __init__(self, at: float) -> None:
        self.first_at = self.last_at = at
        self.counts = {"failed": 0, "parked": 0, "dead_lettered": 0, "skipped": 0}
        self.attempt = 0
        self.error: ErrorInfo | None = None
        self.work: tuple[str, int, int, bytes | None] | None = None

    def note(self, effect: fx.Troubled, at: float) -> None:
        """Count one more failure, which becomes the example."""
        self.counts[effect.outcome] += 1
        self.last_at, self.attempt, self.error = at, effect.attempts, effect.error
        # Not the record: this would keep its value in memory.
        record = effect.work.record
        self.work = record.topic, record.partition, record.offset, record.key


class InARow(NamedTuple):
    """Attempts of one handler that have failed since its last success."""

    #: records that were done when the first of them failed: no success as long as no more are
    done: int
    failed: int
    since: float
    error: ErrorInfo


class Troubles:
    """Failures by handler and type of error, with the latest one as an example."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._in_a_row: dict[str, InARow] = {}

    def failing(self, handlers: Mapping[str, Mapping[str, Any]]) -> dict[str, InARow]:
        """The handlers, given as in a snapshot, of which many attempts failed and none succeeded.

        Not right away: a success may still wait for its transaction.
        """
        late = time.time() - FAILING_S
        return {
            name: streak
            for name, streak in list(self._in_a_row.items())
            if streak.failed >= FAILING_MIN
            and streak.since <= late
            and streak.done == handlers[name]["done"]
        }

    def note(self, effect: fx.Troubled) -> None:
        """Count a failed attempt, or a record that was given up. Inside the door."""
        handler, at = effect.work.partition.handler.name, time.time()
        if effect.outcome == "failed":
            done, error = effect.work.partition.handler.done, effect.error
            streak = self._in_a_row.get(handler)
            if streak is None or streak.done != done:
                streak = InARow(done, 0, at, error)
            self._in_a_row[handler] = streak._replace(failed=streak.failed + 1, error=error)
        name = (handler, effect.error.type)
        if name not in self._kinds and len(self._kinds) >= KINDS_SHOWN_MAX:
            name = (handler, OTHERS)
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind(at)
        kind.note(effect, at)

    def is_first_of_none(self, effect: fx.Troubled) -> bool:
        """Whether just now FAILING_MIN attempts of its handler have failed, and none succeeded."""
        handler = effect.work.partition.handler
        streak = self._in_a_row.get(handler.name)
        failed = effect.outcome == "failed" and streak is not None and streak.failed == FAILING_MIN
        return failed and not handler.done

    def rows(self) -> list[dict[str, Any]]:
        """JSON-able rows, the latest failure first. Thread-safe."""
        kinds = sorted(self._kinds.items(), key=lambda one: one[1].last_at, reverse=True)
        rows = []
        for (handler, error), kind in kinds:
            counts, last = kind.counts, kind.error or ErrorInfo("", "")
            topic, partition, offset, key = kind.work or ("", 0, 0, None)
            lines = last.traceback.splitlines()
            row = {
                "handler": handler,
                "type": shown_text(error, 100),
                "attempts": counts["failed"],
                "parked": counts["parked"],
                "dead_lettered": counts["dead_lettered"],
                "skipped": counts["skipped"],
                "first_at": round(kind.first_at, 3),
                "last_at": round(kind.last_at, 3),
                "example": {
                    "topic": topic,
                    "partition": partition,
                    "offset": offset,
                    "key": shown_key(key),
                    "attempt": kind.attempt,
                    "message": shown_text(last.message),
                    "traceback": "\n".join(shown_text(line) for line in lines),
                },
            }
            rows.append(row)
        return rows
