"""The proof: compare the witnesses' observations with the expected results."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from demo.tracks import Alert, Fleet
from demo.witness import Answer, Seen

Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Check:
    """One fact: what was found, what must be there, and in words what it means."""

    run: str
    name: str
    found: int
    wanted: int
    meaning: str

    @property
    def ok(self) -> bool:
        """It is as it must be."""
        return self.found == self.wanted

    def __str__(self) -> str:
        return f"{self.run}: {self.name}: {self.found:,} instead of {self.wanted:,}"


@dataclass(frozen=True, slots=True)
class RunSeen:
    """Everything that was seen of one run of Perkey from outside."""

    run: str
    answers: Sequence[Answer]
    alerts: Sequence[Seen]
    dead_letters: Sequence[Seen]
    #: (partitions with a committed offset, records before their ends)
    lag: tuple[int, int]
    #: the member that was killed, as the service knows it, and how many calls it had in flight
    killed: str | None = None
    in_flight_max: int = 0

    @property
    def handled(self) -> Counter[Where]:
        """(vehicle, seq) -> how often the service has finished with it."""
        return Counter((one.vehicle, one.seq) for one in self.answers if one.final)

    @property
    def repeats(self) -> int:
        """Positions that were handled again, each time counted."""
        return sum(count - 1 for count in self.handled.values())


def lost(seen: RunSeen, fleet: Fleet) -> int:
    """Positions the service never finished with."""
    handled = seen.handled
    return sum((p.vehicle, p.seq) not in handled for one in fleet.tracks for p in one)


def order_breaks(seen: RunSeen) -> int:
    """Calls that began before an earlier position of their vehicle was finished with.

    A member that was killed leaves calls which begin again, so a position may come twice; but none
    may be overtaken, and no member may go back.
    """
    begun: defaultdict[str, dict[int, float]] = defaultdict(dict)
    ended: dict[Where, float] = {}
    for one in seen.answers:
        begun[one.vehicle].setdefault(one.seq, one.begin)
        if one.final:
            where = one.vehicle, one.seq
            ended[where] = min(one.end, ended.get(where, one.end))
    overtaken = sum(
        ended.get((vehicle, before), float("inf")) > times[now]
        for vehicle, times in begun.items()
        for before, now in _neighbours(times)
    )
    return overtaken + _went_back(seen.answers)


def _neighbours(times: dict[int, float]) -> Iterator[tuple[int, int]]:
    ordered = sorted(times)
    yield from pairwise(ordered)


def _went_back(answers: Sequence[Answer]) -> int:
    """Calls of one member for a vehicle that came after a later position of it."""
    last: dict[tuple[str, str], int] = {}
    backwards = 0
    for one in answers:
        lane = one.member, one.vehicle
        backwards += one.seq < last.get(lane, -1)
        last[lane] = max(one.seq, last.get(lane, -1))
    return backwards


def unexplained_repeats(seen: RunSeen) -> int:
    """Repeats of what was not in the hands of the killed member."""
    by_place: defaultdict[Where, list[str]] = defaultdict(list)
    for one in seen.answers:
        if one.final:
            by_place[one.vehicle, one.seq].append(one.member)
    return sum(member != seen.killed for members in by_place.values() for member in members[:-1])


def alert_of(value: bytes) -> Alert:
    """What an alert's record says."""
    said = json.loads(value)
    return Alert(said["vehicle"], said["seq"], said["event"], said["zone"], said["at_ms"])


def alerts_out_of_order(alerts: Sequence[Seen]) -> int:
    """Alerts of a vehicle that stand for the first time behind a later one of it."""
    last: dict[str, int] = {}
    known: set[Where] = set()
    late = 0
    for one in alerts:
        alert = alert_of(one.value)
        fresh = (alert.vehicle, alert.seq) not in known
        known.add((alert.vehicle, alert.seq))
        late += fresh and alert.seq < last.get(alert.vehicle, -1)
        last[alert.vehicle] = max(alert.seq, last.get(alert.vehicle, -1))
    return late


def run_checks(seen: RunSeen, fleet: Fleet, partitions: int) -> Iterator[Check]:
    """What must hold for one run."""
    alerts = Counter(alert_of(one.value) for one in seen.alerts)
    refused = {(one["vehicle"], one["seq"]) for one in map(_json, seen.dead_letters)}
    wrong = set(alerts) ^ set(fleet.alerts)
    behind = seen.lag[1] if seen.lag[0] == partitions else -1
    run = seen.run
    yield Check(run, "lost", lost(seen, fleet), 0, "positions the service never finished with")
    yield Check(run, "order breaks", order_breaks(seen), 0, "calls that overtook an earlier one")
    if seen.killed is None:
        yield Check(run, "repeats", seen.repeats, 0, "positions that were handled twice")
    else:
        meaning = f"of {seen.repeats} repeats: not in the killed member's hands"
        yield Check(run, "unexplained repeats", unexplained_repeats(seen), 0, meaning)
        beyond = max(0, seen.repeats - seen.in_flight_max)
        meaning = f"repeats beyond the {seen.in_flight_max} calls the member had in flight"
        yield Check(run, "excess repeats", beyond, 0, meaning)
    yield Check(run, "alerts", len(alerts), len(fleet.alerts), "different alerts in the topic")
    yield Check(run, "wrong alerts", len(wrong), 0, "alerts missing, or that should not be there")
    late = alerts_out_of_order(seen.alerts)
    yield Check(run, "late alerts", late, 0, "alerts behind a later one of their vehicle")
    yield Check(
        run, "dead letters", len(refused), len(fleet.no_fix), "positions without a satellite fix"
    )
    strays = len(refused ^ set(fleet.no_fix))
    yield Check(run, "wrong dead letters", strays, 0, "dead letters of good positions, or missing")
    yield Check(run, "lag", behind, 0, "records before the ends of the group's committed offsets")


def table_checks(rows: Sequence[dict[str, Any]], alerts: Sequence[Seen]) -> Iterator[Check]:
    """What must hold for the table: each alert of the topic is one row, as it stands there."""
    places = Counter((row["partition"], row["offset"]) for row in rows)
    there = {(one.partition, one.offset): alert_of(one.value) for one in alerts}
    twice = sum(count - 1 for count in places.values())
    unlike = sum(there.get((row["partition"], row["offset"])) != _alert_in(row) for row in rows)
    misplaced = sum(str(row["date"]) != _date(row["at_ms"]) for row in rows)
    yield Check("table", "rows", len(rows), len(alerts), "rows, one for each alert of the topic")
    yield Check("table", "doubled rows", twice, 0, "rows of an alert that has one already")
    yield Check("table", "wrong rows", unlike, 0, "rows that say other things than their alert")
    yield Check("table", "misplaced rows", misplaced, 0, "rows in another date's partition")


def _alert_in(row: dict[str, Any]) -> Alert:
    return Alert(row["vehicle"], row["seq"], row["event"], row["zone"], row["at_ms"])


def _date(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).date().isoformat()


def _json(one: Seen) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(one.value)
    return said
