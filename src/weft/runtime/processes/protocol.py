"""What crosses the pipe between a member and its worker process, pickled with protocol 5.

Down: `Job`, `Drop`, `Warn`. Up: `Opened`, then one `Reply` for each record, sent before the next
record starts, so that a dying worker takes no result with it that was already there.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from weft.kafka.ports import OutMessage
from weft.ledger.policy import SqlLedger
from weft.policies import Retry
from weft.types import ErrorInfo, Record

#: what the shared number says while no record runs
IDLE = -1


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is told once, when it is spawned."""

    function: Callable[..., Any]
    lifespan: Callable[..., Any] | None
    value: Any
    output: str | None
    retry: Retry
    ordering: str
    explicit: bool
    group: str
    ledger: SqlLedger | None


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


class Job(NamedTuple):
    """Records to handle one after another; with `batch` in one call."""

    records: list[tuple[int, Record]]
    batch: bool
    #: send returned values up: somebody reads results
    returned: bool
    #: topic ids a ledger needs, by topic
    topic_ids: dict[str, str]


class Drop(NamedTuple):
    """Give these back if they have not started."""

    numbers: list[int]


class Warn(NamedTuple):
    """Tell running batches that they are being cancelled."""


class Opened(NamedTuple):
    """The module is imported and the lifespan open; or why not."""

    error: ErrorInfo | None


class Reply(NamedTuple):
    """What became of one record."""

    number: int
    #: "done", "failed", "given_back", or "acked" for one of a batch that still runs
    outcome: str
    outputs: list[OutMessage] | None = None
    error: ErrorInfo | None = None
    final: bool = False
    delay_s: float | None = None
    returned: Any = None
    began: float = 0.0
    ended: float = 0.0
    #: 1 for a record that a ledger knew already
    repeats: int = 0


class BatchReply(NamedTuple):
    """A batch call has ended; `replies` has those that were not acknowledged before."""

    replies: list[Reply]
    #: it failed as one, and is tried again in halves
    whole: bool
    #: outputs that all its records share
    shared: list[OutMessage] | None = None
    #: records a ledger knew already
    repeats: int = 0
