"""`app.snapshot()`: the engine's view, with rates and latencies, as JSON-able data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from weft.core.states import InternalError
from weft.runtime.member import Member
from weft.runtime.plan import HandlerPlan
from weft.types import RunReport


class RunCounts:
    """Remembers counts of a moment ago, so that a snapshot can tell rates."""

    WINDOW_S = 1.0

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._at = time.monotonic()
        self._rates: dict[str, float] = {}

    def rates(self, done: dict[str, int]) -> dict[str, float]:
        """Records a second since about a second ago, by handler."""
        now = time.monotonic()
        elapsed_s = now - self._at
        if elapsed_s >= self.WINDOW_S or not self._rates:
            span_s = max(elapsed_s, 1e-6)
            self._rates = {n: (v - self._before.get(n, 0)) / span_s for n, v in done.items()}
            self._before, self._at = dict(done), now
        return self._rates


def snapshot_of(
    member: Member | None, plans: Sequence[HandlerPlan], counts: RunCounts, *, over: bool
) -> dict[str, Any]:
    """The contract's snapshot."""
    if member is None:
        return {"state": "failed" if over else "starting", "partitions": [], "handlers": {}}
    try:
        shot = member.door.call(lambda engine, _: engine.snapshot())
    except InternalError:
        return {"state": "failed", "partitions": [], "handlers": {}}
    rows: dict[str, dict[str, Any]] = shot["handlers"]
    rates = counts.rates({name: row["done"] for name, row in rows.items()})
    for plan in plans:
        row = rows[plan.spec.name]
        row["rate_per_s"] = round(rates.get(plan.spec.name, 0.0), 1)
        row["latency_ms"] = plan.latency.percentiles_ms()
        if plan.ledger is not None:
            row["repeats"] = plan.ledger.repeats
    return {
        "state": state_of(member, over=over),
        **shot,
        "callback_errors": member.callbacks.errors,
        "poll_gap_max_s": round(member.poll_gap_max_s, 4),
    }


def under_way(member: Member) -> int:
    """Calls and outputs that only time of their own will end; none once the member has ended."""
    if member.ended.is_set() or member.door.broken is not None:
        return 0
    return member.door.call(lambda engine, _: engine.under_way())


def state_of(member: Member, *, over: bool) -> str:
    """One word for the run."""
    if over:
        return "failed" if member.fatal is not None else "ended"
    if member.leaving:
        return "leaving"
    if member.engine.state.stop_mode is not None or member.fatal is not None:
        return "stopping"
    if None in member.engine.state.paused:
        return "paused"
    return "running" if member.partitions else "waiting"


def report_of(member: Member, exit_code: int, reason: str, seconds: float) -> RunReport:
    """How the run ended, with its counts over all handlers."""
    handlers = member.engine.state.handlers
    return RunReport(
        exit_code=exit_code,
        reason=reason,
        done=sum(handler.done for handler in handlers),
        failed_attempts=sum(handler.failures for handler in handlers),
        retried=sum(handler.retries for handler in handlers),
        dead_lettered=sum(handler.dead_lettered for handler in handlers),
        skipped=sum(handler.skipped for handler in handlers),
        parked=sum(handler.parked for handler in handlers),
        superseded=sum(handler.superseded for handler in handlers),
        seconds=seconds,
        error=None if member.fatal is None else member.fatal.error,
    )
