"""Checks at the engine's border: each granted call ends exactly once, and epochs open and close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.runtime.run.drain import Drain
from simulators.runtime.oracle import Oracle
from simulators.runtime.stage import Stage


class Taps:
    """What is between the runtime and its engines."""

    def __init__(self, world: Stage, oracle: Oracle) -> None:
        self._world = world
        self.oracle = oracle
        self.labels: dict[Engine, str] = {}
        #: granted and not ended, by member
        self.granted: dict[Work, str] = {}

    def made(self, engine: Engine) -> None:
        """A member makes its engine."""
        self.labels[engine] = self._world.starting

    def effects(self, engine: Engine, effects: list[fx.Effect]) -> None:
        """What the runtime is to do."""
        for effect in effects:
            if isinstance(effect, fx.Start):
                for work in effect.works:
                    self._grant(engine, work)

    def _grant(self, engine: Engine, work: Work) -> None:
        if work in self.granted:
            self.oracle.broken("structure", f"{work!r} is granted twice")
        label = self.granted[work] = self.labels[engine]
        place = (label, work.partition.number, work.record.offset)
        self.oracle.granted(place)

    def ended(self, works: Sequence[Work]) -> None:
        """Calls that ended, however."""
        for work in works:
            member = self.granted.pop(work, None)
            if member is None:
                self.oracle.broken("structure", f"{work!r} ended and was not running")
            else:
                self.oracle.returned((member, work.partition.number, work.record.offset))

    def opened(self, engine: Engine, partitions: Sequence[Partition]) -> None:
        """Epochs."""
        for partition in partitions:
            self.oracle.opened(self.labels[engine], partition.number)

    def drained(self, partitions: dict[Any, Partition]) -> None:
        """The run says that all is done and the broker knows."""
        if self._world.setup.transactional:
            return
        for (_, number), partition in partitions.items():
            source = self.oracle.sources[number]
            done = [offset for offset in source.lane_of if offset < partition.frontier]
            missing = [offset for offset in done if offset not in source.held]  # gaps are no loss
            if missing:
                self.oracle.broken("S4", f"drained, and the broker does not have {missing}")


Around = Callable[[Taps, Any], Any]


def _calls_ended(taps: Taps, original: Any) -> Any:
    def ended(self: Engine, now: float, done: Any, endings: Any = ()) -> None:
        taps.ended([*done, *(one.work for one in endings)])
        original(self, now, done, endings)

    return ended


def _batch_progressed(taps: Taps, original: Any) -> Any:
    def progressed(self: Engine, now: float, done: Any, endings: Any) -> None:
        taps.ended([*done, *(one.work for one in endings)])
        original(self, now, done, endings)

    return progressed


def _batch_ended(taps: Taps, original: Any) -> Any:
    def ended(self: Engine, now: float, handler: int, done: Any, endings: Any, **how: Any) -> None:
        taps.ended([*done, *(one.work for one in endings)])
        original(self, now, handler, done, endings, **how)

    return ended


def _take_effects(taps: Taps, original: Any) -> Any:
    def take(self: Engine) -> Any:
        effects = original(self)
        taps.effects(self, effects)
        return effects

    return take


def _made(taps: Taps, original: Any) -> Any:
    def made(self: Engine, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        taps.made(self)

    return made


def _assigned(taps: Taps, original: Any) -> Any:
    def opened(self: Engine, now: float, assignments: Any) -> Any:
        partitions = original(self, now, assignments)
        taps.opened(self, partitions)
        return partitions

    return opened


def _revoking(taps: Taps, original: Any) -> Any:
    def begin(self: Engine, now: float, partitions: Any) -> None:
        original(self, now, partitions)
        taps.oracle.revoking(taps.labels[self], [p.number for p in partitions])

    return begin


def _closed(taps: Taps, original: Any) -> Any:
    def end(self: Engine, now: float, partitions: Any, *, lost: bool = False) -> None:
        original(self, now, partitions, lost=lost)
        taps.oracle.closed(taps.labels[self], [p.number for p in partitions], lost=lost)

    return end


def _finished(taps: Taps, original: Any) -> Any:
    def done(self: Drain, engine: Engine, now: float, ours: Any) -> bool:
        answer = bool(original(self, engine, now, ours))
        if answer:
            taps.drained(ours)
        return answer

    return done


WATCHED: list[tuple[type, str, Around]] = [
    (Engine, "__init__", _made),
    (Engine, "assigned", _assigned),
    (Engine, "revoking", _revoking),
    (Engine, "closed", _closed),
    (Engine, "take_effects", _take_effects),
    (Engine, "calls_ended", _calls_ended),
    (Engine, "batch_progressed", _batch_progressed),
    (Engine, "batch_ended", _batch_ended),
    (Drain, "finished", _finished),
]


@contextmanager
def tapped(taps: Taps) -> Iterator[None]:
    """Every engine is watched inside."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in WATCHED]
    for (owner, name, around), (_, _, original) in zip(WATCHED, before, strict=True):
        setattr(owner, name, around(taps, original))
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
