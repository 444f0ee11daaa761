"""The plain values of Perkey's public interface, all immutable, and the charge of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeGuard

from perkey.errors import ConfigError
from perkey.numeric import is_seconds

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # the default is for type checkers: plain `Record` is a record of anything
    from typing import TypeVar

    T = TypeVar("T")

Headers = tuple[tuple[str, bytes | None], ...]
#: a topic and the number of one of its partitions
TopicPartition = tuple[str, int]
Ordering = Literal["key", "partition", "unordered"]
StopMode = Literal["in_flight", "buffered", "now"]
#: the policy for a committed offset that the log no longer holds
OnLost = Literal["stop", "earliest", "latest"]
DeliveryName = Literal["at_least_once", "at_most_once", "exactly_once"]
OutcomeName = Literal["done", "dead_lettered", "skipped", "parked", "failed", "superseded"]


#: how the message of a record begins whose dead letter the broker refuses
LETTER_REFUSED = "dead letter refused: "
#: type of the error of a refused output -> the fix
OUTPUT_CURES = {
    "UNKNOWN_TOPIC_OR_PART": "create the topic with `perkey topics create`, or correct its name",
    "TOPIC_AUTHORIZATION_FAILED": "give the producer's user the right WRITE on the topic",
    "TOPIC_EXCEPTION": "correct the topic's name",
}
OUTPUT_CURES["_UNKNOWN_TOPIC"] = OUTPUT_CURES["UNKNOWN_TOPIC_OR_PART"]
#: why a partition of a deleted topic is not read
TOPIC_GONE = "its topic does not exist any more"


class ErrorInfo(NamedTuple):
    """An exception as plain strings, which can cross processes and outlive its objects."""

    type: str
    message: str
    traceback: str = ""

    @property
    def line(self) -> str:
        """`type: message`, or only the type if there is no message."""
        return f"{self.type}: {self.message}" if self.message else self.type


class Raised(ErrorInfo):
    """The same with the exception itself, which must not be stored: it keeps its frames alive."""

    raised: BaseException | None = None


#: limit for one record, by `Budget.cost` or `record.charge`
COST_MAX = 1e9
#: takes the record, the cost of its call, and the cost that the call reported before
Report = Callable[[Any, float, float | None], None]


class Charge:
    """The cost that one call has reported."""

    __slots__ = ("_before", "_report")

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: float | None = None

    def of(self, record: Any, cost: object) -> None:
        """See `Record.charge`."""
        if not is_cost(cost):
            raise ConfigError(
                f"record.charge({cost!r:.40}): give what the call costs in all, a number from 0 to "
                f"{COST_MAX:.0f}"
            )
        before, self._before = self._before, float(cost)
        self._report(record, self._before, before)


#: set in a call of a handler with a budget
CHARGE: ContextVar[Charge | None] = ContextVar("perkey_charge", default=None)


def is_cost(value: object) -> TypeGuard[float]:
    """Whether it is a valid cost of a record."""
    return is_seconds(value) and value <= COST_MAX


class Record(NamedTuple, Generic[T]):
    """One Kafka message, as the handler sees it; `Record[Position]` declares the type of its value.

    `value` is decoded by the app's `value=` option; a tombstone stays None.
    `attempt` counts the calls for this record since this member got it; the first is 1.
    `last_error` is the error of the previous attempt.
    """

    # A tuple, not a dataclass: it is created once per record on the hot path, and tuple.__new__
    # takes a third of the time of a frozen, slotted __init__.
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: T
    headers: Headers = ()
    attempt: int = 1
    last_error: ErrorInfo | None = None
    prefetched: Any = None

    def charge(self, cost: float) -> None:
        """Report the total cost of this call for its handler's budget; the last report counts.

        `cost`: 0 or more, in the units of `Budget.cost`. Raises ConfigError for other values, and
        outside a call of a handler with `budget=`.
        """
        call = CHARGE.get()
        if call is None:
            raise ConfigError(
                "record.charge(): no budget is charged here: give @app.consume(budget=...), and "
                "call it in the handler itself, not in a thread that it starts"
            )
        call.of(self, cost)

    def __repr__(self) -> str:
        # Contents are the user's data and do not belong in logs: only place and size.
        size = len(self.value) if isinstance(self.value, bytes | str) else type(self.value).__name__
        where = f"{self.topic}[{self.partition}]@{self.offset}"
        return f"<Record {where} attempt={self.attempt} value={size}>"


def content_bytes(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> int:
    """The bytes of a record that count in the budget of the buffers."""
    pairs = sum(len(name) + len(content or b"") for name, content in headers)
    return len(key or b"") + len(value or b"") + pairs


class _SameKey:
    """Marks an omitted `key=`: the output gets the key of its record."""

    def __repr__(self) -> str:
        return "<the record's key>"

    def __reduce__(self) -> str:
        return "SAME_KEY"


SAME_KEY: Final = _SameKey()


@dataclass(frozen=True, slots=True)
class Produce:
    """One output of a handler.

    `topic=None` is the handler's `output`; without `key` it is the record's own key, `key=None` is
    a null key. `value` is bytes, str (UTF-8), None (a tombstone) or what JSON can hold.
    """

    value: Any
    topic: str | None = field(default=None, kw_only=True)
    key: bytes | str | _SameKey | None = field(default=SAME_KEY, kw_only=True)
    headers: Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] = field(
        default=(), kw_only=True
    )
    partition: int | None = field(default=None, kw_only=True)


class Sent(NamedTuple):
    """An output that the broker has acknowledged."""

    topic: str
    partition: int
    offset: int
    key: bytes | None


class Result(NamedTuple):
    """The outcome of one record. Times are UNIX seconds; `returned` is the handler's value.

    The record is as the handler saw it, its value decoded; an undecodable one stays bytes.
    """

    record: Record
    outcome: OutcomeName
    attempts: int
    error: ErrorInfo | None
    returned: Any
    outputs: tuple[Sent, ...]
    started_at: float
    finished_at: float


class Committed(NamedTuple):
    """One partition of a commit that the broker has acknowledged.

    `done_beyond` counts the records at and past the frontier that are done.
    """

    topic: str
    partition: int
    frontier: int
    done_beyond: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended: `exit_code` as in the command line, counts over the whole run."""

    exit_code: int
    reason: str
    done: int = 0
    failed_attempts: int = 0
    retried: int = 0
    dead_lettered: int = 0
    skipped: int = 0
    parked: int = 0
    superseded: int = 0
    seconds: float = 0.0
    error: ErrorInfo | None = None

    @property
    def ok(self) -> bool:
        """True if the run ended as requested: exit code 0."""
        return self.exit_code == 0
