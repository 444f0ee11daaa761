"""What a group's commits remember of single records: parked, held, and how often they failed.

Read from Kafka alone, also while no member runs: the riders behind the offset maps
(`perkey.codec.rider`), and the records themselves from their topic, by offset. It joins no group
and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from perkey.codec import NONE, Remembered, Rider, UnreadableMap, decode
from perkey.errors import ConfigError
from perkey.kafka.connect import Connection
from perkey.kafka.group_offsets import chosen
from perkey.kafka.log_reader import Place, fetch_stored
from perkey.types import Record, TopicPartition

ANSWER_S = 10.0
#: time limit for offsets in an open transaction
OFFSETS_S = 20.0
#: free bytes of a rider whose next entry, of up to 15 bytes, had no room; texts are rounded down
FULL_CHARS = 4096 - 16
#: the same for a text without a rider, where the map leaves no room for a first entry of up to 29
#: bytes with its frame, and for the frame of the map itself, which takes 10 more if the map is not
#: compressed yet
BARE_CHARS = 4096 - 52


class Kept(NamedTuple):
    """One record that a commit remembers."""

    topic: str
    partition: int
    known: Remembered

    @property
    def place(self) -> Place:
        """Where the record is."""
        return self.topic, self.partition, self.known.offset


@dataclass(frozen=True, slots=True)
class Part:
    """One partition's commit, as far as it can be read."""

    topic: str
    partition: int
    frontier: int
    highest_seen: int
    not_done: frozenset[int]
    rider: Rider = NONE
    #: why records may be missing from the rider; "" if none are
    problem: str = ""

    @property
    def kept(self) -> list[Kept]:
        """The records that it remembers, ascending."""
        return [Kept(self.topic, self.partition, entry) for entry in self.rider.entries]


class GroupRider:
    """The commits of one group, read once; close it, or use it as a context manager."""

    def __init__(self, connection: Connection, group: str) -> None:
        self.group = group
        self._described = connection.described()
        self._admin = connection.admin()
        self._reader = connection.log_reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._admin.close()

    def read(self, topic: str | None = None, partition: int | None = None) -> list[Part]:
        """The partitions that the group has committed, of this topic or of all topics.

        Raises ConfigError for a group, a topic or a partition that does not exist, and for a group
        that has committed nothing there.
        """
        partitions = self._partitions(topic, partition)
        held = self._reader.committed(partitions, OFFSETS_S) if partitions else {}
        stored = {
            where: stored_value
            for where, stored_value in held.items()
            if stored_value[0] is not None
        }
        if not stored:
            state, _ = self._admin.group_state(self.group, ANSWER_S)
            if state == "DEAD":
                raise ConfigError(f"group {self.group} does not exist at {self._described}")
            of = "" if topic is None else f" of topic {topic}"
            raise ConfigError(
                f"group {self.group} has committed nothing{of} yet at {self._described}"
            )
        topics = sorted({where[0] for where in stored})
        ends = self._admin.ends(topics, committed=False, timeout_s=ANSWER_S)
        return [
            _part(where, offset or 0, text, ends.get(where))
            for where, (offset, text) in sorted(stored.items())
        ]

    def records(self, places: AbstractSet[Place]) -> Iterator[Record[Any]]:
        """The records at these places, as far as they exist in their topics."""
        return fetch_stored(self._admin, self._reader, places, ANSWER_S)

    def check(self, topic: str, partition: int) -> None:
        """ConfigError for a topic or a partition that does not exist."""
        self._partitions(topic, partition)

    def _partitions(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        names = self._admin.matching(("^",), ANSWER_S) if topic is None else [topic]
        facts = self._admin.describe(names, ANSWER_S)
        if topic is not None:
            count = facts[topic].partitions if topic in facts else 0
            return chosen(topic, partition, count, self._described)
        counts = {name: facts[name].partitions for name in sorted(facts)}
        return [(name, number) for name, count in counts.items() for number in range(count)]


def _part(where: TopicPartition, frontier: int, text: str, log_end: int | None) -> Part:
    try:
        known = decode(frontier, text, log_end=log_end)
    except UnreadableMap as reason:
        problem = f"its metadata is not an offset map: {reason}"
        return Part(*where, frontier, frontier - 1, frozenset(), problem=problem)
    problem = known.rider.problem
    entries = known.rider.entries
    if not problem and entries and len(text) >= FULL_CHARS:
        last = entries[-1].offset
        problem = f"its commit has no room for more: records after offset {last} may be missing"
    elif not problem and not entries and len(text) >= BARE_CHARS:
        problem = "its commit has no room beside the offset map: records may be missing"
    not_done = frozenset(known.not_done)
    return Part(*where, frontier, known.highest_seen, not_done, known.rider, problem)
