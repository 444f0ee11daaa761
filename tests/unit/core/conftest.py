"""An engine in the hands of a test: every call, every effect."""

from __future__ import annotations

import pytest

from perkey.codec import decode, encode_fitting
from perkey.core import effects as fx
from perkey.core import states
from perkey.core.engine import Engine
from perkey.core.events import Answer, Assignment, HandlerSpec, Limits
from perkey.core.work import Work
from perkey.policies import Batch
from perkey.types import ErrorInfo, Record
from simulators.core.invariants import check

ERROR = ErrorInfo("ValueError", "bad")


class Desk:
    """One engine, the time, and what it asked for.

    After every event all is recounted, and what a commit says is compared with what is done.
    """

    def __init__(
        self, *specs: HandlerSpec, limits: Limits | None = None, size_bytes: int = 0
    ) -> None:
        """`size_bytes`: of the outputs of each record."""
        specs = specs or (HandlerSpec("h"),)
        self.engine = Engine(specs, limits, lambda _outputs: size_bytes)
        self.now = 0.0
        self.effects: list[fx.Effect] = []
        #: of each handler, those that run
        self.calls = [0] * len(specs)
        #: what was started and is not finished with
        self.under_way: list[Work] = []

    def assign(self, *numbers: int, topic: str = "t", handler: int = 0, **options):
        """Epochs of these partitions begin at 0, or where `options` say."""
        options.setdefault("start", 0)
        places = [Assignment(topic, number, handler, **options) for number in numbers]
        return self.do("assigned", places)

    def do(self, event: str, *arguments, **options):
        """One event; its effects are kept."""
        result, effects = self._do(event, *arguments, **options)
        check(self.engine, self.calls)
        self._check_finished()
        for effect in (*effects, result):
            if isinstance(effect, fx.CommitOffsets | fx.Transact):
                for item in effect.items:
                    check_plan(item)
        return result

    def do_unchecked(self, event: str, *arguments) -> None:
        """The same without the recount, which walks over every record."""
        self._do(event, *arguments)

    def _do(self, event: str, *arguments, **options):
        if event == "calls_ended":
            for work in (
                *arguments[0],
                *(ending.work for ending in arguments[1:2] and arguments[1]),
            ):
                self.calls[work.partition.handler.index] -= 1
        elif event == "batch_ended":
            self.calls[arguments[0]] -= 1
        result = getattr(self.engine, event)(self.now, *arguments, **options)
        effects = self.engine.take_effects()
        for effect in effects:
            if isinstance(effect, fx.Start):
                self.calls[effect.handler] += 1 if effect.together else len(effect.works)
                self.under_way += effect.works
                assert {work.since for work in effect.works} == {self.now}
            elif isinstance(effect, fx.Send | fx.SendDeadLetter):
                assert effect.work.since == self.now
        self.effects += effects
        return result, effects

    def _check_finished(self) -> None:
        """What no epoch holds any more knows that it is finished with."""
        held = {w for part in self.engine.state.partitions.values() for w in part.works()}
        for work in self.under_way:
            assert work in held or work.state in (states.DONE, states.SUPERSEDED)
        self.under_way = [work for work in self.under_way if work in held]

    def poll(self, partition, *offsets: int, key: bytes | None = b"k", size: int = 100) -> None:
        """Records at these offsets, in one poll."""
        records = [Record(partition.topic, partition.number, o, 0, key, b"v") for o in offsets]
        self.do("polled", [(partition, records, [size] * len(records))])

    def pass_time(self, seconds: float) -> None:
        """The clock goes on and the engine looks at it."""
        self.now += seconds
        self.do("tick")
        assert self.engine.next_deadline() > self.now, "nobody looks twice at one time"

    def take(self, kind):
        """Effects of this kind so far; all effects are forgotten by this."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = []
        return found

    def started(self):
        """Records that were started since the last look."""
        return [work for effect in self.take(fx.Start) for work in effect.works]

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


def check_plan(item: fx.PlanItem) -> None:
    """What a commit says is so, and it says all that there is, or all that its map has room for."""
    part, claimed = item.partition, set(offsets(item.claims))
    undone = [offset for offset in part.offsets.incomplete if offset not in claimed]
    top = max(part.offsets.top, *claimed, -1)
    told = decode(item.frontier, item.metadata)
    assert item.frontier == next(iter(undone), max(part.offsets.position, top + 1))
    alone = told.highest_seen == item.frontier  # the place of a rider without a map
    holes = [offset for offset in undone if offset <= told.highest_seen]
    assert list(told.not_done) == (holes or [item.frontier] * (alone and item.rider_chars > 0))
    beyond = told.highest_seen - item.frontier + 1
    assert item.done_beyond == beyond - len(told.not_done)
    assert all(offset <= max(told.highest_seen, item.frontier - 1) for offset in claimed)
    assert part.commit.map_chars == len(item.metadata) - item.rider_chars
    assert len(item.metadata) <= part.commit.map_limit
    assert bool(item.metadata) <= (bool(part.offsets.incomplete) or item.rider_chars > 0)
    if told.highest_seen < max(top, item.frontier - 1):
        holes = [offset for offset in undone if offset < top]
        _, most = encode_fitting(item.frontier, top, holes, limit_chars=part.commit.map_limit)
        assert told.highest_seen == most


def in_state(partition, state: int) -> list[int]:
    """The offsets of its records in this state, ascending."""
    return sorted(work.offset for work in partition.works() if work.state == state)


def offsets(works) -> list[int]:
    """Where these records stand."""
    return [work.record.offset for work in works]


def in_batches(
    max_records: int = 10, linger_s: float = 0.05, ack: str = "all", **options
) -> HandlerSpec:
    """A batch handler in key order."""
    return HandlerSpec("h", batch=Batch(max_records, linger_s, ack), **options)


def batches(desk) -> list[list[int]]:
    """The batches started since the last look."""
    return [offsets(effect.works) for effect in desk.take(fx.Start)]


@pytest.fixture
def make_desk():
    """Builds a desk: `make_desk(HandlerSpec(...), limits=Limits(...))`."""
    return Desk
