"""Chunks of seeds in processes of their own."""

from __future__ import annotations

import operator
import threading

import pytest

from simulators.seeds import SeedsStuckError, dealt_out


def never(first: int, count: int) -> int:
    """A seed that does not come to its end."""
    threading.Event().wait()
    return first + count


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_chunk_is_run_and_told_in_order(jobs):
    """One process or two: the same answers in the same order."""
    assert list(dealt_out(operator.mul, [(1, 5), (2, 5), (3, 5)], jobs=jobs)) == [5, 10, 15]


def test_seeds_without_an_end_are_named():
    """A chunk that never ends is named, and its process is killed instead of waited for."""
    with pytest.raises(SeedsStuckError, match=r"seeds 40 to 49 have not ended after 1 s"):
        list(dealt_out(never, [(40, 10)], jobs=2, limit_s=1.0))
