"""Results on their way from the members to the reader on the driver.

They are sent only if there is a reader. A member has a bounded number under way; what the driver
took, it acknowledges, and holds that back while its reader is behind: so a slow reader slows the
intake of every member, as in one process.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from weft import guard
from weft.runtime.run.result_stream import ResultStream
from weft.spark.fleet import pickles
from weft.spark.fleet.limits import LINE_BYTES_MAX, RESULTS_UNDER_WAY_MAX
from weft.spark.fleet.link import Link
from weft.types import Result

_TAKE_S = 0.2
#: of one line, before base64 makes it a third longer
_DATA_BYTES_MAX = LINE_BYTES_MAX * 3 // 4 - 1_024
_FLUSH_S = 10.0


class ResultsUp:
    """The member's side: reads the run's stream and sends it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        #: the driver takes a lower number after a higher one for a twin
        self._in_order = threading.Lock()
        self._sequence = 0
        #: sent and not acknowledged: (sequence, how many, the message)
        self._under_way: deque[tuple[int, int, dict[str, Any]]] = deque()
        self._count = 0
        self._free = False
        self._thread: threading.Thread | None = None

    def follow(self, stream: ResultStream) -> None:
        """Send what comes out of this stream, on a thread of its own."""
        self._free = False
        self._thread = guard.thread("weft-results", self._forward, guard.log_death, stream)
        self._thread.start()

    def flush(self) -> None:
        """The run has ended: send the rest, whether or not the reader keeps up."""
        with self._changed:
            self._free = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_FLUSH_S)

    def acknowledged(self, sequence: int) -> None:
        """The driver has taken everything up to this."""
        with self._changed:
            while self._under_way and self._under_way[0][0] <= sequence:
                self._count -= self._under_way.popleft()[1]
            self._changed.notify_all()

    def again(self) -> None:
        """The line was broken: send again what may not have arrived; the driver drops twins."""
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
    """Results as bytes. Classes of the app's own module come back as the driver's classes."""
    try:
        return pickle.dumps(results, protocol=5)
    except Exception:
        # A class that travelled by value has no module here: cloudpickle knows where it is from.
        return b"".join(_one_by_one(results))


def _one_by_one(results: Sequence[Result]) -> list[bytes]:
    try:
        return [pickles.dumps(results)]
    except Exception:
        return [pickles.dumps([_sendable(result) for result in results])]


def _sendable(result: Result) -> Result:
    try:
        pickles.dumps(result)
    except Exception:
        return without_values(result)
    return result


def without_values(result: Result) -> Result:
    """The same result where a value is too large for a line, or cannot leave its process."""
    return result._replace(
        record=result.record._replace(value=None, prefetched=None), returned=None
    )


def decoded(text: str) -> list[Result]:
    """What `encoded` made, from a member that has proved to be one of the run."""
    results: list[Result] = pickle.loads(base64.b64decode(text))  # noqa: S301  # authenticated
    return results
