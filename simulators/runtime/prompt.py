"""Calm seeds: when everything rests, nothing that could run is waiting (L1).

A wake-up that is forgotten is mostly made good by the next round of the polling thread, a tenth of
a second later. So it is looked for at the moments when all threads wait and time is about to jump.
"""

from __future__ import annotations

from perkey.policies import DeadLetter
from simulators.runtime.life import Life
from simulators.runtime.oracle import Oracle
from simulators.runtime.stage import Stage
from simulators.runtime.taps import Taps

SLACK_S = 0.006
LOADED_S = 0.03  # a prefetch gathers and loads for less
FAST_S = 0.001  # calls shorter than that report together


class Prompt:
    """Looks whether somebody sleeps who should not."""

    def __init__(self, world: Stage, oracle: Oracle, taps: Taps) -> None:
        self._world = world
        self._oracle = oracle
        self._taps = taps

    def look(self, until: float) -> None:
        """All threads wait, and will until that time."""
        world, setup = self._world, self._world.setup
        alive = world.alive()
        if not setup.calm or len(alive) != 1 or setup.commit.each:
            return
        if setup.kind == "threads" and min(setup.durations) < FAST_S:
            return
        member = alive[0]
        calls = [call for call in self._oracle.calls.values() if call.member == member]
        running = [call for call in calls if call.open]
        if setup.prefetch is None or until - world.sim.now > LOADED_S:
            busy = len(running) >= setup.concurrency  # what is granted ahead waits
            self._all_is_told(member, {place for call in running for place in call.open}, busy=busy)
        letters = isinstance(setup.on_exhausted, DeadLetter) and any(
            not life.exhausted <= life.source.finished for life in self._oracle.lives.values()
        )
        if letters or any(any(call.outputs.values()) for call in calls):
            return  # what is sent holds lanes, and a full queue holds all
        if len(running) >= setup.concurrency or world.is_stopping(member):
            return
        if setup.delivery == "at_most_once" or setup.prefetch is not None:
            return  # first a mark must be stored, or something loaded
        for (owner, _), life in self._oracle.lives.items():
            if owner == member and life.state == "open" and world.sim.now > life.since:
                self._nothing_waits(life, until)

    def _all_is_told(self, member: str, running: set[tuple[int, int]], *, busy: bool) -> None:
        """A call that has ended is known to the engine; one that may begin has begun."""
        for work, owner in self._taps.granted.items():
            place = (work.partition.number, work.record.offset)
            if busy and not self._oracle.has_begun((member, *place)):
                continue
            if owner == member and place not in running:
                what = f"{member} has ended or not begun {place}, and rests"
                self._oracle.broken("L1", what)

    def _nothing_waits(self, life: Life, until: float) -> None:
        source = life.source
        for offsets in source.lanes.values():
            ready_at = life.since
            for offset in offsets:
                if offset in life.known:
                    continue
                if offset in life.unsure:
                    break
                if offset in life.passed:
                    ready_at = max(ready_at, life.passed[offset])
                    continue
                if offset in life.exhausted:
                    break
                ready_at = max(ready_at, source.fetched_at.get(offset, until))
                ready_at = max(ready_at, life.again_at.get(offset, (0.0, 0.0))[1])
                idle = source.lane_of[offset] not in life.running
                if idle and offset not in life.handled and until > ready_at + SLACK_S:
                    what = f"{life.partition}@{offset} is ready for {until - ready_at:.3f} s"
                    self._oracle.broken("L1", f"{what}, a slot is free, and all rest")
                break
