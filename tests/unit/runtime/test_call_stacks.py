"""The line of the handler, or of what its call really waits for, comes first."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.waiting import wait_for

import perkey
from perkey.account import snapshot as snapshots
from perkey.runtime.calls import stacks
from perkey.runtime.run import run_snapshot
from perkey.testing import MemoryKafka

LEDGER = Path(perkey.__file__).parent / "ledger/some.py"


def frames_of(call: Callable[[Callable[[], Any]], None], last: Callable[..., Any]) -> list[str]:
    """The stack of `call` while `last` runs in it."""
    found: list[FrameType] = []

    def look() -> None:
        frame: FrameType | None = sys._getframe(1)  # the stack is what is tested
        while frame is not None and frame.f_code is not frames_of.__code__:
            found.append(frame)
            frame = frame.f_back

    call(lambda: last(look))
    return stacks.lines_of(found[::-1])


def in_the_ledger(last: Callable[..., Any]) -> list[str]:
    """The stack of something that a file of the ledger calls."""
    made: dict[str, Any] = {}
    source = "def run(enter):\n    with enter():\n        pass\n"
    exec(compile(source, str(LEDGER), "exec"), made)  # a frame with that file name
    return frames_of(made["run"], last)


@contextlib.contextmanager
def _transaction(look: Callable[[], None]) -> Iterator[None]:
    look()  # where the database waits for its lock
    yield


class Handled:
    """A context manager of the user's code."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def __enter__(self) -> None:
        """As a handler is called."""
        self.look()

    def __exit__(self, *_: object) -> None:
        """Nothing."""


def test_a_call_that_waits_for_the_ledgers_database_is_named_so() -> None:
    """Not by a line of contextlib; the handler's own line comes first where it has been called."""
    waits = in_the_ledger(_transaction)
    lines = [line for line in waits if "test_call_stacks" not in line or "_transaction" in line]
    assert lines[0].startswith("ledger/some.py:2 run")
    assert not in_the_ledger(Handled)[0].startswith("ledger/some.py")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows it")
def test_a_suspended_worker_process_is_named_so() -> None:
    """It does not run outside Python: it does not run, and one command changes that."""
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            said = f"worker process {child.pid} does not answer: its call runs outside Python"
            assert stacks.of_silent_process(child.pid) == said
            child.send_signal(signal.SIGSTOP)
            wait_for(lambda: "suspended" in stacks.of_silent_process(child.pid))
            assert stacks.of_silent_process(child.pid).endswith(f"kill -CONT {child.pid}")
        finally:
            child.kill()


@pytest.mark.parametrize("generator", [False, True])
def test_an_async_prefetch_is_shown_where_it_waits(
    monkeypatch: pytest.MonkeyPatch, *, generator: bool
) -> None:
    """Not by the line of its loader's thread, which waits for the loop."""
    monkeypatch.setattr(run_snapshot, "STACK_AFTER_S", 0.1)
    monkeypatch.setattr(snapshots, "OPENS_S", 0.1)
    gate = asyncio.Event()

    async def load(records: list[perkey.Record[Any]]) -> list[None]:
        await gate.wait()
        return [None for _ in records]

    async def load_and_release(records: list[perkey.Record[Any]]) -> Any:
        await gate.wait()
        yield [None for _ in records]

    async def handler(record: perkey.Record[Any]) -> None: ...

    kafka = MemoryKafka()
    kafka.create_topic("orders")
    kafka.produce("orders", b"x")
    app = perkey.App(group="g", kafka={"bootstrap.servers": kafka.bootstrap})
    app.consume("orders", prefetch=load_and_release if generator else load, timeout_s=60)(handler)
    run = app.start()

    def stack() -> list[str]:
        (halt,) = [h for h in app.snapshot()["halts"] if h["cause"] == "not_begun"] or [{}]
        found: list[str] = halt.get("oldest", {}).get("stack", [])
        return found

    try:
        lines = wait_for(stack)
        assert "await gate.wait()" in lines[0], lines
    finally:
        run.stop("now")
        run.wait(30)
