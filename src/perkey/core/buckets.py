"""Token buckets: tokens arrive at a rate and pay for starts. For budgets and rate limits."""

from __future__ import annotations

BURST_S = 0.1  # a bucket saves up at most the tokens of this time
ROUNDING = 1e-9


class Bucket:
    """Tokens arrive at a rate and pay for starts; a few are saved up."""

    __slots__ = ("at", "per_s", "tokens")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.tokens = 1.0
        #: time of the last refill
        self.at: float | None = None

    @property
    def most(self) -> float:
        """The most tokens it saves up; at least one."""
        return max(1.0, self.per_s * BURST_S)

    def refill(self, now: float) -> None:
        """Add the tokens of the time that has passed."""
        if self.at is not None:
            self.tokens += (now - self.at) * self.per_s
        self.at = now
        self.tokens = min(self.tokens, self.most)

    def starts(self) -> int:
        """How many starts at one token each it can pay for."""
        return int(self.tokens + ROUNDING)

    def pays(self, cost: float) -> bool:
        """Whether it can pay this cost. A cost above `most` is paid when it is full, as a debt."""
        return self.tokens + ROUNDING >= min(cost, self.most)

    def due(self, cost: float = 1.0) -> float | None:
        """When it can pay this cost; None if it can now, or never will."""
        short = min(cost, self.most) - self.tokens
        if self.at is None or short <= ROUNDING or self.per_s <= 0:
            return None
        return self.at + short / self.per_s

    def pay(self, cost: float) -> None:
        """A call starts."""
        self.tokens -= cost

    def settle(self, more: float) -> None:
        """A call has cost more than was paid, or less."""
        self.tokens -= more
