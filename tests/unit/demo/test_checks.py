"""The demo's judge: every kind of fault that it must see, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from demo import checks
from demo.tracks import Alert, Fleet, Position, alerts_of
from demo.witness import Answer, Seen
from demo.zones import ZONES, to_degrees

PARTITIONS = 10


def positions_of(vehicle: str) -> list[Position]:
    """In the old town, out of it, without a fix, and in it again."""
    zone = next(zone for zone in ZONES if zone.name == "old town")
    inside = to_degrees(zone.east_m, zone.north_m)
    outside = to_degrees(zone.east_m, zone.north_m + 3 * zone.radius_m)
    places = [inside, outside, (999.0, 10.0), inside]
    return [Position(vehicle, seq, 1_000 * seq, *place, 30.0) for seq, place in enumerate(places)]


FLEET = Fleet(
    [positions_of("v1"), positions_of("v2")],
    frozenset(alert for name in ("v1", "v2") for alert in alerts_of(positions_of(name))),
    frozenset({("v1", 2), ("v2", 2)}),
)


def answer(vehicle: str, seq: int, at: float, member: str = "1", status: int = 200) -> Answer:
    """A call that took half a second."""
    return Answer(at, at + 0.5, member, vehicle, seq, status)


ANSWERS = [
    answer(vehicle, seq, float(seq), status=422 if seq == 2 else 200)
    for seq in range(4)
    for vehicle in ("v1", "v2")
]


def value_of(alert: Alert) -> bytes:
    """As the app writes it."""
    return json.dumps(asdict(alert)).encode()


ALERTS = [
    Seen(0, offset, alert.vehicle.encode(), value_of(alert), {})
    for offset, alert in enumerate(sorted(FLEET.alerts))
]
LETTERS = [
    Seen(0, offset, name.encode(), positions_of(name)[2].to_json(), {})
    for offset, name in enumerate(("v1", "v2"))
]
GOOD = checks.RunSeen("local", ANSWERS, ALERTS, LETTERS, (PARTITIONS, 0))


def broken(seen: checks.RunSeen) -> set[str]:
    """The names of the checks that do not hold."""
    found = checks.run_checks(seen, FLEET, PARTITIONS)
    return {check.name for check in found if not check.ok}


def test_a_good_run_passes() -> None:
    """Everything as it must be: every check holds."""
    assert broken(GOOD) == set()


def overtaken() -> checks.RunSeen:
    early = replace(ANSWERS[6], begin=1.2)  # v1's last, before the one before it has ended
    return replace(GOOD, answers=sorted([*ANSWERS[:6], early, ANSWERS[7]], key=lambda a: a.begin))


def gone_back() -> checks.RunSeen:
    return replace(GOOD, answers=[*ANSWERS, answer("v1", 1, 9.0)])


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (replace(GOOD, answers=ANSWERS[:-1]), {"lost"}),
        (replace(GOOD, answers=[*ANSWERS[:-1], replace(ANSWERS[-1], status=503)]), {"lost"}),
        (overtaken(), {"order breaks"}),
        (gone_back(), {"order breaks", "repeats"}),
        (replace(GOOD, answers=[*ANSWERS, answer("v1", 3, 9.0)]), {"repeats"}),
        (replace(GOOD, alerts=ALERTS[1:]), {"alerts", "wrong alerts"}),
        (replace(GOOD, alerts=ALERTS[::-1]), {"late alerts"}),
        (replace(GOOD, dead_letters=LETTERS[1:]), {"dead letters", "wrong dead letters"}),
        (replace(GOOD, lag=(PARTITIONS, 3)), {"lag"}),
        (replace(GOOD, lag=(PARTITIONS - 1, 0)), {"lag"}),
    ],
)  # fmt: skip
def test_each_fault_is_seen(seen: checks.RunSeen, names: set[str]) -> None:
    """One fault turns exactly its own checks red."""
    assert broken(seen) == names


def test_a_failed_answer_that_is_tried_again_is_no_repeat() -> None:
    """503 and then 200 for the same position: handled once."""
    again = [replace(one, begin=one.begin - 0.4, end=one.begin, status=503) for one in ANSWERS[2:3]]
    answers = sorted([*ANSWERS, *again], key=lambda one: one.begin)
    assert broken(replace(GOOD, answers=answers)) == set()


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [("1", "2", set()), ("2", "1", {"unexplained repeats"})],
)
def test_only_the_killed_member_explains_repeats(first: str, second: str, names: set[str]) -> None:
    """A repeat is excused when the killed member had the position before, and only then."""
    others = [one for one in ANSWERS if (one.vehicle, one.seq) != ("v1", 3)]
    twice = [answer("v1", 3, 3.0, first), answer("v1", 3, 9.0, second)]
    assert broken(replace(GOOD, answers=[*others, *twice], killed="1", in_flight_max=1)) == names


def test_a_kill_repeats_no_more_than_was_in_flight() -> None:
    """Two repeats are two, of a member that had two calls in flight, and one too many of one."""
    again = [answer("v1", 3, 9.0, "2"), answer("v2", 3, 9.0, "2")]
    seen = replace(GOOD, answers=[*ANSWERS, *again], killed="1")
    assert broken(replace(seen, in_flight_max=2)) == set()
    assert broken(replace(seen, in_flight_max=1)) == {"excess repeats"}


def row_of(seen: Seen) -> dict[str, object]:
    """A row as the table holds it."""
    place = {"partition": seen.partition, "offset": seen.offset, "date": "1970-01-01"}
    return {**json.loads(seen.value), **place}


ROWS = [row_of(one) for one in ALERTS]


def table_broken(rows: list[dict[str, object]]) -> set[str]:
    """The names of the table's checks that do not hold."""
    return {check.name for check in checks.table_checks(rows, ALERTS) if not check.ok}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda rows: rows, set()),
        (lambda rows: rows[1:], {"rows"}),
        (lambda rows: [*rows, rows[0]], {"rows", "doubled rows"}),
        (lambda rows: [rows[0], rows[0], *rows[2:]], {"doubled rows"}),
        (lambda rows: [{**rows[0], "zone": "park"}, *rows[1:]], {"wrong rows"}),
        (lambda rows: [{**rows[0], "date": "1970-01-02"}, *rows[1:]], {"misplaced rows"}),
    ],
)
def test_each_fault_of_the_table_is_seen(
    change: Callable[[list[dict[str, object]]], list[dict[str, object]]], names: set[str]
) -> None:
    """Missing, doubled, altered and misplaced rows are each told."""
    assert table_broken(change(ROWS)) == names
