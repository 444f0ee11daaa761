"""A system that has no more threads to give: those that are there do the work."""

from __future__ import annotations

import threading
import time
from typing import Any

import perkey
from perkey.runtime.calls import threads
from perkey.testing import run


def test_fewer_threads_do_the_work(monkeypatch, caplog):
    """A second thread does not start: every record is handled, and it is said once."""
    app = perkey.App(group="g", kafka={"bootstrap.servers": "x:1"})

    @app.consume("t", concurrency=8)
    def handler(record: perkey.Record) -> None:
        time.sleep(0.002)  # its work: others wait meanwhile

    real, asked = threads.guard.thread, []

    def refused() -> None:
        raise RuntimeError("can't start new thread")

    def thread(name: str, *arguments: Any) -> threading.Thread:
        made = real(name, *arguments)
        if name.startswith("perkey-handler"):
            asked.append(name)
            if len(asked) > 1:
                monkeypatch.setattr(made, "start", refused)
        return made

    monkeypatch.setattr(threads.guard, "thread", thread)
    results = run(app, [b"%d" % n for n in range(50)])
    assert [one.outcome for one in results] == ["done"] * 50
    assert len(asked) > 1
    assert caplog.text.count("no more threads available") == 1
