"""What an executor needs to know of the handler it calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.core.spec import HandlerSpec
from weft.core.states import RUNNING
from weft.core.work import Work
from weft.policies import Retry
from weft.runtime.latency import Latency

if TYPE_CHECKING:
    from weft.ledger.handling import LedgerRun


class Call(NamedTuple):
    """When a reported call ran and what it returned; kept only while someone reads results."""

    started_at: float
    finished_at: float
    returned: Any


@dataclass(slots=True)
class HandlerPlan:
    """One handler as the runtime calls it."""

    spec: HandlerSpec
    function: Callable[..., Any]
    decode: Callable[[bytes], Any] | None = None
    output: str | None = None
    prefetch: Callable[..., Any] | None = None
    #: set while the app runs, for a handler with a ledger
    ledger: LedgerRun | None = None
    latency: Latency = field(default_factory=Latency)
    #: calls by record while results are read; None while nobody reads them
    calls: dict[Work, Call] | None = None

    @property
    def retry(self) -> Retry:
        """The retry policy."""
        return self.spec.retry


def call_of(began: float, ended: float, returned: Any) -> Call:
    """Times of the performance counter as UNIX times, with the returned value."""
    now = time.time()
    finished_at = now - (time.perf_counter() - ended)
    return Call(finished_at - (ended - began), finished_at, returned)


def may_call(work: Work, *, at_most_once: bool) -> bool:
    """Whether a record that was handed over may still be called.

    Its partition may have gone, or may be going, since then: another member is to handle it. With
    at_most_once it is marked as started, so nobody else would.
    """
    return work.state == RUNNING and (work.partition.startable or at_most_once)
