"""The vehicles: plausible tracks, the same in every run, and their expected alerts."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from demo.zones import crossing, is_on_earth, to_degrees, to_metres, zone_of

SEED = 2026
VEHICLES = 400
STEP_S = 30
#: 2026-11-19 23:20 UTC: the tracks run past midnight, so that the table has two dates.
START_MS = 1_795_130_400_000
#: One position in so many comes from a receiver that has lost its satellites.
NO_FIX_ONE_IN = 2_000
HALF_SIDE_M = 10_000.0
_NO_FIX_LAT = 999.0


@dataclass(frozen=True, slots=True)
class Position:
    """What a vehicle sends."""

    vehicle: str
    seq: int
    at_ms: int
    lat: float
    lon: float
    speed_kmh: float

    def to_json(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True, order=True)
class Alert:
    """A vehicle crossed a zone's border; `seq` is the position at which that was seen."""

    vehicle: str
    seq: int
    event: str
    zone: str
    at_ms: int


def vehicle_name(index: int) -> str:
    """`v0007`."""
    return f"v{index:04d}"


def track(index: int, steps: int) -> Iterator[Position]:
    """One vehicle's positions; fewer steps give the beginning of the same track."""
    dice = random.Random(f"{SEED}-{index}")
    east_m, north_m = (dice.uniform(-HALF_SIDE_M, HALF_SIDE_M) for _ in "xy")
    heading, speed_mps = dice.uniform(0, 2 * math.pi), dice.uniform(6, 14)
    for seq in range(steps):
        heading += dice.gauss(0, 0.25)
        speed_mps = min(22.0, max(2.0, speed_mps + dice.gauss(0, 1.2)))
        if max(abs(east_m), abs(north_m)) > HALF_SIDE_M:
            # Out of town: turn round, towards the centre.
            heading = math.atan2(-east_m, -north_m) + dice.gauss(0, 0.4)
        east_m += math.sin(heading) * speed_mps * STEP_S
        north_m += math.cos(heading) * speed_mps * STEP_S
        lat, lon = to_degrees(east_m, north_m)
        if dice.randrange(NO_FIX_ONE_IN) == 0:
            lat = _NO_FIX_LAT
        at_ms = START_MS + seq * STEP_S * 1_000 + index * 37 % 1_000
        yield Position(vehicle_name(index), seq, at_ms, lat, lon, round(speed_mps * 3.6, 1))


def alerts_of(positions: list[Position]) -> Iterator[Alert]:
    """The alerts that one vehicle's track must cause; positions without a fix change nothing."""
    before: str | None = None
    for position in positions:
        if not is_on_earth(position.lat, position.lon):
            continue
        now = zone_of(position.lat, position.lon)
        event = crossing(before, now)
        if event is not None:
            yield Alert(position.vehicle, position.seq, *event, position.at_ms)
        before = now


@dataclass(frozen=True, slots=True)
class Fleet:
    """All vehicles' tracks, and what must come of them."""

    tracks: list[list[Position]]
    alerts: frozenset[Alert]
    no_fix: frozenset[tuple[str, int]]

    @property
    def records(self) -> int:
        """How many positions there are in all."""
        return sum(len(one) for one in self.tracks)

    def in_time_order(self) -> Iterator[Position]:
        """As the topic gets them: all vehicles' first positions, then their second ones, ..."""
        for together in zip(*self.tracks, strict=True):
            yield from together


def fleet(vehicles: int, steps: int) -> Fleet:
    """The tracks of so many vehicles, with their expected alerts and dead letters."""
    tracks = [list(track(index, steps)) for index in range(vehicles)]
    alerts = frozenset(alert for one in tracks for alert in alerts_of(one))
    no_fix = frozenset(
        (p.vehicle, p.seq) for one in tracks for p in one if not is_on_earth(p.lat, p.lon)
    )
    return Fleet(tracks, alerts, no_fix)


def path_m(positions: list[Position]) -> list[tuple[float, float]]:
    """A track as points in metres from the centre, for a picture."""
    return [to_metres(p.lat, p.lon) for p in positions if is_on_earth(p.lat, p.lon)]
