"""The demo's vehicles and its service's moods: the same at every run."""

from __future__ import annotations

import math
from itertools import pairwise

from demo.service import FAILING_SHARE, SLOW_ANSWER_S, SLOW_SHARE, trouble_of
from demo.tracks import STEP_S, fleet, path_m, track
from demo.zones import ZONES, crossing, to_degrees, to_metres, zone_of


def test_tracks_are_the_same_every_time_and_short_ones_begin_long_ones() -> None:
    """A fixed seed: `--fast` sees the beginning of what the whole demo sees."""
    assert list(track(7, 40)) == list(track(7, 40))
    assert list(track(7, 10)) == list(track(7, 40))[:10]
    assert list(track(7, 10)) != list(track(8, 10))


def test_vehicles_move_as_vehicles_do() -> None:
    """No vehicle is faster than 80 km/h between two positions, nor leaves the region."""
    for index in range(20):
        path = path_m(list(track(index, 100)))
        assert all(max(abs(east), abs(north)) < 13_000 for east, north in path)
        hops = [math.dist(a, b) for a, b in pairwise(path)]
        # Where a position without a fix was left out, two steps are one hop.
        assert all(hop / STEP_S * 3.6 < 80 for hop in sorted(hops)[:-3])


def test_the_topic_gets_positions_in_time_order() -> None:
    """All vehicles' first positions come before any second one; keys stay in order."""
    sequence = [position.seq for position in fleet(5, 4).in_time_order()]
    assert sequence == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


def test_slow_and_failing_answers_follow_from_content() -> None:
    """1 % slow and 0.5 % failing, the same ones at every call."""
    moods = [trouble_of(f"v{v:04d}", seq) for v in range(400) for seq in range(150)]
    assert moods == [trouble_of(f"v{v:04d}", seq) for v in range(400) for seq in range(150)]
    failing = sum(failures > 0 for failures, _ in moods) / len(moods)
    slow = sum(seconds == SLOW_ANSWER_S for _, seconds in moods) / len(moods)
    assert abs(failing - FAILING_SHARE) < 0.001
    assert abs(slow - SLOW_SHARE) < 0.002


def test_crossings_of_zones() -> None:
    """In, on, and out again; from one zone straight into another is entering the second."""
    zone = ZONES[0]
    place = to_degrees(zone.east_m, zone.north_m)
    assert zone_of(*place) == zone.name
    assert zone_of(*to_degrees(zone.east_m + zone.radius_m + 5, zone.north_m)) is None
    assert math.dist(to_metres(*place), (zone.east_m, zone.north_m)) < 1
    assert crossing(None, "park") == ("entered", "park")
    assert crossing("park", "park") is None
    assert crossing("park", None) == ("left", "park")
    assert crossing("park", "fair") == ("entered", "fair")
