"""Members' reports to the user on the driver: results and callbacks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from weft.app_options import AppOptions
from weft.errors import ConfigError
from weft.runtime.member.seat import Callbacks
from weft.runtime.run.result_stream import ResultStream, forward
from weft.types import Committed, Result

_log = logging.getLogger("weft")

#: callbacks that members report; on_result reads the results
REPORTED = ("on_commit", "on_assign", "on_revoke")


class Relay:
    """The user's reader and callbacks. Callbacks run one after another on a thread of their own."""

    def __init__(
        self,
        options: AppOptions,
        stream: ResultStream | None,
        want: Callable[[bool], None],
        seen: Callable[[Result], Result] | None,
    ) -> None:
        """`want` informs the members whether results have a reader; `seen`: see `as_handled`."""
        self._seen = seen
        self._options, self._stream, self._want = options, stream, want
        self.callbacks = Callbacks()
        self._lock = threading.Lock()
        #: held while the members are informed: the last word is of the last state
        self._wanting = threading.Lock()
        self._full = False
        self._over = False
        self._owed: list[Callable[[], None]] = []

    def wanted(self) -> list[str]:
        """The callbacks that the app has."""
        return [name for name in REPORTED if getattr(self._options, name) is not None]

    def begin(self) -> None:
        """Serve the reader that was there before the run, or `on_result`."""
        if self._options.on_result is not None and self._stream is None:
            self._stream = ResultStream()
            self._stream.as_handled = self._seen
            forward(self._stream, self._options.on_result, self.callbacks)
        elif self._options.on_result is not None:
            _log.warning("on_result and app.results() were both asked for: app.results() reads")
        if self._stream is not None:
            self._attach(self._stream)

    def open(self) -> ResultStream:
        """A stream of the results from now on."""
        with self._lock:
            if self._stream is not None and not self._stream.closed:
                raise ConfigError("app.results() is already being read; only one reader is allowed")
            stream = self._stream = ResultStream()
            over = self._over
        if over:  # the run ended between the question and this: end the reader
            stream.end()
        else:
            self._attach(stream)
        return stream

    def end(self) -> None:
        """Nothing more comes."""
        with self._lock:
            self._over, stream = True, self._stream
        if stream is not None:
            stream.end()
        self.callbacks.close(1.0)

    def take(self, results: list[Result], taken: Callable[[], None]) -> None:
        """On a member's thread. While the reader is behind, acknowledgements wait."""
        if self._stream is not None:
            self._stream.put(results)
        with self._lock:
            if self._full:
                self._owed.append(taken)
                return
        taken()

    def event(self, name: str, items: list[Any]) -> None:
        """Call a callback of the user's."""
        if name not in REPORTED:
            return
        values: list[Any]
        if name == "on_commit":
            values = [Committed(*item) for item in items]
        else:
            values = [(topic, number) for topic, number in items]
        self.callbacks.call(getattr(self._options, name), values)

    def _attach(self, stream: ResultStream) -> None:
        def gone() -> None:
            with self._wanting:
                if self._stream is stream:  # else another reader has come meanwhile
                    self._want(False)

        stream.on_level, stream.on_close = self._level, gone
        with self._wanting:
            self._want(True)

    def _level(self, full: bool) -> None:  # noqa: FBT001  # as ResultStream.on_level calls it
        with self._lock:
            self._full = full
            owed, self._owed = ([], self._owed) if full else (self._owed, [])
        for taken in owed:
            taken()
