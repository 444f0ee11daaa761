"""What the engine gets once: the rules of each handler and the limits of the member."""

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
    #: calls granted beyond `concurrency`, to keep a pipe to a worker process full
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
        """Whether calls may be granted beyond the concurrency: a grant that waits means nothing.

        Not with a time-out: it counts from the grant, so a granted record must be running. Not with
        at_most_once: a granted record is marked, and after a kill at most one a slot may be
        missing. Not with commit_each: after a kill at most one a slot is handled again, and what
        was granted ahead may be done. Not with a budget: a granted record is in flight, and the
        time that it starts counts.
        """
        counts = self.timeout_s is not None or self.budget is not None
        return not (counts or self.commit_each) and self.delivery != AT_MOST_ONCE


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one member; the engine never holds or sends more."""

    buffer_records: int = 50_000
    buffer_bytes: int = 128 * 2**20
    commit: Commit = field(default_factory=Commit)
    #: no answer to a commit for so long: it is in doubt and the committed value is read
    commit_answer_s: float = 5.0
    #: how soon a commit that was refused for the moment is sent again
    commit_retry_s: float = 0.2
    #: outputs that go into one transaction at most; less while transactions run out of time
    transaction_bytes: int = 8 * 2**20
    #: parked and held lanes keep offsets, not bytes: the runtime answers `effects.Refetch`
    forget_parked: bool = False
    #: what the broker stores of commit metadata, in characters (offset.metadata.max.bytes)
    map_chars: int = 4096
