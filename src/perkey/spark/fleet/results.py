"""Results and callbacks, from the members to the user on the driver.

Results are sent only if there is a reader. A member has a bounded number in flight. The driver
acknowledges results only as fast as its reader takes them: so a slow reader slows the intake of
every member, as in one process.
"""

from __future__ import annotations

import base64
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from perkey import guard
from perkey.app_options import AppOptions
from perkey.errors import ConfigError
from perkey.runtime.member.group_membership import Callbacks
from perkey.runtime.run.result_stream import ResultStream, forward
from perkey.spark.fleet.limits import LINE_BYTES_MAX, RESULTS_UNDER_WAY_MAX
from perkey.spark.fleet.link import Link
from perkey.spark.fleet.shipping import dumps
from perkey.types import Committed, Result

_log = logging.getLogger("perkey")

_TAKE_S = 0.2
#: most bytes of one line, before base64 makes it a third longer
_DATA_BYTES_MAX = LINE_BYTES_MAX * 3 // 4 - 1_024
_FLUSH_S = 10.0


class ResultsUp:
    """The member's side: reads the run's stream and sends it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        #: the driver treats a lower number after a higher one as a duplicate
        self._in_order = threading.Lock()
        self._sequence = 0
        #: sent and not acknowledged: (sequence, number of results, message)
        self._under_way: deque[tuple[int, int, dict[str, Any]]] = deque()
        self._count = 0
        self._free = False
        self._thread: threading.Thread | None = None

    def follow(self, stream: ResultStream) -> None:
        """Send the results of this stream, on a separate thread."""
        self._free = False
        self._thread = guard.thread("perkey-results", self._forward, guard.log_death, stream)
        self._thread.start()

    def flush(self) -> None:
        """The run has ended: send the rest, even if the reader does not keep up."""
        with self._changed:
            self._free = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_FLUSH_S)

    def acknowledged(self, sequence: int) -> None:
        """The driver has received everything up to this number."""
        with self._changed:
            while self._under_way and self._under_way[0][0] <= sequence:
                self._count -= self._under_way.popleft()[1]
            self._changed.notify_all()

    def again(self) -> None:
        """The connection was broken: resend what may be lost; the driver drops duplicates."""
        with self._in_order:
            with self._changed:
                messages = [message for _, _, message in self._under_way]
            for message in messages:
                self._link.send(message)

    def _forward(self, stream: ResultStream) -> None:
        while not stream.over and not stream.closed:
            with self._changed:
                self._changed.wait_for(self._may_send, _TAKE_S)
                if not self._may_send():
                    continue
            results = stream.take(_TAKE_S)
            if results:
                self._send(results)

    def _may_send(self) -> bool:
        return self._free or self._count < RESULTS_UNDER_WAY_MAX

    def _send(self, results: Sequence[Result]) -> None:
        data = encoded(results)
        if len(data) > _DATA_BYTES_MAX and len(results) > 1:
            half = len(results) // 2
            self._send(results[:half])
            self._send(results[half:])
            return
        if len(data) > _DATA_BYTES_MAX:
            data = encoded([without_values(results[0])])
        text = base64.b64encode(data).decode()
        with self._in_order:  # numbered inside: a former stream's thread may send its last ones
            self._sequence += 1
            message = {"type": "results", "sequence": self._sequence, "data": text}
            with self._changed:
                self._under_way.append((self._sequence, len(results), message))
                self._count += len(results)
            self._link.send(message)


def encoded(results: Sequence[Result]) -> bytes:
    """Results as bytes. Classes of the app's own module become the driver's classes."""
    try:
        return pickle.dumps(results, protocol=5)
    except Exception:
        # A class that was shipped by value has no module here: cloudpickle knows its origin.
        with suppress(Exception):
            return dumps(results)
    sent = list(results)
    for number, result in enumerate(results):
        try:
            dumps(result)
        except Exception:
            sent[number] = without_values(result)
    return dumps(sent)


def without_values(result: Result) -> Result:
    """The same result without a value that is too large, or cannot be pickled."""
    return result._replace(
        record=result.record._replace(value=None, prefetched=None), returned=None
    )


def decoded(text: str) -> list[Result]:
    """Decode results from `encoded`, from an authenticated member."""
    results: list[Result] = pickle.loads(base64.b64decode(text))  # noqa: S301  # authenticated
    return results


#: callbacks that members report; on_result reads the results instead
REPORTED = ("on_commit", "on_assign", "on_revoke")


class Relay:
    """The user's reader and callbacks. Callbacks run in order on a separate thread."""

    def __init__(
        self,
        options: AppOptions,
        stream: ResultStream | None,
        want: Callable[[bool], None],
        seen: Callable[[Result], Result] | None,
    ) -> None:
        """`want` notifies the members whether results have a reader; `seen`: see `as_handled`."""
        self._seen = seen
        self._options, self._stream, self._want = options, stream, want
        self.callbacks = Callbacks()
        self._lock = threading.Lock()
        #: held while the members are notified, so that the last message has the last state
        self._wanting = threading.Lock()
        self._full = False
        self._over = False
        self._owed: list[Callable[[], object]] = []

    def wanted(self) -> list[str]:
        """The callbacks that the app has."""
        return [name for name in REPORTED if getattr(self._options, name) is not None]

    def begin(self) -> None:
        """Serve the reader that was opened before the run, or `on_result`."""
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
        if over:  # the run ended between the check and this: end the reader
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

    def take(self, results: list[Result], taken: Callable[[], object]) -> None:
        """Called on a member's thread. While the reader is behind, acknowledgements wait."""
        if self._stream is not None:
            self._stream.put(results)
        with self._lock:
            if self._full:
                self._owed.append(taken)
                return
        taken()

    def event(self, name: str, items: list[Any]) -> None:
        """Call a user's callback."""
        if name not in REPORTED:
            return
        values: list[Any]
        if name == "on_commit":
            values = [Committed(*item) for item in items]
        else:
            values = [(topic, number) for topic, number in items]
        self.callbacks.call(getattr(self._options, name), values)

    def _attach(self, stream: ResultStream) -> None:
        def level(full: bool) -> None:  # noqa: FBT001  # as ResultStream.on_level calls it
            with self._lock:
                self._full = full
                owed, self._owed = ([], self._owed) if full else (self._owed, [])
            for taken in owed:
                taken()

        def gone() -> None:
            with self._wanting:
                if self._stream is stream:  # otherwise another reader has come meanwhile
                    self._want(False)

        stream.on_level, stream.on_close = level, gone
        with self._wanting:
            self._want(True)
