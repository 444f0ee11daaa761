"""The demo's processes: all of them end with the demo, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from perkey.errors import PerkeyError

STOP_GRACE_S = 12.0
_LOOK_S = 0.05
#: The repository, for `python -m demo…`: the processes run elsewhere.
PATH = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.getenv("PYTHONPATH"))))
# A shell that waits for the end of its input, which is our end, and then kills the child.
_GUARD = 'read -r _; kill -9 "$1"'

#: A process that is this one, and not whoever got its number later: pid and time of its start.
Identity = tuple[int, str]


class DemoError(PerkeyError):
    """A step of the demo did not do what it must."""


@dataclass(slots=True)
class Child:
    """One process, and the shell that kills it when we are gone."""

    name: str
    process: subprocess.Popen[str]
    guard: subprocess.Popen[bytes]
    log: Path

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def check(self) -> None:
        """Raise DemoError, in one line, when it has ended with a failure."""
        if self.exit_code:
            raise DemoError(
                f"{self.name} ended with exit code {self.exit_code}: {last_words(self.log)} "
                f"(all of it is in {self.log})"
            )

    def stop(self) -> None:
        """SIGTERM, and after a while SIGKILL; with everything it has started."""
        family = [] if self.exit_code is not None else descendants(self.process.pid)
        if self.exit_code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_GRACE_S)
        kill(family)
        if self.exit_code is None:
            self.process.kill()
        self.guard.kill()
        self.guard.communicate()
        self.process.communicate()


class Children:
    """All of them; a context manager that stops what still runs, the last one first."""

    def __init__(self, folder: Path, logs: Path) -> None:
        """`folder` is where they run, `logs` where their output goes."""
        self._folder, self._logs = folder, logs
        self._children: list[Child] = []
        #: every process that was seen to be ours, by whomever it was started
        self.family: set[Identity] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.stop()

    def start(
        self,
        name: str,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        read: bool = False,
    ) -> Child:
        """Run `python -m module arguments...`; `read`: its output is ours, not the log's."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=self._folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if read else errors, stderr=errors,
                env={**os.environ, "PYTHONPATH": PATH, **(env or {})}, start_new_session=True,
            )  # fmt: skip
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "perkey-demo-guard", str(process.pid)],
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        child = Child(name, process, guard, log)
        self._children.append(child)
        return child

    def look(self) -> None:
        """Remember who is there now, so that it can be told at the end whether all are gone."""
        self.family |= set(descendants(os.getpid()))


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def descendants(pid: int) -> list[Identity]:
    """The processes that this one has started, and theirs."""
    rows = _processes()
    family, found = {pid}, list[Identity]()
    grown = True
    while grown:
        grown = False
        for one, (parent, begun) in rows.items():
            if parent in family and one not in family:
                family.add(one)
                found.append((one, begun))
                grown = True
    return found


def alive(processes: Iterable[Identity]) -> list[Identity]:
    """Those that still run."""
    rows = _processes()
    return [one for one in processes if one[0] in rows and rows[one[0]][1] == one[1]]


def kill(processes: Iterable[Identity]) -> None:
    """SIGKILL to those that still run."""
    for pid, _ in alive(processes):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def left_after(processes: Iterable[Identity], seconds: float) -> list[Identity]:
    """Wait for these to end; those that did not."""
    deadline = time.monotonic() + seconds
    while (left := alive(processes)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left


def _processes() -> dict[int, tuple[int, str]]:
    """Pid -> (parent, time of its start) of all that run; the dead and not yet reaped do not."""
    shown = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="],
        capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    rows = (line.split(None, 3) for line in shown.stdout.splitlines())
    return {int(pid): (int(parent), begun) for pid, parent, state, begun in rows if state[0] != "Z"}
