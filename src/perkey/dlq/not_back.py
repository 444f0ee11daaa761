"""How many letters of a topic are not replayed, by error type; each scan reads only new ones.

Memory is bounded: ten bytes per letter that is not replayed, up to a limit. Letters beyond it are
counted by their offsets, as type `other`, and read once there is room.
"""

from __future__ import annotations

from array import array
from typing import Any

from perkey.dlq.letters import letter_of
from perkey.dlq.plan import Progress
from perkey.dlq.replay import PROGRESS_S, Box
from perkey.errors import FatalError
from perkey.kafka.ports import KafkaUnavailable
from perkey.types import Record, TopicPartition
from perkey.where import Condition

LETTERS_MAX = 1_000_000
#: further types are counted together
TYPES_MAX = 50
TYPE_CHARS_MAX = 100
OTHER, UNKNOWN = "other", "?"


class _Part:
    """For one partition, the letters that are not replayed, as far as it was read."""

    def __init__(self) -> None:
        #: ascending; `kinds` has the number of each one's type
        self.offsets, self.kinds = array("q"), array("B")
        self.read_to = 0
        #: start of the log and committed offset at the last scan
        self.seen: Any = None


class NotBack:
    """The counts; each `measure` returns the current ones."""

    def __init__(
        self, box: Box, group: str, where: Condition | None = None, letters_max: int = LETTERS_MAX
    ) -> None:
        """`group` records which letters were replayed; `where` selects letters."""
        self._box, self._group, self._where = box, group, where
        self._letters_max = letters_max
        self._parts: dict[TopicPartition, _Part] = {}
        #: number -> its type, and how many letters have it; unused numbers are assigned again
        self._names, self._counts = [OTHER], [0]

    def measure(self) -> dict[str, int]:
        """Unreplayed letters by type. Raises PerkeyError if that is unknown."""
        try:
            # Up to date; how many offsets were left unread
            ranges = self._box.ranges(self._box.topic)
            held = self._box.reader.committed(list(ranges), PROGRESS_S)
            progress = {}
            for where, (start, end) in ranges.items():
                committed = held.get(where, (None, ""))
                progress[where] = Progress(where, start, end)
                progress[where].restore(self._group, *committed)
                part = self._parts.setdefault(where, _Part())
                if end < part.read_to:  # the topic was recreated
                    self._drop(part, lambda _: True)
                    part.read_to = 0
                if part.seen != (start, committed):
                    back = progress[where].has
                    self._drop(
                        part, lambda offset, start=start, back=back: offset < start or back(offset)
                    )
                    part.seen = start, committed
                part.read_to = max(part.read_to, start)
            wanted = {
                where: (self._parts[where].read_to, end) for where, (_, end) in ranges.items()
            }
            self._read(wanted, progress)
            unread = sum(end - self._parts[where].read_to for where, (_, end) in wanted.items())
        except KafkaUnavailable as error:
            raise FatalError(str(error)) from None
        counts = dict(zip(self._names, self._counts, strict=True))
        counts[OTHER] += unread
        return counts

    def _drop(self, part: _Part, is_gone: Any) -> None:
        """Drop those letters of a partition."""
        offsets, kinds = array("q"), array("B")
        for offset, kind in zip(part.offsets, part.kinds, strict=True):
            if is_gone(offset):
                self._counts[kind] -= 1
            else:
                offsets.append(offset)
                kinds.append(kind)
        part.offsets, part.kinds = offsets, kinds

    def _read(
        self,
        wanted: dict[TopicPartition, tuple[int, int]],
        progress: dict[TopicPartition, Progress],
    ) -> None:
        """Read new letters, as far as there is room."""
        room = self._letters_max - sum(self._counts)
        if room <= 0:
            return
        for records in self._box.reader.read(wanted):
            for record in records:
                where = record.topic, record.partition
                part = self._parts[where]
                if (
                    not progress[where].has(record.offset)
                    and (kind := self._kind(record)) is not None
                ):
                    if not room:
                        return
                    room -= 1
                    part.offsets.append(record.offset)
                    part.kinds.append(kind)
                    self._counts[kind] += 1
                part.read_to = record.offset + 1
        for where, (_, end) in wanted.items():
            self._parts[where].read_to = end

    def _kind(self, record: Record[Any]) -> int | None:
        """The number of its type; None if it is not selected."""
        letter = letter_of(record)
        if self._where is not None and not self._where.matches(letter.field):
            return None
        name = (letter.error_type or UNKNOWN)[:TYPE_CHARS_MAX]
        if name in self._names:
            return self._names.index(name)
        free = next((at for at, count in enumerate(self._counts) if at and not count), None)
        if free is not None:
            self._names[free] = name
            return free
        if len(self._names) > TYPES_MAX:
            return 0
        self._names.append(name)
        self._counts.append(0)
        return len(self._names) - 1
