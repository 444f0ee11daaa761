"""The user's callbacks, called in order on a separate thread, so that none delays the member."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from weft import guard

_log = logging.getLogger("weft")


class Callbacks:
    """Calls the user's functions one after another on one thread; what they raise is counted."""

    def __init__(self, died: guard.Died = guard.log_death) -> None:
        self.died = died
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.errors = 0

    def call(self, function: Callable[..., Any] | None, *arguments: Any) -> None:
        """Have the function called soon; nothing for None."""
        if function is None:
            return
        if self._thread is None:
            self._thread = guard.thread("weft-callbacks", self._run, self.died)
            self._thread.start()
        self._calls.put((function, arguments))

    @property
    def waiting(self) -> int:
        """Calls that have not begun."""
        return self._calls.qsize()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            try:
                function(*arguments)
            except (Exception, SystemExit):  # sys.exit() ends the thread, not the app: app.stop()
                self.errors += 1
                _log.exception("callback %s failed", getattr(function, "__name__", function))

    def close(self, timeout_s: float) -> None:
        """Let what is queued finish, at most for so long."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join(timeout_s)
