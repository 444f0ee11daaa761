"""Which letters are replayed, in which order, and how far a replay has come; pure.

Order: in each partition of the source by the record's original offset. A consumer that is ordered
by key or partition keeps it, so records of one key need not wait for each other.

Progress is what Perkey always commits: a frontier and an offset map for each partition of the
dead-letter topic, in a separate group. A letter is done when it was replayed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from perkey.codec import UnreadableMap, decode, encode_fitting
from perkey.dlq.letters import Letter, Place, origin_of
from perkey.errors import ConfigError
from perkey.kafka.ports import ToCommit
from perkey.types import Record, TopicPartition

Stale = Literal["skip", "replay", "only-if-newest"]
STALE: tuple[Stale, ...] = get_args(Stale)
#: topic, partition, key
Lane = tuple[str, int, bytes]


@dataclass(frozen=True, slots=True)
class Rules:
    """The caller's choices; `stale=None` is not chosen yet."""

    stale: Stale | None = None
    replays_max: int = 3
    limit: int | None = None


@dataclass(slots=True)
class Plan:
    """What a replay would do."""

    letters: int = 0
    brought: int = 0
    #: letters that are left out, by reason
    left_out: Counter[str] = field(default_factory=Counter)
    #: in sending order
    going: list[Letter] = field(default_factory=list)
    #: letters that may be sent, if their age is ignored
    eligible: int = 0
    #: of those, how many would run after newer records of their key
    stale: int = 0
    #: letter -> others of the same source record, which are done with it
    twins: dict[tuple[str, int, int], list[Letter]] = field(default_factory=dict)

    def types(self) -> Counter[str]:
        """How many are sent, by type of error."""
        return Counter(letter.error_type or "?" for letter in self.going)

    def facts(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "letters": self.letters,
            "brought_back": self.brought,
            "left_out": dict(self.left_out),
            "going": len(self.going),
            "types": dict(self.types()),
            "stale": self.stale,
        }

    def staleness(self) -> str:
        """How many are stale, as text."""
        count = f"{self.stale:,} of {self.eligible:,}"
        return f"{count} letters would run after newer records of their key"


def read_by(topic: str, groups: Collection[str]) -> str:
    """Where letters go and which groups read there, as text."""
    return f"to {topic}, which {', '.join(groups) or 'no group'} read{'s' * (len(groups) < 2)}"


class Progress:
    """For one partition of the dead-letter topic, which letters were replayed."""

    def __init__(self, where: TopicPartition, start: int, end: int) -> None:
        self._where = where
        self._frontier = start
        self._end = end
        #: ascending offsets of all records of the topic, letters or not
        self._offsets: list[int] = []
        self._done: set[int] = set()
        self._done_below = start
        self._map_top, self._map_holes = start - 1, frozenset[int]()

    def restore(self, group: str, offset: int | None, metadata: str) -> None:
        """Restore the group's commit; ConfigError if it belongs to another topic."""
        if offset is None:
            return
        if offset > self._end:
            topic, partition = self._where
            raise ConfigError(
                f"group {group} has brought back {topic}[{partition}] up to {offset}, and it ends "
                f"at {self._end}: was the topic recreated? Give another --group"
            )
        try:
            decoded = decode(offset, metadata, log_end=self._end)
        except UnreadableMap:
            decoded = decode(offset, "", log_end=self._end)
        self._done_below = offset
        self._map_top, self._map_holes = decoded.highest_seen, frozenset(decoded.not_done)

    def has(self, offset: int) -> bool:
        """Whether the letter at this offset was replayed."""
        if offset < self._done_below or offset in self._done:
            return True
        return offset <= self._map_top and offset not in self._map_holes

    def seen(self, offset: int) -> None:
        """The topic has a record there; ascending."""
        self._offsets.append(offset)

    def done(self, offset: int) -> None:
        """The letter there was replayed."""
        self._done.add(offset)

    def commit(self) -> tuple[ToCommit, bool]:
        """The frontier and the map, and whether it is complete: Kafka stores 4,096 characters.

        What is cut off is found in the source's log: a replayed record names its letter.
        """
        waiting = [offset for offset in self._offsets if not self.has(offset)]
        frontier = waiting[0] if waiting else self._end
        place = bisect_left(self._offsets, frontier)
        done = [offset for offset in self._offsets[place:] if self.has(offset)]
        if not done:
            return ToCommit(*self._where, frontier), True
        top = done[-1]
        holes = waiting[: bisect_left(waiting, top)]
        text, covered = encode_fitting(frontier, top, holes)
        return ToCommit(*self._where, frontier, text), covered >= top


class Guard:
    """Finds letters whose key has had newer records since, in one scan of the source.

    Newer is defined by the original offsets. Records that wait as letters themselves never ran, so
    they are not newer; a replayed letter did.
    """

    def __init__(self, pending: Iterable[Letter], *, home: bool = True) -> None:
        """`home`: they are replayed into this log, so replayed ones are found in it."""
        self._home = home
        self._pending: dict[str, Letter] = {str(letter.at): letter for letter in pending}
        #: topic -> partition, offset of a record that waits as a letter
        self._sources: set[tuple[str, int, int]] = set()
        self._positions: set[tuple[str, int, int]] = set()
        self._lanes: dict[Lane, int] = {}
        #: records whose letters may lack their key -> that key, once seen
        self._cut: dict[tuple[str, int, int], bytes | None] = {}
        #: where to start the scan
        self.starts: dict[TopicPartition, int] = {}
        for letter in self._pending.values():
            source = letter.source
            assert source is not None
            self._sources.add(source)
            self._positions.add((source.topic, source.partition, letter.position))
            where = (source.topic, source.partition)
            self.starts[where] = min(self.starts.get(where, letter.position), letter.position)
            if letter.is_cut:
                self._cut[source] = letter.key
            elif letter.key is not None:
                self._lanes.setdefault((*where, letter.key), -1)
        #: places of records that were replayed according to the log, whatever the progress shows
        self._brought: set[Place] = set()

    def look(self, records: Iterable[Record[bytes | None]]) -> None:
        """Scan records of the source, ascending."""
        for record in records:
            letter, position = origin_of(record)
            if letter is not None and (pending := self._pending.get(letter)) is not None:
                assert pending.source is not None
                self._brought.add(pending.source)
            if record.key is None:
                continue
            lane = (record.topic, record.partition, record.key)
            if (record.topic, record.partition, record.offset) in self._cut:
                self._cut[record.topic, record.partition, record.offset] = record.key
                self._lanes.setdefault(lane, -1)
            before = self._lanes.get(lane)
            if before is None or position <= before:
                continue
            where = (record.topic, record.partition)
            waits = (*where, record.offset) in self._sources or (
                letter is None and (*where, position) in self._positions
            )
            if not waits:
                self._lanes[lane] = position

    def is_brought(self, letter: Letter) -> bool:
        """Whether the log shows that its record was replayed, from this letter or another one."""
        return self._home and letter.source in self._brought

    def is_stale(self, letter: Letter) -> bool:
        """Whether a newer record of its key is in the log; a null key orders with nothing."""
        assert letter.source is not None
        key = self._cut.get(letter.source, letter.key)
        if key is None:
            return False
        lane = (letter.source.topic, letter.source.partition, key)
        return self._lanes.get(lane, -1) > letter.position


def make_plan(
    letters: Sequence[Letter],
    meant: set[str],
    progress: Mapping[TopicPartition, Progress],
    guard: Guard,
    rules: Rules,
) -> Plan:
    """Which of these letters are sent. `meant` has the places of those that --where selects."""
    plan = Plan(letters=len(letters))
    candidates: dict[tuple[str, int, int], Letter] = {}
    for letter in letters:
        if progress[letter.at[:2]].has(letter.at.offset) or guard.is_brought(letter):
            plan.brought += 1
        elif str(letter.at) not in meant:
            plan.left_out["not selected by --where"] += 1
        elif letter.source is None:
            plan.left_out["without the headers of a dead letter"] += 1
        elif letter.replays >= rules.replays_max:
            plan.left_out[f"replayed {rules.replays_max} times already (--max-replays)"] += 1
        else:
            if (twin := candidates.get(letter.source)) is not None:
                plan.left_out["twice in the topic"] += 1
                plan.twins[letter.source] = [*plan.twins.get(letter.source, []), twin]
            candidates[letter.source] = letter
    going = _in_turn(candidates.values())
    stale = {str(letter.at) for letter in going if guard.is_stale(letter)}
    plan.eligible, plan.stale = len(going), len(stale)
    if rules.stale == "only-if-newest":
        newest = {_lane(letter): letter for letter in going}
        older = [letter for letter in going if newest[_lane(letter)] is not letter]
        _leave_out(plan, older, "older than another letter of their key")
        going = list(_without(going, older))
    if rules.stale in ("skip", "only-if-newest"):
        late = [letter for letter in going if str(letter.at) in stale]
        _leave_out(plan, late, "older than newer records of their key")
        going = list(_without(going, late))
    if rules.limit is not None and len(going) > rules.limit:
        plan.left_out["beyond --limit"] += len(going) - rules.limit
        going = going[: rules.limit]
    plan.going = going
    return plan


def _in_turn(letters: Iterable[Letter]) -> list[Letter]:
    """Each partition in its order, interleaved."""
    places: Counter[TopicPartition] = Counter()
    ranked = []
    for letter in sorted(letters, key=_turn):
        assert letter.source is not None
        where = letter.source[:2]
        ranked.append((places[where], where, letter))
        places[where] += 1
    ranked.sort(key=lambda row: row[:2])
    return [letter for _, _, letter in ranked]


def _turn(letter: Letter) -> tuple[str, int, int, int]:
    source = letter.source
    assert source is not None
    return source.topic, source.partition, letter.position, source.offset


def _lane(letter: Letter) -> tuple[object, ...]:
    source = letter.source
    assert source is not None
    lane = (source.topic, source.partition)
    return (*lane, str(letter.at)) if letter.key is None else (*lane, letter.key)


def _without(going: Sequence[Letter], gone: Sequence[Letter]) -> Iterator[Letter]:
    places = {letter.at for letter in gone}
    return (letter for letter in going if letter.at not in places)


def _leave_out(plan: Plan, letters: Sequence[Letter], reason: str) -> None:
    if letters:
        plan.left_out[reason] += len(letters)
