"""What a member tells its driver, and how often."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.core.states import InternalError
from perkey.spark.fleet import hosting
from perkey.spark.fleet.hosting import Host
from perkey.spark.fleet.limits import ALIVE_EVERY_S, SILENT_S


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


class Ordered:
    """A run in a member, and what it was ordered; `made` while it starts."""

    def __init__(self) -> None:
        self.orders: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.orders.append((name, *given))


def test_orders_that_come_while_a_member_starts_are_obeyed() -> None:
    """Its start takes seconds: a pause that comes meanwhile is for it, too."""
    host = Host.__new__(Host)
    host._ordering, host._ordered = threading.Lock(), None
    host._paused = {"t"}
    former, run = Ordered(), Ordered()
    host._run = former  # type: ignore[assignment]  # the life before, which has ended
    host._give_orders(run)
    host._on_message({"type": "pause", "topic": "u", "on": True})
    assert run.orders == [("pause", "t"), ("pause", "u")]
    assert former.orders == []


def test_a_member_rests_before_it_starts_again(monkeypatch) -> None:
    """Each rest is twice as long; a stop ends it."""
    monkeypatch.setattr(hosting, "AGAIN_S", 0.2)
    starts: list[float] = []

    def live() -> None:
        starts.append(time.monotonic())
        if len(starts) == 3:
            threading.Timer(0.05, host._stop, ("now", "stopped")).start()
        raise OSError("no broker answers")

    host = Host.__new__(Host)
    host._welcome, host._woken, host._run = {"again": True}, threading.Event(), None
    host._stop_mode, host._why = None, "stopped"
    host._link = SimpleNamespace(deliver=lambda _: None)  # type: ignore[assignment]  # no line is needed
    monkeypatch.setattr(host, "_live", live)
    assert host._supervise() == {"why": "stopped"}
    first, second, third = starts
    assert second - first > 0.19
    assert third - second > 0.39


def test_a_member_that_is_ending_reports_no_progress() -> None:
    """Its engine has failed: it leaves by itself, and is not taken for one that did not start."""

    def call(_: Any) -> None:
        raise InternalError("the engine has failed before")

    host = Host.__new__(Host)
    run: Any = SimpleNamespace(
        member=SimpleNamespace(door=SimpleNamespace(call=call), partitions={})
    )
    host._report_progress(run)


def test_log_lines_that_are_left_out_are_counted() -> None:
    """While the line is broken too many wait: the driver's log has how many are missing."""
    sent: list[dict[str, Any]] = []
    line = [False]

    def send(message: dict[str, Any]) -> bool:
        if line[0]:
            sent.append(message)
        return line[0]

    link: Any = SimpleNamespace(send=send)
    lines = hosting.ToDriver(link, lines_max=2)
    log = logging.getLogger("perkey")
    with lines.installed(logging.INFO):
        for number in range(5):
            log.info("line %d", number)
        lines.flush()
        line[0] = True
        lines.flush()
        lines.flush()
    assert [one["text"] for one in sent] == [
        "line 0", "line 1", "log lines of this member were left out count=3",
    ]  # fmt: skip
