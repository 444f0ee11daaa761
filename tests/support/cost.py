"""What the tests take: processor seconds by directory, with all that they start.

`pytest -p tests.support.cost` ends with the table that stands in CONTRIBUTING.md; the lanes of the
Makefile load it. A broker or a JVM that is shared counts where it works: its start goes to the
first test that asks for it. PERKEY_COST=file keeps a row per test: its worker, when
it began, what it took, and its processor seconds.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

#: a test that took less has started no process; what it used counts with a later one
LOOK_S = 0.05
REST = "start and end"


class Tree:
    """Processor time of this process and of all it ever started."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        #: of those that live: what they and the children they waited for have used
        self._seen: dict[psutil.Process, float] = {}
        self._orphans: set[psutil.Process] = set()
        self._gone = 0.0

    def total(self) -> float:
        """User and system seconds so far."""
        found: dict[psutil.Process, float] = {}
        for process in {*self._me.children(recursive=True), *self._seen}:
            used = _used(process)
            if used is not None:
                found[process] = used
        # The parent of a process that ended has its seconds, unless it ended before.
        self._gone += sum(self._seen[p] for p in self._orphans - found.keys())
        self._seen = found
        family = {self._me.pid, *(p.pid for p in found)}
        self._orphans = {p for p in found if _parent(p) not in family}
        return self._gone + (_used(self._me) or 0.0) + sum(found.values())


def _used(process: psutil.Process) -> float | None:
    try:
        times = process.cpu_times()
        return sum(times[:4]) if process.is_running() else None  # user, system, and of children
    except psutil.Error:
        return None


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


class Cost:
    """Counts in each process that runs tests; the first one prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tree = Tree()
        self._used = self._tree.total()
        self._tests: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """One test, with its fixtures."""
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if time.monotonic() - began > LOOK_S:
                self._count(item.nodeid, began)

    def _count(self, node: str, began: float) -> None:
        used = self._tree.total()
        self._tests[node] += used - self._used
        self._used = used
        if (path := os.environ.get("PERKEY_COST")) and self._tests[node]:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "")
            row = f"{worker} {began:.1f} {time.monotonic() - began:.1f} {self._tests[node]:.2f} {node}"
            with Path(path).open("a") as file:
                file.write(f"{row}\n")

    def pytest_sessionfinish(self) -> None:
        """Hand over what this process has counted; no test's turn holds its start and its end."""
        if hasattr(self._config, "workeroutput"):
            rest = self._tree.total() - sum(self._tests.values())
            self._config.workeroutput["cost"] = {**self._tests, REST: rest}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has counted; one that died has said nothing."""
        for test, used in getattr(node, "workeroutput", {}).get("cost", {}).items():
            self._tests[test] += used

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table. Dealing is this process alone: what workers started may have outlived them."""
        if REST in self._tests:
            times = psutil.Process().cpu_times()
            self._tests["dealing"] = times.user + times.system
            children = psutil.Process().children(recursive=True)  # its workers have ended
            self._tests["shared broker"] = sum(_used(one) or 0.0 for one in children)
        else:
            self._tests[REST] = self._tree.total() - sum(self._tests.values())
        folders: dict[str, float] = defaultdict(float)
        for node, used in self._tests.items():
            folders[node.partition("::")[0].rpartition("/")[0] or node] += used
        rows = sorted(folders.items(), key=lambda row: -row[1])
        terminalreporter.section("processor seconds")
        for folder, used in (*rows, ("all", sum(folders.values()))):
            terminalreporter.write_line(f"| {folder} | {used:.1f} |")


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are chosen."""
    config.pluginmanager.register(Cost(config))
