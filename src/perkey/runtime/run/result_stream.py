"""Results as a stream, in order, on the reader's threads.

A slow reader slows the intake: nothing is dropped and nothing grows without bound. Readers get the
record with the value that its handler received (`as_handled`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from perkey import guard
from perkey.core.gates import RESULTS
from perkey.decoding import TRANSIENT, Undecodable, decoding_of
from perkey.errors import ConfigError
from perkey.options import HandlerOptions
from perkey.routing import Routes
from perkey.runtime.member.group_membership import Callbacks
from perkey.types import Result

if TYPE_CHECKING:
    from perkey.core import effects as fx
    from perkey.runtime.handling import HandlerPlan
    from perkey.runtime.member.member import Member

_log = logging.getLogger("perkey")

RESULTS_MAX = 2_000
_LOOK_S = 0.2
_TAKE_MAX = 256


class ResultStream:
    """The results of one app, for one reader: `for result in stream` or `async for`."""

    def __init__(self) -> None:
        #: called with True when it is full, with False when half of it has been read
        self.on_level: Callable[[bool], None] = lambda _: None
        #: called when the reader has stopped
        self.on_close: Callable[[], None] = lambda: None
        #: converts each result for the reader; None: unchanged
        self.as_handled: Callable[[Result], Result] | None = None
        self._results: deque[Result] = deque()
        self._changed = threading.Condition()
        self._full = False
        #: the last argument of `on_level`, and whether a thread is calling it
        self._level, self._reporting = False, False
        self._ended = False
        self.closed = False
        #: the reader stopped before the end: later results are dropped
        self._left = False

    # -- for the app -------------------------------------------------------------------------------

    def put(self, results: Sequence[Result]) -> None:
        """Add results; never blocks."""
        with self._changed:
            if self.closed:
                return
            self._results.extend(results)
            self._full = self._full or len(self._results) >= RESULTS_MAX
            self._changed.notify()
        self._report_level()

    def _report_level(self) -> None:
        """Report the level, one thread at a time, until the last state is reported.

        Otherwise a fast reader's "not full" could be reported before the "full" that precedes it.
        """
        while True:
            with self._changed:
                if self._reporting or self._level == self._full:
                    return
                self._reporting, self._level = True, self._full
                full = self._level
            try:
                self.on_level(full)
            finally:
                with self._changed:
                    self._reporting = False

    def end(self) -> None:
        """The app has ended: the reader gets the rest and then the end."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # -- for the reader ----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading; the app continues without this reader."""
        with self._changed:
            if self.closed:
                return
            self._left = not self.over
            self.closed, self._full = True, False
            self._results.clear()
        self._report_level()
        self.on_close()

    def take(self, timeout_s: float | None = None) -> list[Result]:
        """The next results, at most 256; empty at the end, or if none came within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._results or self._ended, timeout_s)
            count = min(len(self._results), _TAKE_MAX)
            taken = [self._results.popleft() for _ in range(count)]
            self._full = self._full and len(self._results) > RESULTS_MAX // 2
        self._report_level()
        return taken if self.as_handled is None else list(map(self.as_handled, taken))

    @property
    def over(self) -> bool:
        """Whether the app has ended and everything has been read."""
        return self._ended and not self._results

    def _check_readable(self) -> None:
        if self._left:
            raise ConfigError(
                "these results are closed: their loop was left before the app ended. Call "
                "app.results() again for those from now on"
            )

    def __iter__(self) -> Iterator[Result]:
        self._check_readable()
        try:
            while not self.over:
                yield from self.take(_LOOK_S)
        finally:
            self.close()  # also if the reader leaves its loop early

    async def __aiter__(self) -> AsyncIterator[Result]:
        self._check_readable()
        try:
            while not self.over:
                for result in await asyncio.to_thread(self.take, _LOOK_S):
                    yield result
        finally:
            self.close()


def forward(
    stream: ResultStream, function: Callable[[Result], Any], callbacks: Callbacks
) -> threading.Thread:
    """Serve `on_result`: read the stream on a separate thread and call the function."""

    def run() -> None:
        for result in stream:
            try:
                function(result)
            except (Exception, SystemExit):
                callbacks.errors += 1
                _log.exception("on_result failed")

    thread = guard.thread("perkey-on-result", run, callbacks.died)
    thread.start()
    return thread


LAST_CALLS_S = 1.0


class Results:
    """Streams of finished records; each slows the intake when it is full."""

    def __init__(
        self,
        plans: Sequence[HandlerPlan],
        on_result: Callable[..., Any] | None,
        stream: ResultStream | None,
        seen: Callable[[Result], Result] | None,
    ) -> None:
        """`stream`: opened before the start, if any; `seen`: see `as_handled`."""
        self._seen = seen
        self._plans = plans
        self._on_result = on_result
        self._reader = stream
        #: by the name under which it slows the intake
        self._streams: dict[str, ResultStream] = {}
        self._forwarding: threading.Thread | None = None
        self._member: Member | None = None
        #: serialises the start, new readers, and the end
        self._changing = threading.RLock()
        self._ended = False

    def begin(self, member: Member) -> None:
        """The run starts."""
        with self._changing:
            self._member = member
            if self._on_result is not None:
                stream = ResultStream()
                stream.as_handled = self._seen
                self._forwarding = forward(stream, self._on_result, member.callbacks)
                self._attach("on_result", stream)
            if self._reader is not None and not self._reader.closed:
                self._attach(RESULTS, self._reader)

    def open(self) -> ResultStream:
        """A stream of the results from now on."""
        with self._changing:
            if self._reader is not None and not self._reader.closed:
                raise ConfigError("app.results() is already being read; only one reader is allowed")
            self._reader = ResultStream()
            if self._ended:
                self._reader.end()
            elif self._member is not None:
                self._attach(RESULTS, self._reader)
            return self._reader

    def _attach(self, name: str, stream: ResultStream) -> None:
        member = self._member
        assert member is not None
        stream.on_level = lambda full: member.door.post(
            lambda engine, now: engine.halt(now, name, on=full)
        )

        def detach() -> None:
            with self._changing:  # a new reader may come at the same time and needs the reports
                if self._streams.get(name) is stream:
                    del self._streams[name]
                self._report()

        stream.on_close = detach
        self._streams[name] = stream
        self._report()

    def _report(self) -> None:
        """Request results from the engine while there is a reader."""
        on = bool(self._streams)
        for plan in self._plans:
            if not on:
                plan.calls = None
            elif plan.calls is None:  # never replaced: an executor may be about to use it
                plan.calls = {}
        assert self._member is not None
        self._member.door.post(lambda engine, _now: engine.report_results(on=on))

    def put(self, finished: list[fx.Finished]) -> None:
        """Inside the door: pass the results to their readers."""
        streams = list(self._streams.values())
        if not streams:
            return
        results = []
        for one in finished:
            calls = self._plans[one.work.partition.handler.index].calls
            call = None if calls is None else calls.pop(one.work, None)
            now = time.time()
            result = Result(
                one.record,
                one.outcome,
                one.work.attempts + (one.outcome == "done"),
                one.error,
                None if call is None else call.returned,
                tuple(one.outputs or ()),
                now if call is None else call.started_at,
                now if call is None else call.finished_at,
            )
            results.append(result)
        for stream in streams:
            stream.put(results)

    def end(self) -> None:
        """The run has ended: readers get the rest, and then the end."""
        with self._changing:
            self._ended = True
            for stream in list(self._streams.values()):
                stream.end()
            if self._reader is not None:
                self._reader.end()  # also if it was never attached
        if self._forwarding is not None:
            self._forwarding.join(LAST_CALLS_S)


def as_handled(handlers: Sequence[HandlerOptions]) -> Callable[[Result], Result] | None:
    """Decodes a result's record; it stays bytes if it cannot be decoded, or only on a loop.

    None if every handler takes bytes. Called by the reader, on its own time: no user function may
    run inside the engine's door.
    """
    decodings = [decoding_of(handler.key, handler.value) for handler in handlers]
    if not any(decodings):
        return None
    routes = Routes(handlers)

    def see(result: Result) -> Result:
        decoding = decodings[routes.handler_of(result.record.topic)]
        if decoding is None or decoding.is_async:
            return result
        try:
            record = Context().run(decoding.here, result.record)  # private, as in a call
            return result._replace(record=record)
        except (Undecodable, *TRANSIENT):
            return result

    return see
