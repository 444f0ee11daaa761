"""Shared knowledge of the parts of one seed's world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from perkey.types import TopicPartition
from simulators.runtime.primitives import Primitives
from simulators.runtime.processes import Machine
from simulators.runtime.scheduler import Scheduler
from simulators.runtime.setup import Setup


class Stage(ABC):
    """Who runs, what one seed is, who is there, and chance."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.odds = setup.odds
        self.sim = Scheduler(
            setup.seed,
            odds=setup.switch_odds,
            tick_s=setup.tick_s,
            by_priority=setup.by_priority,
            stall_odds=setup.stall_odds,
            stall_s=setup.stall_s,
        )
        self.made = Primitives(self.sim)
        self.machine = Machine(self.sim)
        self.machine.opens_s = setup.opens_s
        #: the member that is being started: what is made now is its
        self.starting = ""

    @abstractmethod
    def alive(self) -> list[str]:
        """Members that run and were not told to stop."""

    @abstractmethod
    def is_dead(self, member: str) -> bool:
        """It was killed."""

    @abstractmethod
    def is_stopping(self, member: str) -> bool:
        """It was told to stop."""

    @abstractmethod
    def has_failed(self, member: str) -> bool:
        """It ends for a reason of its own, which its report tells."""

    @abstractmethod
    def undisturbed(self, member: str) -> bool:
        """Nothing keeps its last commit from being stored, or its calls from being waited for."""

    @abstractmethod
    def owns(self, member: str, where: TopicPartition) -> bool:
        """The group has given it this partition, and not taken it back."""

    def chance(self, odds: float) -> bool:
        """A fault of this probability happens now."""
        return odds > 0 and self.sim.rng.random() < odds

    def delay(self, *, slow: float = 0.0) -> float:
        """Seconds that an answer takes; `slow`: the odds that it takes very long."""
        if self.chance(slow):
            return 4.0 * self.sim.rng.random()
        return self.setup.delay_s * self.sim.rng.random()

    def work(self, seconds: float) -> None:
        """What a handler does, in a thread of its own."""
        if seconds:
            self.sim.sleep(seconds)
        else:
            self.sim.point()

    @property
    def clock(self) -> SimClock:
        """The scheduler's time, as the runtime's clock."""
        return SimClock(self.sim)


class SimClock:
    """A Clock."""

    def __init__(self, sim: Scheduler) -> None:
        self._sim = sim

    def now(self) -> float:
        """Virtual seconds."""
        return self._sim.now

    def watch(self, under_way: Callable[[], int]) -> None:
        """Nothing: time is the scheduler's."""
