"""Time-outs of calls: each counts from when its call starts, and its executor applies it.

An executor keeps the calls that run, in the order of their starts. All of a handler have the same
`timeout_s`, so the oldest is due first. The polling thread looks at them in its ticks
(`Door.tick`): no timer per call, and a handler without a time-out notes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from perkey.core.scheduling import Handler
from perkey.core.states import RUNNING
from perkey.core.work import Call, Work
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan

NEVER = float("inf")
#: every call has been overdue for so many time-outs: nothing more will start, and the run ends
HUNG_LIMITS = 10


class AttemptTimeout(TimeoutError):
    """The attempt ran longer than `timeout_s`."""


def handler_of(plan: HandlerPlan, door: Door) -> Handler:
    """The handler of this plan in the member's engine."""
    return next(one for one in door.engine.handlers if one.name == plan.spec.name)


T = TypeVar("T")


class Deadlines(Generic[T]):
    """The calls of one handler that run in this process."""

    def __init__(self, plan: HandlerPlan, door: Door, end: Callable[[T], None]) -> None:
        """`end` is called for each call past its time-out, inside the door: it may not wait."""
        self.handler = handler_of(plan, door)
        self._door = door
        self._end = end
        #: calls in time -> their start on the engine's clock, in that order. Any thread adds and
        #: removes its own
        self._running: dict[T, float] = {}
        #: calls past their time-out that run on -> since when
        self.overdue: dict[T, float] = {}
        self.handler.overdue = self.overdue
        door.deadlines.append(self)

    # -- from the thread that calls ----------------------------------------------------------------

    def began(self, call: T) -> None:
        """This call starts now. Only for a handler with a time-out."""
        self._running[call] = self._door.clock()

    def ended(self, call: T) -> bool:
        """The call is over; whether it was past its time-out."""
        in_time = self._running.pop(call, None) is not None
        # `expire` may be between its two steps: see there.
        return self.overdue.pop(call, None) is not None and not in_time

    # -- inside the door ---------------------------------------------------------------------------

    def next_due(self, now: float) -> float:
        """When `expire` must be called next, at the latest."""
        limit_s = self.handler.timeout_s
        if limit_s is None or not self.handler.in_flight:
            return NEVER
        # A call that starts after this look is due later than a whole time-out from now.
        return self._oldest(now) + limit_s

    def _oldest(self, now: float) -> float:
        while True:
            try:
                return min(now, next(iter(self._running.values()), now))
            except RuntimeError:  # another thread changed it in between
                continue

    def expire(self, now: float) -> None:
        """End the calls whose time is over; end the run if they keep every slot for too long."""
        limit_s = self.handler.timeout_s
        if limit_s is None:
            self._running.clear()
            return
        if self._oldest(now) + limit_s <= now:
            for call, began in self._running.copy().items():
                if began + limit_s > now:
                    break
                # In this order a call that ends meanwhile is either in time or overdue, and never
                # stays behind: `ended` takes it off the running ones first.
                self.overdue[call] = now
                if self._running.pop(call, None) is None:
                    self.overdue.pop(call, None)
                else:
                    self._end(call)
        if len(self.overdue) >= self.handler.calls_max:
            self._end_run(now, limit_s)

    def _end_run(self, now: float, limit_s: float) -> None:
        since = max(self.overdue.copy().values(), default=now)
        if now - since >= HUNG_LIMITS * limit_s:
            name, slots = self.handler.name, self.handler.concurrency
            self._door.engine.fail(
                now,
                f"handler {name}: all {slots} slots have been overdue for ten times "
                f"timeout_s={limit_s}",
            )


def note_acknowledged(door: Door, works: Iterable[Work], call: Call | None) -> None:
    """Log that this batch call is past its time-out if no record of it can fail by that."""
    works = list(works)
    if any(work.state == RUNNING and work.call is call for work in works):
        return
    handler = works[0].partition.handler
    door.post(
        lambda engine, _: engine.note(
            "warning",
            "batch call runs past its timeout_s, all its records are acknowledged",
            handler=handler.name,
            timeout_s=handler.timeout_s,
        )
    )
