"""The city from above, as SVG: zones, some vehicles' tracks, and where alerts were raised."""

from __future__ import annotations

from collections.abc import Iterator

from demo.tracks import HALF_SIDE_M, Fleet, path_m
from demo.zones import ZONES, to_metres

_TRACKS_SHOWN = 60
_SIDE = 640.0
_SCALE = _SIDE / (2.3 * HALF_SIDE_M)


def city_map(fleet: Fleet) -> str:
    """The picture."""
    parts = [*_zones(), *_tracks(fleet), *_alerts(fleet), *_names()]
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {_SIDE:.0f} {_SIDE:.0f}" role="img" '
        f'aria-label="Map of the zones, tracks and alerts">{inside}</svg>'
    )


def _xy(east_m: float, north_m: float) -> tuple[float, float]:
    return _SIDE / 2 + east_m * _SCALE, _SIDE / 2 - north_m * _SCALE


def _zones() -> Iterator[str]:
    for zone in ZONES:
        x, y = _xy(zone.east_m, zone.north_m)
        yield f'<circle class="zone" cx="{x:.1f}" cy="{y:.1f}" r="{zone.radius_m * _SCALE:.1f}"/>'


def _names() -> Iterator[str]:
    for zone in ZONES:
        x, y = _xy(zone.east_m, zone.north_m)
        yield f'<text class="name" x="{x:.1f}" y="{y + 4:.1f}">{zone.name}</text>'


def _tracks(fleet: Fleet) -> Iterator[str]:
    for positions in fleet.tracks[:_TRACKS_SHOWN]:
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in (_xy(*p) for p in path_m(positions)))
        yield f'<polyline class="track" points="{points}"/>'


def _alerts(fleet: Fleet) -> Iterator[str]:
    shown = {positions[0].vehicle: positions for positions in fleet.tracks[:_TRACKS_SHOWN]}
    for alert in sorted(fleet.alerts):
        if alert.vehicle in shown:
            position = shown[alert.vehicle][alert.seq]
            x, y = _xy(*to_metres(position.lat, position.lon))
            yield f'<circle class="{alert.event}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
