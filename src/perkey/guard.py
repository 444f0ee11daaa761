"""Guards: threads that report uncaught exceptions, files of this user only, states of processes.

Python only prints a thread's exception. A run would otherwise wait forever for its work.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: called with the thread's name and its uncaught exception, on that thread
Died = Callable[[str, BaseException], None]

#: the permissions that let other users change a file or folder
OTHERS_WRITE = 0o022
#: every right of others
OTHERS_ANY = 0o077

_log = logging.getLogger("perkey")


def log_death(name: str, error: BaseException) -> None:
    """For a thread that is not awaited: log it."""
    _log.critical("thread %s died, please report it with this trace", name, exc_info=error)


def thread(
    name: str, body: Callable[..., object], died: Died = log_death, *arguments: Any
) -> threading.Thread:
    """A daemon thread, not started yet, whose death is reported.

    A daemon, so that a thread that hangs does not keep the process alive.
    """

    def guarded() -> None:
        try:
            body(*arguments)
        except BaseException as error:  # also SystemExit, which Python would not even print
            died(name, error)

    return threading.Thread(target=guarded, name=name, daemon=True)


class Turns:
    """The rounds of a loop that only displays things: a failing one is logged, the next one runs.

    Each kind of error is logged once. Loops that a run needs have no such guard: the run must end.
    """

    _KINDS_MAX = 20

    def __init__(self, name: str) -> None:
        self._name = name
        self._logged: set[tuple[object, ...]] = set()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Around the body of the loop."""
        try:
            yield
        except Exception as error:
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = (type(error), place and place.tb_frame.f_code, place and place.tb_lineno)
            if where not in self._logged and len(self._logged) < self._KINDS_MAX:
                self._logged.add(where)
                what = "thread %s continues after an error, please report it with this trace"
                _log.error(what, self._name, exc_info=error)


def complaint(found: os.stat_result, others: int = OTHERS_WRITE) -> str | None:
    """The reason why it is not private to this user, to follow its path; None if it is.

    `others` are the permissions that no other user may have.
    """
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & others:
        done = "written" if found.st_mode & OTHERS_WRITE else "read"
        return f"can be {done} by others"
    return None


def state_of(entry: Path) -> str:
    """One letter of proc(5) for /proc/PID or a thread of it: T is stopped, Z has ended.

    Raises OSError where there is none.
    """
    return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
