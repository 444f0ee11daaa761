"""The slots of one handler: how many more calls may start, and when the time of each is over.

`take` and `give` are the only places where a slot changes hands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from weft.core.states import RUNNING
from weft.core.work import Work
from weft.types import Record


class Slots:
    """Calls that one handler may have in flight, and their time-outs."""

    __slots__ = ("concurrency", "deadlines", "free", "overdue", "timeout_s", "waiting", "whole")

    def __init__(self, concurrency: int, ahead: int, timeout_s: float | None) -> None:
        self.concurrency = concurrency
        #: calls in all: those beyond `concurrency` keep a pipe to a worker process full
        self.whole = concurrency + ahead
        #: calls that may still start; below zero where finished records keep slots (Commit each)
        self.free = self.whole
        self.timeout_s = timeout_s
        #: running attempts -> when their time is over, in that order; only with `timeout_s`.
        #: A call of several records stands here once, as its first record
        self.deadlines: dict[Work, float] = {}
        #: running past their time and not to be cancelled -> since when
        self.overdue: dict[Work, float] = {}
        #: calls that the runtime reported as not begun -> the attempt. An entry may outlive it
        self.waiting: dict[Work, Record] = {}

    @property
    def taken(self) -> int:
        """Calls that run, and whatever else holds a slot."""
        return self.whole - self.free

    def take(self, count: int = 1) -> None:
        """So many calls start."""
        self.free -= count

    def give(self, count: int = 1) -> None:
        """So many are over."""
        self.free += count

    def time(self, works: Sequence[Work], now: float) -> None:
        """These attempts begin, each in a call of its own; of a batch its first record does."""
        if self.timeout_s is not None:
            self.deadlines.update(dict.fromkeys(works, now + self.timeout_s))

    def ended(self, work: Work) -> None:
        """The attempt is over: so is the call's time, when it was the last of its call."""
        call = work.call
        if call is not None:
            call.left -= 1
            if call.left > 0:
                return
            work = call.first
        self.deadlines.pop(work, None)
        self.overdue.pop(work, None)

    def expired(self, now: float) -> list[Work]:
        """Attempts past their time, once each: they are overdue from now on."""
        expired = [work for work, _ in takewhile(lambda it: it[1] <= now, self.deadlines.items())]
        for work in expired:
            del self.deadlines[work]
            self.overdue[work] = now
        return expired

    def not_begun(self, works: Sequence[Work], now: float) -> None:
        """The calls of these wait in front of their handler: none of their time is used."""
        self.waiting = {work: one for work, one in self.waiting.items() if self.waits(work)}
        self.waiting.update((work, work.record) for work in works)
        self._time_again(works, now)

    def begun(self, works: Sequence[Work], at: float) -> None:
        """The calls of these began at `at`, which the engine took for earlier."""
        for work in works:
            self.waiting.pop(work, None)
        self._time_again(works, at)

    def waits(self, work: Work) -> bool:
        """Its call has not begun, as far as is known."""
        return work.state == RUNNING and self.waiting.get(work) is work.record

    def _time_again(self, works: Sequence[Work], at: float) -> None:
        if self.timeout_s is None:
            return
        due, last = at + self.timeout_s, next(reversed(self.deadlines.values()), 0.0)
        for work in works:
            timed, overdue = self.deadlines.pop(work, None), self.overdue.pop(work, None)
            if timed is not None or overdue is not None:  # else it has ended, or is no first record
                self.deadlines[work] = due
        if due < last:
            self.deadlines = dict(sorted(self.deadlines.items(), key=lambda one: one[1]))

    def next_due(self) -> float | None:
        """When the time of the next one is over."""
        return next(iter(self.deadlines.values()), None)

    def all_hung(self, now: float) -> bool:
        """Every slot has been overdue for ten time-outs: nothing will ever start again."""
        if self.timeout_s is None or len(self.overdue) < self.concurrency:
            return False
        return now - max(self.overdue.values()) >= 10 * self.timeout_s
