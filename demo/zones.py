"""The city's zones and the meaning of crossing their borders, for the service and the proof."""

from __future__ import annotations

import math
from dataclasses import dataclass

METRES_PER_DEGREE = 111_320.0
CENTRE_LAT, CENTRE_LON = 53.55, 10.0
_METRES_PER_DEGREE_LON = METRES_PER_DEGREE * math.cos(math.radians(CENTRE_LAT))


@dataclass(frozen=True, slots=True)
class Zone:
    """A circle on the map: centre in metres east and north of the city's, radius in metres."""

    name: str
    east_m: float
    north_m: float
    radius_m: float


ZONES = (
    Zone("harbour", -3_500, -3_200, 1_900),
    Zone("old town", 200, -300, 1_300),
    Zone("airport", 1_200, 7_200, 1_700),
    Zone("fair", -2_200, 1_500, 900),
    Zone("stadium", -6_800, 3_900, 1_000),
    Zone("rail yard", 5_200, -1_900, 1_400),
    Zone("hospital", 3_600, 3_300, 900),
    Zone("depot", 6_800, 6_400, 1_100),
    Zone("park", -7_000, -7_300, 1_500),
    Zone("island", 3_300, -7_400, 1_600),
)


def to_degrees(east_m: float, north_m: float) -> tuple[float, float]:
    """Latitude and longitude of a place in metres, to about a decimetre."""
    lat = CENTRE_LAT + north_m / METRES_PER_DEGREE
    lon = CENTRE_LON + east_m / _METRES_PER_DEGREE_LON
    return round(lat, 6), round(lon, 6)


def to_metres(lat: float, lon: float) -> tuple[float, float]:
    """The reverse: metres east and north of the centre."""
    east_m = (lon - CENTRE_LON) * _METRES_PER_DEGREE_LON
    return east_m, (lat - CENTRE_LAT) * METRES_PER_DEGREE


def zone_of(lat: float, lon: float) -> str | None:
    """The zone that holds this place."""
    east_m, north_m = to_metres(lat, lon)
    for zone in ZONES:
        if math.hypot(east_m - zone.east_m, north_m - zone.north_m) <= zone.radius_m:
            return zone.name
    return None


def is_on_earth(lat: float, lon: float) -> bool:
    """False for what a receiver without a fix sends."""
    return -90.0 <= lat <= 90.0 and -180.0 <= lon <= 180.0


def crossing(before: str | None, now: str | None) -> tuple[str, str] | None:
    """(event, zone) of a vehicle that was in one zone and is in another; None where nothing is."""
    if now == before:
        return None
    return ("entered", now) if now is not None else ("left", str(before))
