"""An executor under test: it stands at a real door, behind it a real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perkey
from perkey.core import effects as fx
from perkey.core.engine import Engine
from perkey.core.events import Answer, Assignment, HandlerSpec
from perkey.core.work import Work
from perkey.runtime.door import Door
from perkey.runtime.handling import HandlerPlan
from perkey.types import Record

#: closed when their loop ends
BENCHES: list[Bench] = []


class Bench:
    """Executors at a real door, and an engine with one partition per key; effects are kept."""

    def __init__(self, make: Callable[[HandlerPlan, Door], Any], **spec: Any) -> None:
        self.effects: list[fx.Effect] = []
        options = {"concurrency": 4, "retry": perkey.Retry(attempts=3, delay_s=0), **spec}
        self.spec = HandlerSpec("h", **options)
        self.door = Door(Engine([self.spec]), self._perform)
        self.function: Any = None
        self.plan = HandlerPlan(self.spec, self._call)
        self.executor = make(self.plan, self.door)
        BENCHES.append(self)

    def ticked(self) -> bool:
        """Let the engine do what is due; False."""
        self.door.call(lambda _engine, now: self.door.tick(now))
        return False

    def pass_to(self, now: float) -> None:
        """The engine's clock stands at this time, and it does what is due."""
        self.door.clock = lambda: now
        self.ticked()

    def _call(self, argument: Any) -> Any:
        return self.function(argument)

    def _perform(self, effects: list[fx.Effect]) -> None:
        self.effects += effects
        for effect in effects:
            if isinstance(effect, fx.Start):
                start = self.executor.start_batch if effect.together else self.executor.start
                start(effect.works)
            elif isinstance(effect, fx.CommitOffsets):
                self._store(effect)

    def _store(self, effect: fx.CommitOffsets) -> None:
        answers = [Answer(item.partition, effect.sequence, "stored") for item in effect.items]
        self.door.post(lambda engine, now: engine.commit_answered(now, answers))

    def poll(self, count: int, partitions: int = 1) -> list[Work]:
        """This many records of a key each, dealt out to new partitions; their works."""

        def begin(engine: Engine, now: float) -> list[Work]:
            numbers = range(partitions)
            places = [Assignment("t", number, 0, 0) for number in numbers]
            held = engine.assigned(now, places)
            works = []
            for number, partition in zip(numbers, held, strict=True):
                mine = range(count)[number::partitions]
                records = [
                    Record("t", number, offset, 0, b"k%d" % value, b"%d" % value)
                    for offset, value in enumerate(mine)
                ]
                engine.polled(now, [(partition, records, [100] * len(records))])
                works += [w for w in partition.offsets.incomplete.values() if w is not None]
            return works

        return self.door.call(begin)
