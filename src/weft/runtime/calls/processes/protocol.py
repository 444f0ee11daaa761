"""Messages on the pipe between a member and its worker process, pickled with protocol 5.

Down: `Job`, `Drop`, `Warn`. Up: `Opened`, then one `Reply` for each record, sent before the next
record starts, so that a dying worker takes no result with it that was already there.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from weft.errors import ConfigError
from weft.kafka.ports import OutMessage
from weft.ledger.policy import SqlLedger
from weft.policies import Retry
from weft.runtime.calls.tracing import SpanIds
from weft.types import ErrorInfo, Record

#: the shared number while no record runs and no reply is in flight
IDLE = -1
#: the shared time of a call that has ended, while its reply is in flight
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
    #: what of its log lines the parent shows
    log_level: int = logging.INFO
    #: `Hold.on`
    away: tuple[type[BaseException], ...] = ()
    #: the handler has a budget
    budget: bool = False


def by_value(dumps: Callable[[Any], bytes]) -> None:
    """Send specs as `dumps` writes them: their functions have no module in this process.

    So it is where apps travel by value, on a fleet's executors.
    """
    ForkingPickler.register(WorkerSpec, lambda spec: (pickle.loads, (dumps(spec),)))
    _BY_VALUE.append(dumps)


_BY_VALUE: list[Any] = []


def found_by_name() -> bool:
    """Workers import the module of what they are to call."""
    return not _BY_VALUE


def check_spawnable(function: Any, lifespan: Any, name: str) -> None:
    """Raises ConfigError for what a new process could not import."""
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
    #: send returned values to the parent: results have a reader
    returned: bool
    #: topic ids a ledger needs, by topic
    topic_ids: dict[str, str]
    #: when it was sent (door.since_boot): what has waited too long by then does not begin
    sent_at: float
    #: spans of the attempts before, by number; see calls/tracing.py
    failed: dict[int, SpanIds] | None = None
    #: policies that `on_exhausted` returned for single records, by number
    retries: dict[int, Retry] | None = None


class Drop(NamedTuple):
    """Give these back if they have not started."""

    numbers: list[int]


class Warn(NamedTuple):
    """Notify running batches that they are being cancelled."""


class AskStack(NamedTuple):
    """Asks where the call is that runs."""


class StackIs(NamedTuple):
    """Where it is, the outermost line first; nothing where none runs."""

    lines: list[str]


class Opened(NamedTuple):
    """The module is imported and the lifespan open; or why not."""

    error: ErrorInfo | None
    #: it makes spans of its calls
    traced: bool = False


class LogLine(NamedTuple):
    """A log record of the worker, for the parent's handlers."""

    fields: dict[str, Any]


class Cost(NamedTuple):
    """What the call of a record costs (`record.charge`)."""

    number: int
    cost: float
    #: what the call reported before
    before: float | None


class Reply(NamedTuple):
    """What became of one record."""

    number: int
    #: "done", "failed", "given_back", or "acked" for one of a batch that still runs
    outcome: str
    outputs: list[OutMessage] | None = None
    error: ErrorInfo | None = None
    final: bool = False
    delay_s: float | None = None
    away: bool = False
    budget_s: float | None = None
    returned: Any = None
    began: float = 0.0
    ended: float = 0.0
    #: 1 for a record that a ledger knew already
    repeats: int = 0
    #: of a failed attempt, where there are spans
    span: SpanIds | None = None


class BatchReply(NamedTuple):
    """A batch call has ended; `replies` has those that were not acknowledged before."""

    #: number of its first record
    number: int
    replies: list[Reply]
    #: it failed as one, and is tried again in halves
    whole: bool
    #: outputs that all its records share
    shared: list[OutMessage] | None = None
    #: records a ledger knew already
    repeats: int = 0
    #: the batch handler's value, for the readers of results
    returned: Any = None
    began: float = 0.0
    ended: float = 0.0


LINE_CHARS_MAX = 16_000


class _ToParent(logging.Handler):
    """Sends records up the pipe, formatted as far as only this process can."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        fields = {name: _plain(value) for name, value in vars(record).items()}
        fields |= {"msg": _plain(record.getMessage()), "args": None, "exc_info": None}
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            fields["exc_text"] = trace[:LINE_CHARS_MAX]
        self._send(LogLine(fields))


def _plain(value: Any) -> Any:
    """What can be pickled and is not endless, whatever the user gave as `extra=`."""
    if isinstance(value, str):
        return value[:LINE_CHARS_MAX]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)[:LINE_CHARS_MAX]


def tell_parent(send: Callable[[Any], None], level: int) -> None:
    """In the worker: from now on the parent writes the log."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_ToParent(send))
        root.setLevel(level)


def write_log_line(line: LogLine) -> None:
    """In the parent: as if it had been logged here."""
    record = logging.makeLogRecord(line.fields)
    log = logging.getLogger(record.name)
    if log.isEnabledFor(record.levelno):
        log.handle(record)
