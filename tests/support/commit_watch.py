"""Watches what a group has committed, from outside the group, while its members come and go.

Judged against the handlers' own log (S2, S7): what a commit says is done was done by then, a
frontier never goes back, and what was done once stays done.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaException
from tests.support.handler_log import Entry

from perkey.codec import OffsetMap, decode
from perkey.kafka import clib

LOOK_S = 0.05
#: a look that takes longer than this: the machine or the broker stood still
LATE_S = 0.15
ANSWER_S = 1.0
FOREVER = float("inf")


class Seen(NamedTuple):
    """A commit as it was read."""

    at: float
    partition: int
    offset: int
    metadata: str

    def map(self) -> OffsetMap:
        """What it says is done."""
        return decode(self.offset, self.metadata)


@dataclass
class CommitWatch:
    """A thread that reads the group's commits over and over; use it as a context manager."""

    bootstrap: str
    group: str
    topic: str
    partitions: int
    seen: list[Seen] = field(default_factory=list)
    looks: int = 0
    #: looks that took long: when they ended, and how long they were
    late: list[tuple[float, float]] = field(default_factory=list)
    _began: float = FOREVER

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commit-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """One last look, and the end."""
        self._quit.set()
        self._thread.join(10)

    def _watch(self) -> None:
        # It never subscribes, so it never joins the group.
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        where = [(self.topic, number) for number in range(self.partitions)]
        last: dict[int, tuple[int, str]] = {}
        try:
            while True:
                self._began = time.monotonic()
                ending = self._quit.wait(LOOK_S)
                self._look(consumer, where, last)
                now = time.monotonic()
                if now - self._began > LATE_S:
                    self.late.append((now, now - self._began))
                if ending:
                    return
        finally:
            consumer.close()

    def _look(
        self,
        consumer: Consumer,
        where: list[tuple[str, int]],
        last: dict[int, tuple[int, str]],
    ) -> None:
        try:
            found = clib.committed(consumer, where, ANSWER_S)
        except KafkaException:
            return  # the broker is away, as the test wants it
        now = time.monotonic()
        self.looks += 1
        for one in found:
            if one.offset is None or last.get(one.partition) == (one.offset, one.metadata):
                continue
            last[one.partition] = (one.offset, one.metadata)
            self.seen.append(Seen(now, one.partition, one.offset, one.metadata))

    def before(self, at: float, seconds: float) -> float:
        """So many seconds before this time, not counted those in which nothing moved.

        A commit is on its way for no longer than that, unless machine or broker stand still; and
        then our own looks take as long.
        """
        since = at - seconds
        under_way = at - self._began
        if under_way > LATE_S:
            since -= under_way
        for ended, took_s in reversed(self.late):
            if ended < since:
                break
            if ended <= at:
                since -= took_s
        return since

    def frontiers(self) -> dict[int, int]:
        """The last commit of each partition."""
        return {one.partition: one.offset for one in self.seen}


def judge_commits(
    seen: Sequence[Seen], entries: Sequence[Entry], produced: Iterable[tuple[int, int]]
) -> list[str]:
    """What the commits got wrong, a line each."""
    done_at: dict[tuple[int, int], float] = {}
    for entry in entries:
        if entry.kind == "E":
            done_at[entry.record] = min(entry.at, done_at.get(entry.record, entry.at))
    offsets: defaultdict[int, list[int]] = defaultdict(list)
    for partition, offset in sorted(produced):
        offsets[partition].append(offset)
    known = {partition: Known(partition, held) for partition, held in offsets.items()}
    return [
        line
        for one in seen
        if one.partition in known
        for line in known[one.partition].take(one, done_at)
    ]


class Known:
    """What the commits of one partition have said so far."""

    def __init__(self, partition: int, offsets: list[int]) -> None:
        self._partition, self._offsets = partition, offsets
        self._frontier = 0
        self._beyond: set[int] = set()

    def take(self, one: Seen, done_at: dict[tuple[int, int], float]) -> list[str]:
        """The next commit; what is wrong with it."""
        map_ = one.map()
        beyond = set(self._between(one.offset, map_.highest_seen + 1)) - set(map_.not_done)
        new = (beyond | set(self._between(self._frontier, one.offset))) - self._beyond
        early = [o for o in sorted(new) if done_at.get((self._partition, o), FOREVER) > one.at]
        forgotten = {offset for offset in self._beyond - beyond if offset >= one.offset}
        problems = []
        if early:
            problems.append(f"S2: {_shown(one)} says done before it was: {early[:5]}")
        if one.offset < self._frontier:
            problems.append(f"S7: {_shown(one)} goes back from {self._frontier}")
        if forgotten:
            problems.append(f"S7: {_shown(one)} forgets {len(forgotten)}: {sorted(forgotten)[:5]}")
        self._frontier, self._beyond = one.offset, beyond
        return problems

    def _between(self, low: int, high: int) -> list[int]:
        """Produced offsets in [low, high)."""
        return self._offsets[bisect_left(self._offsets, low) : bisect_left(self._offsets, high)]


def _shown(one: Seen) -> str:
    return f"commit {one.partition}:{one.offset} ({len(one.metadata)} chars) at {one.at:.3f}"
