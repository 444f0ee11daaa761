"""Threads that cannot die unheard: what escapes from a thread's body is told to who runs it.

Python only prints it. A run whose helper has died so would wait for ever for what it should do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

#: told the thread's name and what escaped from it, on that thread
Died = Callable[[str, BaseException], None]

_log = logging.getLogger("weft")


def log_death(name: str, error: BaseException) -> None:
    """For a thread that nobody waits for: say it in the log."""
    _log.critical("thread %s died, please report it with this trace", name, exc_info=error)


def thread(
    name: str, body: Callable[..., object], died: Died = log_death, *arguments: Any
) -> threading.Thread:
    """A daemon thread, not started yet, whose death is told.

    Daemons: what hangs for ever must not keep the process alive.
    """

    def guarded() -> None:
        try:
            body(*arguments)
        except BaseException as error:  # also SystemExit, which Python would not even print
            died(name, error)

    return threading.Thread(target=guarded, name=name, daemon=True)
