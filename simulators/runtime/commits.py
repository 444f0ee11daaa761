"""Checks of commits: sent by the right member, with correct content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from perkey.kafka.ports import ToCommit
from perkey.runtime.member.committing import LAST_ANSWER_S, LAST_COMMIT_S
from perkey.testing.memory import OffsetAndMetadata
from perkey.types import TopicPartition
from simulators.core.violation import Violation
from simulators.runtime.life import Claimed, Life, Place, Source
from simulators.runtime.stage import Stage

#: a last commit waits so long for the answer to a former one
WAITED_S = LAST_COMMIT_S - LAST_ANSWER_S - 0.1


class CommitOracle:
    """The broker's side of the ledger."""

    def __init__(self, world: Stage) -> None:
        self.world = world
        self.setup = world.setup
        self.sources = [Source() for _ in range(world.setup.partitions)]
        self.stats: Counter[str] = Counter()
        self.lives: dict[tuple[str, int], Life] = {}
        #: numbers of the last commits of epochs -> how long after the end of theirs began
        self.last: dict[int, float] = {}

    def broken(self, name: str, what: str) -> None:
        """A promise is broken."""
        self.world.sim.note(f"BROKEN {name}: {what}")
        self.world.sim.broken(Violation(name, what))

    def commit_sent(
        self, member: str, offsets: Sequence[ToCommit], mine: Collection[TopicPartition]
    ) -> int:
        """The runtime has called the consumer's commit; its number among all."""
        self.stats["commits"] += 1
        for one in offsets:
            self.world.sim.note(f"{member} commits {one.partition}: {one.offset} {one.metadata}")
            if (one.topic, one.partition) not in mine:
                self.broken("S7", f"{member} commits {one.partition}, which it does not have")
        return self.stats["commits"]

    def stored(
        self, member: str, values: dict[TopicPartition, OffsetAndMetadata], sent: int = 0
    ) -> None:
        """The group holds this from now on; `sent`: the number of the commit."""
        for (topic, number), value in values.items():
            self.world.sim.note(f"{member} stored {number}: {value.offset} {value.metadata}")
            if not self.world.owns(member, (topic, number)):
                name = "S8" if self.setup.transactional else "S7"
                self.broken(name, f"{member} commits {number}, which is not its own")
            source = self.sources[number]
            behind = 0 < sent < source.held_by
            if behind and not self._may_be_behind(source, number, sent):
                self.broken("S7", f"{member} commits {number} behind what it sent later")
            source.held_by = sent
            self._is_true(number, Claimed(value.offset, value.metadata), behind=behind)

    def _may_be_behind(self, source: Source, number: int, sent: int) -> bool:
        """A last commit waits only so long for the former one, which may come while no one reads.

        Whoever has the partition next is of another generation, and no former one is stored then.
        """
        is_open = any(
            life.partition == number and life.state == "open" for life in self.lives.values()
        )
        waited = self.last.get(source.held_by, -1.0) >= WAITED_S
        return (waited or {sent, source.held_by} <= self.last.keys()) and not is_open

    def was_last(self, member: str, offsets: Sequence[ToCommit]) -> None:
        """What was sent just now is to be the last of its epochs."""
        lives = [self.lives.get((member, one.partition)) for one in offsets]
        since = [self.world.sim.now if one is None else one.revoking_at for one in lives]
        self.last[self.stats["commits"]] = self.world.sim.now - max(since)

    def _is_true(self, number: int, says: Claimed, *, behind: bool) -> None:
        source = self.sources[number]
        once = self.setup.delivery == "at_most_once"
        if says.offset < source.held.offset and not once and not behind:
            self.broken("S2", f"{number}: commit goes back to {says.offset}")
        for offset in source.lane_of:
            if offset not in says or offset in source.claimed:
                continue
            source.claimed.add(offset)
            done = offset in source.finished or offset in source.skipped
            if not done and not once:
                self.broken("S2", f"{number}@{offset} is committed as done and is not")
        source.held = says

    def missing(self) -> list[Place]:
        """What no commit says is done."""
        left = []
        for number, source in enumerate(self.sources):
            stuck = {source.lane_of[offset] for offset in source.parked}
            left += [
                (number, offset)
                for offset, lane in source.lane_of.items()
                if offset not in source.held and lane not in stuck
            ]
        return left
