"""Many short lives of one partition with a small map: what was let start fits, and all is done."""

from __future__ import annotations

import random

import pytest
from tests.unit.core.conftest import ERROR, Desk

from perkey.codec import encode_fitting
from perkey.core import effects as fx
from perkey.core.events import Failed, HandlerSpec, Limits, Unhandled
from perkey.core.partition import Partition
from perkey.core.work import Work
from perkey.policies import Retry
from perkey.types import Record

RECORDS = 200


class Life:
    """One partition whose records end in any order, the first ones late."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.desk = Desk(
            HandlerSpec(
                "h",
                ordering=rng.choice(("unordered", "unordered", "key")),
                concurrency=rng.choice((8, 50, 200)),
                retry=Retry(attempts=None, delay_s=1.0, jitter=0.0),
            ),
            limits=Limits(map_chars=rng.choice((12, 16, 24, 40, 64))),
        )
        (self.part,) = self.desk.assign(0)
        self.running: list[Work] = []
        self.left = self._log(rng.choice((1.0, 0.9, 0.5)))

    def _log(self, density: float) -> list[Record]:
        places, offset = [], 0
        while len(places) < RECORDS:
            if self.rng.random() < density:
                places.append(offset)
            offset += 1
        keys = [b"%d" % self.rng.randrange(40) for _ in places]
        return [Record("t", 0, o, 0, key, b"") for o, key in zip(places, keys, strict=True)]

    def step(self, *, slow: bool) -> None:
        """Some come in, some end; while `slow` the oldest does not."""
        desk, rng = self.desk, self.rng
        if self.left:
            some, self.left = self.left[:25], self.left[25:]
            desk.do("polled", [(self.part, some, [1] * len(some))])
        for effect in desk.take(fx.Start):
            self.running += effect.works
        ends = [w for w in self.running[slow:] if not slow or rng.random() < 0.5]
        self.running = [work for work in self.running if work not in ends]
        lots = {work: rng.random() if slow else 1.0 for work in ends}
        failed = [Failed(work, ERROR) for work in ends if lots[work] < 0.05]
        back = [Unhandled(work) for work in ends if 0.05 <= lots[work] < 0.1]
        desk.do("calls_ended", [work for work in ends if lots[work] >= 0.1], [*failed, *back])
        desk.pass_time(0.3)
        for effect in [one for one in desk.effects if isinstance(one, fx.CommitOffsets)]:
            desk.effects.remove(effect)
            desk.answer(effect)


def fits(part: Partition) -> bool:
    """The map tells all that is done."""
    shot = part.snapshot()
    _, covered = encode_fitting(*shot, limit_chars=part.commit.map_limit)
    return covered >= shot.top


@pytest.mark.parametrize("seed", range(16))
def test_what_was_let_start_fits_and_all_is_done(seed):
    """Whatever ends in whatever order; once the first ones end as well the rest follows."""
    life = Life(seed)
    for _ in range(25):
        life.step(slow=True)
        assert fits(life.part)
    for turn in range(100):
        if not life.left and not life.part.offsets.incomplete:
            break
        life.step(slow=False)
        assert fits(life.part)
        assert turn < 90
