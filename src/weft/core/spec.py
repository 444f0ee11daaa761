"""The engine's settings: the rules of each handler and the limits of the member."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from weft.policies import Batch, Brake, Budget, Commit, Hold, OnExhausted, Park, Retry
from weft.types import DeliveryName, Ordering

ALL_STARTS_PER_S = float("inf")

# Orderings and deliveries are compared once per record: short strings, interned by Python.
KEY: Final = "key"
PARTITION: Final = "partition"
UNORDERED: Final = "unordered"
AT_LEAST_ONCE: Final = "at_least_once"
AT_MOST_ONCE: Final = "at_most_once"
EXACTLY_ONCE: Final = "exactly_once"


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """The rules of one handler, as the engine needs them."""

    name: str
    ordering: Ordering = KEY
    concurrency: int = 100
    #: calls granted beyond `concurrency`, to keep the pipes to worker processes full
    ahead: int = 0
    retry: Retry = field(default_factory=Retry)
    on_exhausted: OnExhausted = field(default_factory=Park)
    hold: Hold | None = None
    brake: Brake | None = None
    budget: Budget | None = None
    timeout_s: float | None = None
    delivery: DeliveryName = AT_LEAST_ONCE
    commit_each: bool = False
    rate_limit_per_s: float = ALL_STARTS_PER_S
    batch: Batch | None = None

    @property
    def exact(self) -> bool:
        """Outputs and offsets go into transactions."""
        return self.delivery == EXACTLY_ONCE

    @property
    def plain(self) -> bool:
        """A record is done as soon as its call returns and has nothing to send."""
        return self.delivery == AT_LEAST_ONCE and not self.commit_each

    @property
    def may_run_ahead(self) -> bool:
        """Whether calls may be granted beyond the concurrency, without an effect while they wait.

        Not with a time-out: it counts from the grant, so a granted record must be running. Not with
        at_most_once: a granted record is marked, and after a kill at most one per slot may be
        missing. Not with commit_each: after a kill at most one per slot is handled again, and
        records granted ahead may be done. Not with a budget: a granted record is in flight, and its
        start time counts.
        """
        counts = self.timeout_s is not None or self.budget is not None
        return not (counts or self.commit_each) and self.delivery != AT_MOST_ONCE


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one member; the engine never holds or sends more."""

    buffer_records: int = 50_000
    buffer_bytes: int = 128 * 2**20
    commit: Commit = field(default_factory=Commit)
    #: seconds without an answer after which a commit is in doubt and the stored value is read
    commit_answer_s: float = 5.0
    #: delay before a commit that was temporarily refused is sent again
    commit_retry_s: float = 0.2
    #: most outputs in one transaction; less while transactions time out
    transaction_bytes: int = 8 * 2**20
    #: parked and held lanes keep offsets, not bytes: the runtime answers `effects.Refetch`
    forget_parked: bool = False
    #: what the broker stores of commit metadata, in characters (offset.metadata.max.bytes)
    map_chars: int = 4096
