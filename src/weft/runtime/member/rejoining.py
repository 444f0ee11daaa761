"""Recreate the consumer after librdkafka has given up, when the membership will be free again.

A static member that was killed under KIP-848 is the case: until its session runs out, its successor
gets the error that the instance id is still in use, which is final for that librdkafka client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from weft.kafka.ports import Problem
from weft.runtime.logs import event
from weft.runtime.member.seat import Seat

_log = logging.getLogger("weft")

FIRST_S = 0.5
MOST_S = 5.0
CALM_S = 60.0  # after this long without trouble, the waits restart
LEAVE_S = 2.0
LOOK_S = 0.05


class Rejoining:
    """The polling thread's time without a consumer; used by that thread only."""

    def __init__(self, seat: Seat, lose_all: Callable[[], None], join: Callable[[], None]) -> None:
        """`lose_all` ends every epoch; `join` joins the group with a new consumer."""
        self._seat = seat
        self._lose_all = lose_all
        self._join = join
        self._wait_s = FIRST_S
        self._began_at = float("-inf")
        #: when the next consumer is made; None while there is one
        self._again_at: float | None = None
        self._pause = threading.Event()

    @property
    def waiting(self) -> bool:
        """There is no consumer now."""
        return self._again_at is not None

    def begin(self, problem: Problem) -> None:
        """Give up the consumer and every partition; the next one is made after a wait."""
        now = self._seat.now()
        calm = now - self._began_at > CALM_S
        self._wait_s = FIRST_S if calm else min(MOST_S, 2 * self._wait_s)
        self._began_at = now
        event(
            _log,
            "warning",
            "recreating the consumer",
            code=problem.code,
            reason=problem.reason,
            wait_s=self._wait_s,
        )
        self._lose_all()
        self._seat.consumer.leave(LEAVE_S)
        self._again_at = self._seat.now() + self._wait_s

    def step(self) -> None:
        """In place of a poll: wait a moment, or join again."""
        assert self._again_at is not None
        if self._seat.now() < self._again_at:
            self._pause.wait(LOOK_S)
            return
        self._again_at = None
        self._join()
