"""The driver's side of every member: connections, received and sent messages.

    a member sends    the driver
    hello             answers `welcome` with the orders in force (wire.py, server.py)
    begun, up         notes where its partitions start, and that it has joined the group
    progress          notes counts, finished partitions and positions; some times per second
    snapshot, answer  passes them to the caller of `shots` or `ask`
    event, ask        calls the user's callbacks; obeys a handler's app.stop(), pause(), resume()
    log               writes the line
    table             answers `table` (table/committer.py)
    died, bye         counts a death: the process restarts the run; notes that the process leaves

On its own account the driver sends `stop`, `leave`, `pause`, `snapshot` and `question`. What is
lost with a connection comes again: the welcome has the orders, and a member repeats what has no
answer (link.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from perkey.runtime.logs import event
from perkey.spark.fleet.aggregate import owned
from perkey.spark.fleet.limits import DEATHS_MAX, DEATHS_WINDOW_S, PREDECESSOR_S, SNAPSHOT_WAIT_S
from perkey.spark.fleet.slots import Incarnation, Slot, places_read
from perkey.spark.fleet.wire import Message, Wire, WireError
from perkey.types import StopMode, TopicPartition


@dataclass(slots=True)
class Orders:
    """The current settings that every member gets when it connects."""

    static: bool
    ends: list[list[Any]]
    callbacks: list[str]
    log_level: int
    paused: set[str | None] = field(default_factory=set)
    stop: StopMode | None = None

    def welcome(self) -> dict[str, Any]:
        """The part of a welcome that is the same for all."""
        return {
            "type": "welcome",
            "static": self.static,
            "ends": self.ends,
            "callbacks": self.callbacks,
            "log_level": self.log_level,
            "paused": list(self.paused),
            "stop": self.stop,
        }


@dataclass(slots=True)
class Receivers:
    """The receivers of members' messages."""

    #: (exit code, reason, error as strings, whether its member was up): the run must end
    fatal: Callable[[int, str, list[str] | None, bool], None]
    ask: Callable[[Message], None]
    event: Callable[[str, list[Any]], None]
    #: a member's message about the table, and the function to answer it
    table: Callable[[Message, Callable[[Mapping[str, Any]], object]], None] | None = None


class Roster:
    """Receives members' messages. Its condition guards every slot and signals every change."""

    def __init__(self, members: int, orders: Orders, receivers: Receivers) -> None:
        self.slots = [Slot(index) for index in range(members)]
        self.orders = orders
        self.changed = threading.Condition()
        self._receivers = receivers
        self._queries = count(1)
        self._assignments = count(1)
        #: query -> the answers so far, by member
        self._answers: dict[int, dict[int, Any]] = {}
        #: last reported positions of ended members, until another member starts there
        self._left_off: dict[TopicPartition, tuple[Slot, int]] = {}

    # -- the server's calls ------------------------------------------------------------------------

    def joined(self, hello: Message, wire: Wire) -> int | None:
        """Welcome a member, after an older run of it has left."""
        index, generation = (int(part) for part in str(hello["place"]).split("."))
        host, pid, attempt = str(hello["host"])[:200], int(hello["pid"]), int(hello["attempt"])
        incarnation = Incarnation(host, pid, generation, attempt)
        slot = self.slots[index]
        with self.changed:
            old = slot.wire
            if old is not None and slot.incarnation != incarnation:
                # An older run that is still connected leaves first: it may hold partitions.
                _send(old, {"type": "leave"})
                self.changed.wait_for(lambda: slot.wire is not old, PREDECESSOR_S)
            again = slot.up
            before = slot.incarnation
            if before is not None and generation < before.generation:
                leave = True  # a leftover of a job that was given up
            else:
                leave = self.orders.stop is not None
                if before != incarnation:
                    self._fold(slot)
                if before not in (None, incarnation) and self.orders.static and not slot.vacant:
                    # A successor does not take a place that may still be in the group: the leave
                    # request of one with a goodbye may be lost, too. If its predecessor went
                    # between the two halves of a cooperative rebalance, it has given partitions up;
                    # under the same id no rebalance would follow, and nothing would own them.
                    slot.displaced.append(slot.suffix)
                    slot.suffix += 1
                slot.begin(incarnation, wire)
                if before != incarnation and slot.lives > 1:
                    event("info", "member is back", member=index, pid=pid)
                self.changed.notify_all()
                slot.executor, slot.kernel = hello.get("executor"), hello.get("kernel")
            own = {"suffix": slot.suffix, "leave": leave, "again": again}
            # Inside the lock: before anything that is sent to all.
            if _send(wire, {**self.orders.welcome(), **own}):
                return index
        self.left(index, wire)
        return None

    def _fold(self, slot: Slot) -> None:
        self._left_off |= {where: (slot, at) for where, at in slot.fold().items()}

    def _begun(self, slot: Slot, message: Message) -> None:
        """It starts at the group's commits, which include what its predecessor did not report."""
        assignment = next(self._assignments)
        for where, at in places_read(message["partitions"]).items():
            slot.since[where] = assignment
            if where in self._left_off:
                before, reported = self._left_off.pop(where)
                before.past["done"] += at - reported
            for other in self.slots:
                if other is not slot and where in other.places:
                    other.taken[where] = at

    def received(self, index: int, wire: Wire, message: Message) -> None:
        """Dispatch a member's message."""
        slot = self.slots[index]
        kind = message["type"]
        current = slot.wire is wire
        if current:
            slot.received_at = time.monotonic()
        if kind == "log":
            name, fields = str(message["name"]), message["fields"]
            log = logging.getLogger(
                name if name.split(".", maxsplit=1)[0] == "perkey" else "perkey"
            )
            extra = {"perkey": {**fields, "member": index}} if fields else None
            text = f"member {index}: {message['text']}"
            log.log(int(message["level"]), "%s", text, extra=extra)
        elif kind == "event":
            self._receivers.event(str(message["name"]), message["items"])
        elif kind == "ask":
            self._receivers.ask(message)
        elif kind == "table" and current and self._receivers.table is not None:
            self._receivers.table(message, partial(_send, wire))
        elif kind == "table":  # a replaced member writes nothing any more
            stale = {"id": message["id"], "stale": "its place in the fleet"}
            _send(wire, {"type": "table", **stale})
        elif current:
            self._current(slot, kind, message)

    def left(self, index: int, wire: Wire) -> None:
        """A connection has ended; without a goodbye it is a death."""
        slot = self.slots[index]
        with self.changed:
            if slot.wire is not wire:
                self.changed.notify_all()
                return
            slot.wire, slot.silent_since = None, time.monotonic()
            self.changed.notify_all()
            if slot.ended or slot.leaving:
                return
            assert slot.incarnation is not None
            host, pid, *_ = slot.incarnation
        self.died(slot, f"its process {pid} on {host} ended without a word (killed, or crashed)")

    # -- received messages -------------------------------------------------------------------------

    def _current(self, slot: Slot, kind: str, message: Message) -> None:
        with self.changed:
            if kind == "up":
                slot.up = True
            elif kind == "begun":
                self._begun(slot, message)
            elif kind == "progress":
                slot.progress(message, next(self._assignments))
            elif kind == "snapshot":
                slot.shot, slot.shot_id = message, int(message["id"])
            elif kind == "answer" and message["id"] in self._answers:
                self._answers[message["id"]][slot.index] = message["answer"]
            self.changed.notify_all()
        if kind == "died":
            with self.changed:
                self._fold(slot)
                slot.lives += 1
            self.died(slot, str(message["reason"]))
        elif kind == "bye":
            why = str(message["why"])
            final = why in ("stopped", "told to", "refused", "failed")
            with self.changed:
                slot.leaving = True
                slot.ended = slot.ended or final or self.orders.stop is not None
                self.changed.notify_all()
            event("info", "member left", member=slot.index, why=why)
            if why in ("refused", "failed"):
                code = 2 if why == "refused" else int(message.get("code", 1))
                reason = f"member {slot.index}: {message.get('reason')}"
                self._receivers.fatal(code, reason, message.get("error"), slot.up)

    def died(self, slot: Slot, story: str) -> None:
        """Report a death; one too many ends the run."""
        with self.changed:
            last = slot.died()
            deaths = len(slot.deaths)
        event("warning", "member died", member=slot.index, deaths=deaths, reason=story)
        if last and self.orders.stop is None:
            self._receivers.fatal(
                1,
                f"member {slot.index} died {DEATHS_MAX} times within {DEATHS_WINDOW_S:.0f} s, the "
                f"last time: {story}",
                None,
                slot.up,
            )

    def move(self, executors: Collection[str]) -> None:
        """Make the members on these executors leave, as they go; others take their places."""
        with self.changed:
            there = [one for one in self.slots if one.wire and one.executor in executors]
            for slot in there:
                slot.executor = None  # reported once
        for slot in there:
            event("info", "member moves", member=slot.index, reason="its executor goes")
            wire = slot.wire
            if wire is not None:
                _send(wire, {"type": "leave", "why": "moved"})

    # -- sent messages -----------------------------------------------------------------------------

    def send_all(self, message: Mapping[str, Any]) -> None:
        """Send it to every connected member."""
        with self.changed:
            wires = [slot.wire for slot in self.slots if slot.wire is not None]
        for wire in wires:
            _send(wire, message)

    def shots(self) -> dict[int, Message]:
        """The members' current snapshots; the last one for a member that does not answer in time.

        Each partition is in one of them: that of its owner among those that report it.
        """
        number = next(self._queries)
        self.send_all({"type": "snapshot", "id": number})

        def answered() -> bool:
            now = time.monotonic()
            return all(
                slot.shot_id >= number
                for slot in self.slots
                if slot.up and not slot.leaving and not slot.ended and not slot.lost(now)
            )

        with self.changed:
            self.changed.wait_for(answered, SNAPSHOT_WAIT_S)
            shots = {slot: slot.shot for slot in self.slots if slot.shot}
            owners = _owners(
                (slot, [(row["topic"], row["partition"]) for row in shot["shot"]["partitions"]])
                for slot, shot in shots.items()
            )
            mine, now = defaultdict(set), time.monotonic()
            for where, slot in owners.items():
                mine[slot].add(where)
            return {
                slot.index: owned(shot, mine[slot], lost=slot.lost(now))
                for slot, shot in shots.items()
            }

    def members(self) -> list[dict[str, Any]]:
        """Each member's own snapshot; `silent_s` if it does not report."""
        shots = self.shots()
        now = time.monotonic()
        with self.changed:
            return [
                {**shot["shot"], "silent_s": self.slots[index].silent_s(now)}
                for index, shot in shots.items()
                if not self.slots[index].ended
            ]

    def ask(self, question: Mapping[str, Any], of: Slot | None = None) -> dict[str, Any]:
        """The answers of all connected members by name; a partition's owner comes first.

        `of`: query only this one.
        """
        number = next(self._queries)
        with self.changed:
            answers = self._answers[number] = {}
            wires = [one.wire for one in (self.slots if of is None else [of]) if one.wire]
        asked = sum(_send(one, {**question, "type": "question", "id": number}) for one in wires)
        where = (str(question.get("topic")), int(question.get("partition", -1)))
        now = time.monotonic()
        with self.changed:
            self.changed.wait_for(lambda: len(answers) >= asked, SNAPSHOT_WAIT_S)
            del self._answers[number]
            slots = [self.slots[index] for index in sorted(answers)]
            slots.sort(key=lambda slot: slot.claim(where, now), reverse=True)
            return {slot.name: answers[slot.index] for slot in slots}

    # -- queries -----------------------------------------------------------------------------------

    def seen(self) -> int:
        """How many members have connected."""
        return sum(slot.incarnation is not None for slot in self.slots)

    def all_up(self) -> bool:
        """Whether every member has joined the group."""
        return all(slot.up for slot in self.slots)

    def total(self, name: str) -> int:
        """One count over all members and their runs."""
        with self.changed:
            return sum(slot.total(name) for slot in self.slots)

    def finished(self) -> dict[TopicPartition, bool]:
        """Partitions that their owners report as finished; False: except for parked records.

        Reports of lost or silent members do not count.
        """
        now = time.monotonic()
        with self.changed:
            owners = _owners((slot, slot.since) for slot in self.slots if slot.trust(now))
            return {w: slot.finished[w] for w, slot in owners.items() if w in slot.finished}

    def parked(self) -> int:
        """Records that are parked now, in members that are not lost."""
        now = time.monotonic()
        with self.changed:
            return sum(slot.parked for slot in self.slots if slot.trust(now))


def _owners(
    claims: Iterable[tuple[Slot, Iterable[TopicPartition]]],
) -> dict[TopicPartition, Slot]:
    """For each reported partition the member with the best claim to it."""
    now = time.monotonic()
    owners: dict[TopicPartition, Slot] = {}
    for slot, partitions in claims:
        for where in partitions:
            other = owners.get(where)
            if other is None or slot.claim(where, now) > other.claim(where, now):
                owners[where] = slot
    return owners


def _send(wire: Wire, message: Mapping[str, Any]) -> bool:
    try:
        wire.send(message)
    except WireError:
        return False
    return True
