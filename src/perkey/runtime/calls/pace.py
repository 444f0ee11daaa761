"""How fast the calls of one handler end, and how many are therefore granted ahead.

A call granted ahead is one beyond the concurrency: its executor does not run it until another one
has ended, but has it at hand then.
"""

from __future__ import annotations

import time

from perkey.core.events import AT_MOST_ONCE, HandlerSpec
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan

#: calls are granted ahead once this many end per second, and this many of each slot, within
#: MEASURED_S; and for as long as in each PACE_S this many end per second, and KEPT of those of each
#: slot: calls of up to 100 ms. Granted calls are returned once calls get slower
PACE_S, PACE_PER_S, PACE_CALLS = 0.05, 5_000.0, 2
MEASURED_S, KEPT = 0.2, 0.25
#: granted ahead: as many as end in this time, up to the next power of two: at least one round of
#: the polling thread, so that it reports nearly all. A grant waits at most twice as long
AHEAD_S, AHEAD_MAX = 0.01, 1024


def may_run_ahead(spec: HandlerSpec) -> bool:
    """Whether calls may be granted beyond the concurrency, without an effect while they wait.

    Not with a time-out: it counts from the grant, so a granted record must be running. Not with
    at_most_once: a granted record is marked, and after a kill at most one per slot may be missing.
    Not with commit_each: after a kill at most one per slot is handled again, and records granted
    ahead may be done. Not with a budget: a granted record is in flight, and its start time counts.
    """
    counts = spec.timeout_s is not None or spec.budget is not None
    return not (counts or spec.commit_each) and spec.delivery != AT_MOST_ONCE


class Pace:
    """Of one handler; used by the polling thread."""

    def __init__(self, plan: HandlerPlan, door: Door) -> None:
        self._plan = plan
        self._door = door
        #: only if a call's end completes the record: commits and transactions have another pace
        self.may_lag = may_run_ahead(plan.spec) and plan.spec.plain
        #: calls granted ahead; read by any thread
        self.ahead = 0
        #: when it was last measured, and how many calls had ended then
        self._looked_at, self._ended = 0.0, 0

    def measure(self, running_max: int) -> bool:
        """Measure now and then, and grant ahead or no longer; whether to return what is granted.

        `running_max`: calls that the executor can run together.
        """
        if not self.may_lag:
            return False
        plan, slots, now = self._plan, self._plan.spec.concurrency, time.perf_counter()
        handler = next(one for one in self._door.engine.handlers if one.spec is plan.spec)
        span_s, ended = now - self._looked_at, handler.done - self._ended
        enough = ended >= PACE_CALLS * slots * (KEPT if self.ahead else 1)
        if span_s < PACE_S if self.ahead else span_s < MEASURED_S and not enough:
            return False
        self._looked_at, self._ended = now, handler.done
        fast = enough and ended >= PACE_PER_S * span_s
        fast = fast and not plan.set_calls and running_max <= slots
        many = int(ended * AHEAD_S / max(span_s, AHEAD_S))
        ahead = min(AHEAD_MAX, 1 << many.bit_length()) if fast else 0
        if ahead == self.ahead:
            return False
        self.ahead = ahead
        self._door.post(lambda engine, now: engine.grant_ahead(now, handler.index, ahead))
        return not fast
