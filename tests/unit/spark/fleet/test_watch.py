"""The driver's watch: a fleet whose watch breaks ends, with the reason."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from perkey.errors import FatalError
from perkey.spark.fleet import session
from perkey.spark.fleet.ending import Ending
from perkey.spark.fleet.run import FleetRun
from perkey.spark.fleet.session import MemberJobs

pytestmark = pytest.mark.threads_may_die


@pytest.mark.parametrize("broken", ["_look_on", "_finish"])
def test_a_watch_that_breaks_ends_the_run(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its members are told to leave, and `wait` returns (it waited for ever)."""
    sent: list[dict[str, Any]] = []
    run: Any = FleetRun.__new__(FleetRun)
    run._ending, run._stopped_at, run._over, run._jobs = Ending(), None, threading.Event(), object()
    run._began, run._options = time.monotonic(), SimpleNamespace(drain_timeout_s=5.0)
    run._signals = SimpleNamespace(exit_code=None)
    run._roster = SimpleNamespace(
        changed=threading.Condition(),
        slots=[],
        orders=SimpleNamespace(stop=None),
        send_all=sent.append,
        total=lambda _name: 0,
    )

    def fail(*_: Any) -> None:
        raise ValueError("cannot look")

    for name in ("_look_on", "_finish"):
        monkeypatch.setattr(run, name, fail if name == broken else lambda *_: None)
    run._watch()
    report = run.wait(0)
    assert report.exit_code == 1
    assert report.reason == "thread perkey-watch died: ValueError: cannot look"
    assert [one["type"] for one in sent] == ["stop"]


@pytest.mark.parametrize("up", [True, False])
def test_a_member_that_ends_while_others_start(up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler's Stop is in the report; what failed before it was up is raised by the start."""
    run: Any = FleetRun.__new__(FleetRun)
    run._ending, run._stopped_at, run._starting = Ending(), None, True
    run._session = None
    run._settings = SimpleNamespace(members=2, wait_s=5.0)
    run._roster = SimpleNamespace(
        changed=threading.Condition(), seen=lambda: 2, all_up=lambda: False
    )
    monkeypatch.setattr(run, "stop", lambda _mode: None)
    run._fatal_from(1, "member 0: stopped", None, up)
    with nullcontext() if up else pytest.raises(FatalError, match="member 0: stopped"):
        run._await_members()
    assert run._ending.fatal == (1, "member 0: stopped", None)


def test_jobs_that_hang_are_awaited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred members of a Spark that does not answer took a hundred times the time-out."""
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(waits))
    monkeypatch.setattr(session, "time", clock, raising=False)
    thread = SimpleNamespace(start=lambda: None, join=waits.append)
    spark: Any = SimpleNamespace(thread=lambda _target, _name: thread)
    jobs = MemberJobs(spark, "group", lambda _: "", lambda _task, _error: None)
    tasks: Any = [SimpleNamespace(index=index) for index in range(100)]
    jobs.submit(tasks)
    jobs.join(10.0)
    assert sum(waits) == 10.0
