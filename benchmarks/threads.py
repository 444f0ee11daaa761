"""Processor time by thread of this process: it says who pays, on a busy machine, too."""

import resource
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


def thread_seconds() -> dict[str, float]:
    """Seconds on a processor so far; empty where the system does not tell (Linux does).

    Threads of the same name are one; those that Python did not start have the system's name.
    """
    named = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError):  # ended meanwhile
                name = named.get(task.name) or (task / "comm").read_text().strip()
                on_cpu_ns = int((task / "schedstat").read_text().split()[0])
                found[name] = found.get(name, 0.0) + on_cpu_ns / 1e9
    return found


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each has taken in between, where it was a millisecond at least; the most first."""
    took = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    ordered = sorted(took.items(), key=lambda one: -one[1])
    return {name: round(seconds, 4) for name, seconds in ordered if seconds >= 0.001}


def switches() -> int:
    """How often the threads of this process have given their processor away so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw
