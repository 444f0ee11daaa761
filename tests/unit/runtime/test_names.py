"""Partitions in a log line."""

from __future__ import annotations

import pytest

from perkey.runtime.member.rebalance import names


@pytest.mark.parametrize(
    ("partitions", "shown"),
    [
        ([], "none"),
        ([("a", 3)], "a[3]"),
        ([("b", 1), ("a", 5), ("a", 0), ("a", 2), ("a", 1)], "a[0-2,5] b[1]"),
        ([("a", n) for n in range(1000)], "a[0-999]"),
    ],
)
def test_partitions_are_shown_as_runs(partitions, shown):
    """A line stays short however many there are."""
    assert names(partitions) == shown
