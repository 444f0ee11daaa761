"""`perkey lag` on a narrow screen."""

from __future__ import annotations

import pytest
from rich.console import Console

from perkey.cli.lag import LagTable
from perkey.kafka.group_lag import PartitionLag

TOPIC = "gps.positions.of-the_western.fleet.v2"
PROBLEM = "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut(width):
    """Two topics whose names begin alike must be told apart, and a number is shown whole."""
    row = PartitionLag(TOPIC, 7, 123_456_789, 123_000_000, 4_500, 456_789, 123_000_001, 90.0, 40)
    console = Console(width=width, record=True)
    console.print(LagTable("geofence", [row, PartitionLag("b", 0, problem=PROBLEM)]))
    text = console.export_text()
    assert "…" not in text
    assert TOPIC in text
    assert PROBLEM in text
    assert "123,456,789" in text or width < 100  # digits fold: they are all there


@pytest.mark.parametrize("width", [50, 80])
def test_the_command_for_what_is_parked_can_be_copied(width):
    """It is a line of its own."""
    console = Console(width=width, record=True)
    row = PartitionLag("t", 0, 9, 1, 4, 4, 1, 90.0, 40, parked=11, held=2)
    console.print(LagTable("geofence-of-the-fleet", [row]))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert "perkey parked ls --group geofence-of-the-fleet" in lines


def test_a_topic_has_one_table():
    """On a narrow screen its partitions are together, though another topic's lag lies between."""
    console = Console(width=70, record=True)
    lags = [("a", 0, 9), ("b", 0, 5), ("a", 1, 1)]
    rows = [PartitionLag(topic, n, 9, 9 - left, 0, left, 1, 90.0, 40) for topic, n, left in lags]
    console.print(LagTable("g", rows))
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert (lines.count("a"), lines.count("b")) == (1, 1)
    assert lines[0] == "group g: 15 remaining in 3 partitions"
