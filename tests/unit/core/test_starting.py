"""Where a partition starts, from what is committed and what the log holds."""

from __future__ import annotations

import pytest

from perkey.codec import encode
from perkey.core.commits import Found, OffsetLost, Start, resolve

LOG = {"log_start": 10, "log_end": 50}


def found(
    committed: int | None, metadata: str = "", reset_to: int | None = 10, **log: int
) -> Found:
    """What the broker says of a log from 10 to 50, or of another one."""
    return Found(committed, metadata, **{**LOG, **log}, reset_to=reset_to)


@pytest.mark.parametrize("reset_to", [10, 50])
def test_without_a_commit_it_starts_where_the_reset_says(reset_to):
    """And that start is committed at once."""
    assert resolve(found(None, reset_to=reset_to), "stop") == Start(reset_to, commit_start=True)


def test_without_a_commit_and_a_reset_it_does_not_start():
    """`auto.offset.reset=error`."""
    lost = resolve(found(None, reset_to=None), "latest")
    assert isinstance(lost, OffsetLost)
    assert "auto.offset.reset" in lost.reason


@pytest.mark.parametrize("committed", [10, 30, 50])
def test_a_commit_within_the_log_is_where_it_starts(committed):
    """Its start and its end count as within; nothing is told, nothing committed anew."""
    assert resolve(found(committed), "stop") == Start(committed, committed - 1)


def test_the_map_reports_what_is_done():
    """Up to its top, but for its holes."""
    text = encode(20, 24, [20, 22])
    assert resolve(found(20, text), "stop") == Start(20, 24, (20, 22))


def test_a_map_that_cannot_be_read_is_left_out_with_a_warning():
    """The offset still holds; what was done past it repeats."""
    start = resolve(found(20, "%%%"), "stop")
    assert isinstance(start, Start)
    assert (start.offset, start.restored_top, start.restored_not_done) == (20, 19, ())
    assert start.warning.startswith("commit metadata ignored")
    assert not start.commit_start


@pytest.mark.parametrize(("policy", "target"), [("earliest", 10), ("latest", 50)])
def test_a_commit_past_the_log_goes_where_the_policy_says(policy, target):
    """It is told, and committed at once."""
    start = resolve(found(51), policy)
    assert isinstance(start, Start)
    assert (start.offset, start.commit_start, start.restored_top) == (target, True, None)
    assert f"continuing at {policy}, {target}" in start.warning


def test_a_commit_past_the_log_stops_where_the_policy_is_to_stop():
    """With both numbers."""
    lost = resolve(found(51), "stop")
    assert isinstance(lost, OffsetLost)
    assert "committed offset 51 is past the end of the log 50" in lost.reason


def test_a_commit_before_the_log_starts_where_the_log_does():
    """What the map says of the rest still holds."""
    text = encode(5, 24, [5, 7, 10, 22])
    start = resolve(found(5, text), "stop")
    assert isinstance(start, Start)
    assert (start.offset, start.restored_top, start.restored_not_done) == (10, 24, (10, 22))
    assert start.commit_start
    assert "retention deleted what lay between" in start.warning


@pytest.mark.parametrize("metadata", ["", "%%%"])
def test_a_commit_before_the_log_without_a_map(metadata):
    """Nothing at or past the start is done; both warnings are told."""
    start = resolve(found(5, metadata), "stop")
    assert isinstance(start, Start)
    assert (start.offset, start.restored_top, start.restored_not_done) == (10, 9, ())
    assert ("commit metadata ignored" in start.warning) == bool(metadata)
