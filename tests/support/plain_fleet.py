"""A fleet without Spark: its members are processes that this one starts. Seconds instead of minutes.

Everything above the session is the fleet's own: the driver, the control channel, the members.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any

from perkey.spark.fleet.membership import MemberTask

_MEMBER = """
import pickle, sys
from perkey.spark.fleet.task import run_member
list(run_member(pickle.load(sys.stdin.buffer), ()))
"""


class PlainSession:
    """A FleetSession whose tasks are processes; `open` takes the place of `open_session`."""

    spark = None
    master = "plain"
    ui = None
    stopped = False

    def __init__(self) -> None:
        #: cleared: no slot is free, and who has died is not started again
        self.free = threading.Event()
        self.free.set()
        self._members: dict[int, subprocess.Popen[bytes]] = {}

    def open(self, _settings: Any, _name: str) -> PlainSession:
        """This session."""
        return self

    def control_address(self, _conf: dict[str, str]) -> tuple[str, str, int]:
        """This machine, any port."""
        return "127.0.0.1", "127.0.0.1", 0

    def ship(self, _name: str, _sources: bytes) -> None:
        """The sources are here already."""

    def thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """A plain one."""
        return threading.Thread(target=target, name=name, daemon=True)

    def hold(self, task: MemberTask, _group: str, _description: str) -> None:
        """Run a member in a process of its own."""
        self.free.wait()
        process = subprocess.Popen([sys.executable, "-c", _MEMBER], stdin=subprocess.PIPE)
        self._members[task.index] = process
        process.communicate(pickle.dumps(task))
        if process.returncode:
            raise RuntimeError(f"the process ended with {process.returncode}")

    def going(self, _executors: Collection[str]) -> list[str]:
        """No one."""
        return []

    def removed(self, _executor: str) -> bool:
        """There are no executors."""
        return False

    def trouble(self, _group: str) -> None:
        """None is known."""

    def cancel(self, _group: str) -> None:
        """Kill the members that have not left."""
        self.free.set()
        for process in self._members.values():
            process.kill()

    def close(self) -> None:
        """Nothing was opened."""
