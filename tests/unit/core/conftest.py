"""An engine in the hands of a test: every call, every effect."""

from __future__ import annotations

import pytest

from weft.core import effects as fx
from weft.core.commits import Answer
from weft.core.engine import Engine
from weft.core.epochs import Assignment
from weft.core.invariants import check
from weft.core.spec import HandlerSpec, Limits
from weft.types import ErrorInfo, Record

ERROR = ErrorInfo("ValueError", "bad")


class Desk:
    """One engine, the time, and what it asked for; recounted after every event."""

    def __init__(self, *specs: HandlerSpec, limits: Limits | None = None) -> None:
        self.engine = Engine(specs or [HandlerSpec("h")], limits)
        self.now = 0.0
        self.effects: list[fx.Effect] = []

    def assign(self, *numbers: int, topic: str = "t", handler: int = 0, **options):
        """Epochs of these partitions begin at 0, or where `options` say."""
        options.setdefault("start", 0)
        places = [Assignment(topic, number, handler, **options) for number in numbers]
        return self.do("assigned", places)

    def do(self, event: str, *arguments, **options):
        """One event; its effects are kept."""
        result = getattr(self.engine, event)(self.now, *arguments, **options)
        self.effects += self.engine.take_effects()
        check(self.engine.state)
        return result

    def poll(self, partition, *offsets: int, key: bytes | None = b"k", size: int = 100) -> None:
        """Records at these offsets, in one poll."""
        records = [Record(partition.topic, partition.number, o, 0, key, b"v") for o in offsets]
        self.do("polled", [(partition, records, [size] * len(records))])

    def pass_time(self, seconds: float) -> None:
        """The clock goes on and the engine looks at it."""
        self.now += seconds
        self.do("tick")

    def take(self, kind):
        """Effects of this kind so far; all effects are forgotten by this."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = []
        return found

    def started(self):
        """Records that were started since the last look."""
        return [work for effect in self.take((fx.Start, fx.StartBatch)) for work in effect.works]

    def answer(self, effect, verdict: str = "stored") -> None:
        """The broker's answer for all of a commit."""
        answers = [Answer(item.partition, effect.sequence, verdict) for item in effect.items]
        self.do("commit_answered", answers)

    def commit(self):
        """The commit that is due within a second; it is stored."""
        self.take(object)
        self.pass_time(1.0)
        (effect,) = self.take(fx.CommitOffsets)
        self.answer(effect)
        return effect


def offsets(works) -> list[int]:
    """Where these records stand."""
    return [work.record.offset for work in works]


@pytest.fixture
def make_desk():
    """Builds a desk: `make_desk(HandlerSpec(...), limits=Limits(...))`."""
    return Desk
