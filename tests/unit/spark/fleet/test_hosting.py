"""What a member tells its driver, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.spark.fleet import hosting
from weft.spark.fleet.hosting import Host
from weft.spark.fleet.limits import ALIVE_EVERY_S, SILENT_S


@pytest.mark.parametrize(
    ("after_s", "done", "told"),
    [(0.25, 5, 1), (0.25, 6, 2), (ALIVE_EVERY_S - 0.01, 5, 1), (ALIVE_EVERY_S, 5, 2)],
)
def test_progress_is_reported_when_there_is_some(monkeypatch, after_s, done, told) -> None:
    """And where there is none, often enough that the driver knows that it lives."""
    sent: list[Any] = []
    now = [100.0]
    counts = [5]
    monkeypatch.setattr(hosting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    host = Host.__new__(Host)
    host._link = SimpleNamespace(send=sent.append)  # type: ignore[assignment]  # no line is needed
    host._progress, host._alive_at = {}, 0.0
    door = SimpleNamespace(call=lambda _: {"counts": {"done": counts[0]}})
    run: Any = SimpleNamespace(member=SimpleNamespace(door=door, partitions={}))
    host._report_progress(run)
    now[0], counts[0] = 100.0 + after_s, done
    host._report_progress(run)
    assert len(sent) == told
    assert host._idle == (done == 5)


def test_an_idle_member_is_not_silent() -> None:
    """It reports before the driver would call it that, also where two looks come too early."""
    assert ALIVE_EVERY_S + 2 * hosting._IDLE_LOOK_S < SILENT_S
