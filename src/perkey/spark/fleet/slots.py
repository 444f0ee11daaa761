"""The driver's data about each member.

A slot is a member's place in the fleet; the processes that hold it come and go. Its fields show:

    incarnation  wire  up   leaving  ended    state
    None         None  -    -        -        its task has not connected yet
    set          set   no   no       no       connected, loads the app and joins the group
    set          set   yes  no       no       works; silent if `received_at` is old
    set          None  -    no       no       away: its connection broke, or its process died
    set          -     -    yes      no       this process has left; Spark starts the next one
    set          -     -    yes      yes      left for good, or with a stop of the run

`up` is set for good once the slot has been in the group.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from perkey.core.commits import Found, OffsetLost, resolve
from perkey.core.partition import Partition
from perkey.spark.fleet.limits import DEATHS_MAX, DEATHS_WINDOW_S, SILENT_S
from perkey.spark.fleet.wire import Message, Wire
from perkey.types import OnLost, TopicPartition

# -- places ----------------------------------------------------------------------------------------
# Positions of members in each partition, to count what a killed one did not report.
#
# Members report counts a few times per second. What a member finished after the last one is in the
# group's commit, from which its successor starts: the offsets between the two were not reported;
# or, if it reported uncommitted records, they are handled and counted again.


def place_of(partition: Partition) -> int:
    """How many offsets of a partition are finished, or were never records."""
    offsets = partition.offsets
    return max(offsets.position, offsets.restored_top + 1) - len(offsets.incomplete)


def places_at_start(found: Mapping[TopicPartition, Found], on_lost: OnLost) -> list[list[Any]]:
    """[topic, partition, place] from the group's commits."""
    starts = {where: resolve(one, on_lost) for where, one in found.items()}
    rows: list[list[Any]] = []
    for where, start in starts.items():
        if not isinstance(start, OffsetLost):
            top = -1 if start.restored_top is None else start.restored_top
            rows.append([*where, max(start.offset, top + 1) - len(start.restored_not_done)])
    return rows


def places_read(rows: Iterable[Any]) -> dict[TopicPartition, int]:
    """Parse [topic, partition, place] from a message."""
    return {(str(topic), int(number)): int(place) for topic, number, place in rows}


class Incarnation(NamedTuple):
    """One process of a member; each connection names it."""

    host: str
    pid: int
    #: how often the member's Spark job had been submitted again, and Spark's attempt of its task
    generation: int
    attempt: int


@dataclass(slots=True, eq=False)
class Slot:
    """One member's place in the fleet, through all its runs."""

    index: int
    #: the process that connected last
    incarnation: Incarnation | None = None
    #: Spark's id of its executor, if known
    executor: str | None = None
    #: the scope of its process id, if known
    kernel: str | None = None
    #: how many dead holders of this place were removed from the group
    suffix: int = 0
    #: the last one was removed, and no successor has connected
    vacant: bool = False
    #: holders whose successor has connected: to be removed
    displaced: list[int] = field(default_factory=list)
    #: None without a connection
    wire: Wire | None = None
    #: it has joined the group at least once
    up: bool = False
    #: this run of the member has left
    leaving: bool = False
    #: it has left for good
    ended: bool = False
    #: runs of the member so far; one process may have several
    lives: int = 0
    #: counts of this run, and of earlier ones
    counts: Counter[str] = field(default_factory=Counter)
    past: Counter[str] = field(default_factory=Counter)
    #: its finished partitions -> True by the frontier, False except for parked records
    finished: dict[TopicPartition, bool] = field(default_factory=dict)
    parked: int = 0
    #: its reported position in each partition it owns (`places_read`), with its last counts
    places: dict[TopicPartition, int] = field(default_factory=dict)
    #: of these, those where another member has started since
    taken: dict[TopicPartition, int] = field(default_factory=dict)
    #: its partitions, as far as known -> number of the assignment, in the order in which the driver
    #: received them
    since: dict[TopicPartition, int] = field(default_factory=dict)
    #: when it last sent anything, by the monotonic clock
    received_at: float = 0.0
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=DEATHS_MAX))
    #: since when it has been disconnected
    silent_since: float | None = None
    #: its last snapshot, and the number of the query that it answers
    shot: Message | None = None
    shot_id: int = 0

    @property
    def name(self) -> str:
        """Its name; its number before it has reported one."""
        about = {} if self.shot is None else self.shot["shot"].get("app", {})
        return str(about.get("member", self.index))

    def begin(self, incarnation: Incarnation, wire: Wire) -> None:
        """A member has connected. Call `fold` first if it is another process."""
        if incarnation != self.incarnation:
            self.lives += 1
            self.incarnation = incarnation
        elif self.deaths and self.silent_since is not None:
            self.deaths.pop()  # the connection had broken, not the member
        self.wire, self.silent_since = wire, None
        self.leaving = self.vacant = False
        self.received_at = time.monotonic()

    def fold(self) -> dict[TopicPartition, int]:
        """A run has ended: add its counts to the past ones, drop its partitions.

        Returns the places where no other member has started since.
        """
        self.past.update(self.counts)
        self.past["done"] += self._unreported()
        left = {where: at for where, at in self.places.items() if where not in self.taken}
        self.counts, self.places, self.taken = Counter(), {}, {}
        self.finished, self.parked, self.shot, self.since = {}, 0, None, {}
        return left

    def trust(self, now: float) -> int:
        """2: alive. 1: it has left for good, its last report counts. 0: lost, leaving or silent."""
        if self.ended:
            return 1
        on_line = self.wire is not None and not self.leaving
        return 2 if on_line and now - self.received_at < SILENT_S else 0

    def claim(self, where: TopicPartition, now: float) -> tuple[int, int]:
        """How good its claim to a partition is: the highest one's is the owner."""
        return self.trust(now), self.since.get(where, 0)

    def _unreported(self) -> int:
        """What it finished after its last report, as far as others know.

        Negative: records reported but not committed, which are handled and counted again.
        """
        return sum(at - self.places[where] for where, at in self.taken.items())

    def silent_s(self, now: float) -> float:
        """For how long it has been disconnected, suspended or unreachable; 0 while it reports."""
        since = self.silent_from(now)
        return 0.0 if since is None else round(now - since, 1)

    def lost(self, now: float) -> bool:
        """Whether its last report may be outdated."""
        return self.silent_from(now) is not None or self.wire is None

    def silent_from(self, now: float) -> float | None:
        """Since when it has not reported; None while it does.

        A connection outlives a suspended process, and for a while a network that drops everything.
        """
        if self.wire is None or self.leaving or not self.up or self.ended:
            return self.silent_since
        return self.received_at if now - self.received_at >= SILENT_S else None

    def progress(self, message: Message, assignment: int) -> None:
        """Store its report; partitions listed for the first time belong to this assignment."""
        self.counts = Counter({name: int(n) for name, n in message["counts"].items()})
        self.finished = {(t, int(p)): bool(at_end) for t, p, at_end in message["finished"]}
        self.parked = int(message["parked"])
        before, self.places = self.places, places_read(message.get("places", ()))
        for where in before.keys() - self.places.keys():
            self.since.pop(where, None)
        for where in self.places:
            self.since.setdefault(where, assignment)
        self.taken = {where: at for where, at in self.taken.items() if where in self.places}

    def died(self) -> bool:
        """Count a death; True if it was one too many."""
        now = time.monotonic()
        self.deaths.append(now)
        return len(self.deaths) == DEATHS_MAX and now - self.deaths[0] <= DEATHS_WINDOW_S

    def total(self, name: str) -> int:
        """One count over all its runs."""
        gone = name == "done" and self.wire is None
        return self.past[name] + self.counts[name] + (self._unreported() if gone else 0)

    def facts(self) -> dict[str, Any]:
        """Its row in a snapshot."""
        one = self.incarnation
        here = self.up and not self.lost(time.monotonic())
        state = "ended" if self.ended else "up" if here else "away"
        return {
            "member": self.index,
            "state": state,
            "host": one and one.host,
            "pid": one and one.pid,
            "restarts": max(0, self.lives - 1),
            "done": self.total("done"),
        }
