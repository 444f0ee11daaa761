"""Messages on the pipe between a member and its worker process, pickled with protocol 5.

Down: `Job`, alone or `Packed`, `Drop`, `Warn`. Up: `Opened`, then one `Reply` per record, sent
before the next record starts, so that a dying worker loses no finished result.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from perkey.errors import ConfigError
from perkey.kafka.ports import OutMessage
from perkey.ledger.policy import SqlLedger
from perkey.policies import Retry
from perkey.runtime.calls.tracing import SpanIds
from perkey.types import ErrorInfo, Record

#: the shared number while no record runs and no reply is pending
IDLE = -1
#: the shared time of a call that has ended while its reply is pending
ENDED = float("inf")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The settings of a worker, sent once when it is spawned."""

    function: Callable[..., Any]
    lifespan: Callable[..., Any] | None
    key: Any
    value: Any
    output: str | None
    retry: Retry
    ordering: str
    explicit: bool
    group: str
    ledger: SqlLedger | None
    #: the level and loggers that the parent shows
    log_level: int = logging.INFO
    #: `Hold.on`
    away: tuple[type[BaseException], ...] = ()
    #: whether the handler has a budget
    budget: bool = False


def by_value(dumps: Callable[[Any], bytes]) -> None:
    """Send specs as `dumps` writes them, for functions without a module in this process.

    Used where apps are shipped by value: on a fleet's executors.
    """
    ForkingPickler.register(WorkerSpec, lambda spec: (pickle.loads, (dumps(spec),)))
    _BY_VALUE.append(dumps)


_BY_VALUE: list[Any] = []


def found_by_name() -> bool:
    """Whether workers import the module of the functions they call."""
    return not _BY_VALUE


def check_spawnable(function: Any, lifespan: Any, name: str) -> None:
    """Raise ConfigError for functions that a new process could not import."""
    for what, one in ((f"the handler {name}", function), ("the lifespan", lifespan)):
        try:
            pickle.dumps(one)
        except Exception as error:
            raise ConfigError(
                f'executor="processes": {what} cannot be found by a new process: define it at the '
                f"top level of a module ({error})"
            ) from error


class Job(NamedTuple):
    """Records to handle one after another; with `batch` in one call."""

    records: list[tuple[int, Record]]
    batch: bool
    #: also send returned values: results have a reader
    returned: bool
    #: topic ids for a ledger, by topic
    topic_ids: dict[str, str]
    #: when it was sent (door.since_boot): a job that waited too long does not start
    sent_at: float
    #: spans of the previous attempts, by number; see calls/tracing.py
    failed: dict[int, SpanIds] | None = None
    #: policies that `on_exhausted` returned for single records, by number
    retries: dict[int, Retry] | None = None


class Packed(NamedTuple):
    """A job with objects of the user's, which the worker may be unable to unpickle."""

    numbers: list[int]
    job: bytes


class Drop(NamedTuple):
    """Return these records if they have not started."""

    numbers: list[int]


class Warn(NamedTuple):
    """Notify running batches that they are being cancelled."""


class AskStack(NamedTuple):
    """Requests the stack of the running call."""


class StackIs(NamedTuple):
    """The stack, outermost line first; empty if nothing runs."""

    lines: list[str]


class Opened(NamedTuple):
    """The module is imported and the lifespan open; or the error."""

    error: ErrorInfo | None
    #: whether it makes spans of its calls
    traced: bool = False


class LogLine(NamedTuple):
    """A log record of the worker, for the parent's handlers."""

    fields: dict[str, Any]


class Cost(NamedTuple):
    """The cost of a record's call (`record.charge`)."""

    number: int
    cost: float
    #: the cost that the call reported before
    before: float | None


class Unread(NamedTuple):
    """The worker cannot unpickle this job."""

    numbers: list[int]
    error: str


class Reply(NamedTuple):
    """The result of one record."""

    number: int
    #: "done", "failed", "unhandled", or "acked" for one of a batch that still runs
    outcome: str
    outputs: list[OutMessage] | None = None
    error: ErrorInfo | None = None
    final: bool = False
    delay_s: float | None = None
    away: bool = False
    budget_s: float | None = None
    not_now: bool = False
    returned: Any = None
    began: float = 0.0
    ended: float = 0.0
    #: 1 if a ledger knew the record already
    repeats: int = 0
    #: the span of a failed attempt, if there are spans
    span: SpanIds | None = None


class BatchReply(NamedTuple):
    """A batch call has ended; `replies` has the records that were not acknowledged before."""

    #: number of its first record
    number: int
    replies: list[Reply]
    #: it failed as a whole, and is tried again in halves
    whole: bool
    #: outputs that all its records share
    shared: list[OutMessage] | None = None
    #: records a ledger knew already
    repeats: int = 0
    #: the batch handler's value, for readers of results
    returned: Any = None
    began: float = 0.0
    ended: float = 0.0


LINE_CHARS_MAX = 16_000


class _ToParent(logging.Handler):
    """Sends log records up the pipe, formatted as far as only this process can."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {name: _plain(value) for name, value in vars(record).items()}
            fields |= {"msg": _plain(record.getMessage()), "args": None, "exc_info": None}
            if record.exc_info:
                trace = logging.Formatter().formatException(record.exc_info)
                fields["exc_text"] = trace[:LINE_CHARS_MAX]
            self._send(LogLine(fields))
        except Exception:  # a wrong format, or a value's own __str__: no failure of the handler
            self.handleError(record)


def _plain(value: Any) -> Any:
    """A value that can be pickled and is bounded, whatever the user passed as `extra=`."""
    if isinstance(value, str):
        return str(value)[:LINE_CHARS_MAX]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):  # of a subclass, such as an enum: what the parent can read
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)[:LINE_CHARS_MAX]


def log_to_parent(send: Callable[[Any], None], level: int) -> None:
    """In the worker: from now on the parent writes the log."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_ToParent(send))
        root.setLevel(level)


def write_log_line(line: LogLine) -> None:
    """In the parent: log the line as if it came from here."""
    record = logging.makeLogRecord(line.fields)
    log = logging.getLogger(record.name)
    if log.isEnabledFor(record.levelno):
        log.handle(record)
