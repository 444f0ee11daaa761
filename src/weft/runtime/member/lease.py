"""Decide whether this member may still be in its group after it was suspended.

A process that was stopped (SIGSTOP, a suspended machine, a debugger) for longer than its session
has lost its partitions without knowing: the polling thread serves the callback that reports it,
and a worker may be faster. So every thread in the door checks when the polling thread last
went round. If that is too long ago, nothing starts until the broker has taken a commit from us,
which it does from members only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from weft.core import effects as fx
from weft.core.engine import Engine
from weft.runtime.door import STOOD_STILL_S, since_boot
from weft.runtime.logs import event
from weft.runtime.member.seat import Seat

_log = logging.getLogger("weft")

ANSWER_S = 5.0
AGAIN_S = 0.2


class Lease:
    """The polling thread's side of it; the door has the other."""

    def __init__(self, seat: Seat, commit: Callable[[fx.CommitOffsets], None]) -> None:
        """`commit` sends a commit that is to prove it."""
        self._seat = seat
        self._commit = commit
        # All of the polling thread.
        #: sequence of the commit that is to prove it; None when none is on the way
        self._proof: int | None = None
        self._ask_at = 0.0

    def renew(self) -> None:
        """The polling thread goes round."""
        door, now = self._seat.door, since_boot()
        if now - door.round_at > STOOD_STILL_S:
            door.call(_look)  # no thread was faster: the door must see it before the mark moves
            event(
                _log,
                "warning",
                "the polling thread was blocked",
                seconds=round(now - door.round_at, 3),
            )
        door.round_at = now
        if door.in_doubt:
            self._ask(now)

    def _ask(self, now: float) -> None:
        """Have a commit prove that we are a member, where one can."""
        seat = self._seat
        # A transaction is fenced by itself.
        if all(p.handler.exact for p in seat.partitions.values()):
            self._lift()
        elif now >= self._ask_at:
            plan = seat.door.call(lambda engine, now: engine.proof_commit(now))
            if plan is not None:
                self._proof, self._ask_at = plan.sequence, now + ANSWER_S
                self._commit(plan)

    def answered(self, sequence: int, stored: bool) -> None:  # noqa: FBT001  # the callback's
        """A commit was answered; perhaps ours."""
        if sequence != self._proof:
            return
        self._proof, self._ask_at = None, since_boot() + AGAIN_S
        if stored:
            self._lift()

    def _lift(self) -> None:
        door = self._seat.door
        door.in_doubt, self._proof = False, None
        door.post(lambda engine, now: engine.halt(now, "membership", on=False))


def _look(_engine: Engine, _now: float) -> None:
    """Nothing: entering the door is enough."""
