"""What a table has of each partition: like a commit, without the limit of its characters."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from perkey.codec import MapTooLarge, UnreadableMap, decode, encode
from perkey.core.commits import Found


class Source(NamedTuple):
    """A partition of one topic id: a recreated topic has another id."""

    topic: str
    topic_id: str
    number: int


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
        """The union of both."""
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
        """As commit metadata; empty if it is too large: repeats are recognised later."""
        if self.top < self.frontier:
            return ""
        try:
            return encode(self.frontier, self.top, self.not_done)
        except MapTooLarge:
            return ""


def done_of(offset: int, metadata: str) -> Done:
    """Parse a commit."""
    try:
        read = decode(offset, metadata)
    except UnreadableMap:
        return Done(offset, offset - 1)
    return Done(offset, read.highest_seen, read.not_done)


def ahead(found: Found, held: Done) -> Found:
    """The group's commit, or what the table has beyond it, if a kill came between."""
    if found.committed is None:
        both = held
    else:
        known = done_of(found.committed, found.metadata)
        both = known.united(held)
        if both == known:
            return found
    return replace(found, committed=both.frontier, metadata=both.metadata(), uncommitted=True)


class Entry(NamedTuple):
    """What a table has of one partition, and the claim under which it came."""

    epoch: int
    done: Done


class Progress:
    """What a table has for one group. Immutable."""

    def __init__(self, entries: Mapping[Source, Entry] | None = None) -> None:
        self._entries = dict(entries or {})

    def get(self, source: Source) -> Entry | None:
        """What it has of a partition; None if nothing."""
        return self._entries.get(source)

    def with_done(self, more: Mapping[Source, Entry]) -> Progress:
        """The same with these entries. A former topic of the same name is dropped."""
        ids = {source.topic: source.topic_id for source in more}
        entries = {
            source: entry
            for source, entry in self._entries.items()
            if ids.get(source.topic, source.topic_id) == source.topic_id
        }
        for source, entry in more.items():
            held = entries.get(source, entry)
            epoch = max(entry.epoch, held.epoch)
            entries[source] = Entry(epoch, entry.done.united(held.done))
        return Progress(entries)

    def to_json(self) -> str:
        """For the table's own log."""
        rows = [
            [*source, epoch, done.frontier, done.top, list(done.not_done)]
            for source, (epoch, done) in self._entries.items()
        ]
        return json.dumps(rows, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Progress:
        """Parse the result of `to_json`. Raises ValueError for anything else."""
        try:
            return Progress(
                {
                    Source(str(topic), str(topic_id), int(number)): Entry(
                        int(epoch), Done(int(frontier), int(top), tuple(map(int, not_done)))
                    )
                    for topic, topic_id, number, epoch, frontier, top, not_done in json.loads(text)
                }
            )
        except TypeError as error:
            raise ValueError(str(error)) from error
