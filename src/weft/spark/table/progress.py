"""What a table has of each partition: as a commit says it, without the limit of its characters."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.codec import MapTooLarge, UnreadableMap, decode, encode
from weft.core.epochs import Found

#: (group, topic)
Whose = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Done:
    """Offsets of one partition that are done: all below `frontier`, and to `top` but `not_done`."""

    frontier: int
    top: int
    not_done: tuple[int, ...] = ()

    def has(self, offset: int) -> bool:
        """Whether this one is done."""
        if offset < self.frontier:
            return True
        at = bisect_left(self.not_done, offset)
        return offset <= self.top and self.not_done[at : at + 1] != (offset,)

    def united(self, other: Done) -> Done:
        """What is done by one of the two."""
        less, more = sorted((self, other), key=lambda one: one.top)
        open_below = set(less.not_done)
        left = tuple(
            offset
            for offset in more.not_done
            if offset >= less.frontier and (offset > less.top or offset in open_below)
        )
        frontier = left[0] if left else max(more.top + 1, more.frontier, less.frontier)
        return Done(frontier, max(more.top, frontier - 1), left)

    def metadata(self) -> str:
        """As a commit has it; empty where it is too large: what repeats is recognised later."""
        if self.top < self.frontier:
            return ""
        try:
            return encode(self.frontier, self.top, self.not_done)
        except MapTooLarge:
            return ""


def done_of(offset: int, metadata: str) -> Done:
    """What a commit says."""
    try:
        read = decode(offset, metadata)
    except UnreadableMap:
        return Done(offset, offset - 1)
    return Done(offset, read.highest_seen, read.not_done)


def ahead(found: Found, held: Done) -> Found:
    """What the group has committed, and what the table has beyond it: a kill came between."""
    if found.committed is None:
        both = held
    else:
        known = done_of(found.committed, found.metadata)
        both = known.united(held)
        if both == known:
            return found
    return replace(found, committed=both.frontier, metadata=both.metadata(), untold=True)


@dataclass(frozen=True, slots=True)
class Topic:
    """What a table has of one topic, for one group. A topic made again has another id."""

    topic_id: str
    partitions: Mapping[int, Done]


class Progress:
    """What a table has, for every group that writes to it. Does not change."""

    def __init__(self, topics: Mapping[Whose, Topic] | None = None) -> None:
        self._topics = dict(topics or {})

    def done(self, group: str, topic: str, topic_id: str, number: int) -> Done | None:
        """What it has of a partition; None where nothing, or of a former topic of this name."""
        known = self._topics.get((group, topic))
        if known is None or known.topic_id != topic_id:
            return None
        return known.partitions.get(number)

    def with_done(
        self, group: str, ids: Mapping[str, str], more: Mapping[tuple[str, int], Done]
    ) -> Progress:
        """The same and these."""
        topics = dict(self._topics)
        for (topic, number), done in more.items():
            topic_id = ids.get(topic, "")
            known = topics.get((group, topic))
            held = {} if known is None or known.topic_id != topic_id else dict(known.partitions)
            held[number] = done.united(held[number]) if number in held else done
            topics[group, topic] = Topic(topic_id, held)
        return Progress(topics)

    def to_json(self) -> bytes:
        """For the footer of a file."""
        return json.dumps(list(self._rows()), separators=(",", ":")).encode()

    def _rows(self) -> Iterator[list[Any]]:
        for (group, topic), known in self._topics.items():
            for number, done in known.partitions.items():
                place = [group, topic, known.topic_id, number]
                yield [*place, done.frontier, done.top, list(done.not_done)]

    @staticmethod
    def from_json(text: bytes) -> Progress:
        """What `to_json` wrote. Raises ValueError for anything else."""
        topics: dict[Whose, tuple[str, dict[int, Done]]] = {}
        for group, topic, topic_id, number, frontier, top, not_done in json.loads(text):
            _, held = topics.setdefault((group, topic), (topic_id, {}))
            held[int(number)] = Done(int(frontier), int(top), tuple(map(int, not_done)))
        return Progress({whose: Topic(*known) for whose, known in topics.items()})
