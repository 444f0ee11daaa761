"""The only seam: the parts of the environment that are replaced while a seed runs.

Perkey's modules reach threads, queues and clocks by names of their own module (`threading`, `time`,
`SimpleQueue`, `deque`). Those names are bound to the simulated ones, wherever they are, and bound
back afterwards. Nothing of the runtime itself is changed.
"""

from __future__ import annotations

import concurrent.futures._base as futures
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any

from perkey.runtime.calls import pace
from perkey.runtime.calls.loops import new_loop
from perkey.runtime.calls.processes.link import SPAWN
from perkey.runtime.calls.processes.protocol import found_by_name, log_to_parent
from perkey.runtime.door import Reports
from perkey.runtime.run.outside import SOCKET_VARIABLE
from perkey.runtime.suspension import since_boot
from simulators.runtime.loop import SimLoop
from simulators.runtime.primitives import Primitives
from simulators.runtime.processes import Machine
from simulators.runtime.scheduler import Scheduler

#: modules that go on as they are
LEFT_ALONE = ("perkey.core", "perkey.broker")
#: where deques are shared by threads
SHARED_DEQUES = "perkey.runtime"
#: where processes are started and spoken to
PROCESSES = "perkey.runtime.calls.processes"


#: what an app imports when it runs
AT_RUN = ("perkey.runtime.run.run", "perkey.runtime.run.result_stream")
for _name in AT_RUN:
    import_module(_name)


class NothingLate:
    """Refuses modules of Perkey that come in while a seed runs: they would have the real clocks."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> ModuleSpec | None:
        """A finder of `sys.meta_path`; what is not Perkey's it leaves to the others."""
        if name.startswith("perkey."):
            raise AssertionError(f"{name} is imported by a seed: name it in AT_RUN")
        return None


@contextmanager
def installed(
    scheduler: Scheduler, machine: Machine, *, shuffle: bool, ahead: bool = False
) -> Iterator[None]:
    """Perkey runs on this scheduler inside; `ahead`: a call in 50 ms is a fast pace."""
    before = pace.PACE_PER_S, pace.PACE_CALLS
    undo: list[Callable[[], None]] = [lambda: _set_pace(*before)]
    if ahead:
        _set_pace(1.0, 0)
    made = Primitives(scheduler)
    table = _table(scheduler, made, shuffle=shuffle)
    for name, module in list(sys.modules.items()):
        if name.startswith("perkey.") and not name.startswith(LEFT_ALONE):
            _rebind(module, table, undo)
            if name.startswith(SHARED_DEQUES):
                shared = {id(deque): made.deque, id(Reports): made.reports}
                _rebind(module, shared, undo)
            if name.startswith(PROCESSES):
                _rebind(module, _of_processes(machine), undo)
    _rebind(futures, table, undo)  # run_coroutine_threadsafe waits on one of these
    finders: list[Any] = sys.meta_path
    finders.insert(0, NothingLate)
    with _undisturbed():
        try:
            yield
        finally:
            finders.remove(NothingLate)
            for step in reversed(undo):
                step()


def _set_pace(per_s: float, calls: int) -> None:
    pace.PACE_PER_S, pace.PACE_CALLS = per_s, calls


def _table(scheduler: Scheduler, made: Primitives, *, shuffle: bool) -> dict[int, Any]:
    """By the identity of what is replaced."""
    return {
        id(threading): made.threading,
        id(time): made.time,
        id(queue.SimpleQueue): made.simple_queue,
        id(threading.Thread): made.thread,
        id(threading.Lock): made.lock,
        id(threading.Event): made.event,
        id(threading.Condition): made.condition,
        id(since_boot): lambda: scheduler.now,
        id(found_by_name): lambda: False,  # the handlers of a seed are in no module
        id(new_loop): lambda: SimLoop(scheduler, shuffle=shuffle),
    }


def _rebind(module: Any, table: dict[int, Any], undo: list[Callable[[], None]]) -> None:
    for name, value in list(vars(module).items()):
        if id(value) in table:
            undo.append(lambda name=name, value=value: setattr(module, name, value))  # type: ignore[misc]  # bound at once
            setattr(module, name, table[id(value)])


def _of_processes(machine: Machine) -> dict[int, Any]:
    """What a worker process and its parent ask of the operating system."""
    return {
        id(os): machine.os,
        id(signal): machine.signal,
        id(socket): machine.socket,
        id(SPAWN): machine.spawn,
        id(log_to_parent): lambda *_: None,
    }


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No log lines, no garbage collection, which calls finalizers at any moment, no real socket."""
    log, collecting = logging.getLogger("perkey"), gc.isenabled()
    asked = os.environ.get(SOCKET_VARIABLE)
    os.environ[SOCKET_VARIABLE] = "0"  # its server waits for the world outside, for ever
    disabled, log.disabled = log.disabled, True
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that a broken seed leaves unfinished
            yield
    finally:
        log.disabled = disabled
        os.environ.pop(SOCKET_VARIABLE)
        if asked is not None:
            os.environ[SOCKET_VARIABLE] = asked
        if collecting:
            gc.enable()
