"""The results of a run, for its readers: `app.results()` and `on_result`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.core import effects as fx
from weft.errors import ConfigError
from weft.runtime.handling import HandlerPlan
from weft.runtime.member.member import Member
from weft.runtime.run.result_stream import ResultStream, forward
from weft.types import Result

LAST_CALLS_S = 1.0


class Results:
    """Streams that are fed with what the engine has finished; each slows the intake when full."""

    def __init__(
        self,
        plans: Sequence[HandlerPlan],
        on_result: Callable[..., Any] | None,
        stream: ResultStream | None,
        seen: Callable[[Result], Result] | None,
    ) -> None:
        """`stream` is the reader's, if he asked before the start; `seen`: see `as_handled`."""
        self._seen = seen
        self._plans = plans
        self._on_result = on_result
        self._reader = stream
        #: by the name under which it holds the intake
        self._streams: dict[str, ResultStream] = {}
        self._forwarding: threading.Thread | None = None
        self._member: Member | None = None
        #: the start, a reader who comes meanwhile, and the end
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
                self._attach("results", self._reader)

    def open(self) -> ResultStream:
        """A stream of the results from now on."""
        with self._changing:
            if self._reader is not None and not self._reader.closed:
                raise ConfigError("app.results() is already being read; only one reader is allowed")
            self._reader = ResultStream()
            if self._ended:
                self._reader.end()
            elif self._member is not None:
                self._attach("results", self._reader)
            return self._reader

    def _attach(self, name: str, stream: ResultStream) -> None:
        member = self._member
        assert member is not None
        stream.on_level = lambda full: member.door.post(
            lambda engine, now: engine.halt(now, name, on=full)
        )
        stream.on_close = lambda: self._detach(name, stream)
        self._streams[name] = stream
        self._report()

    def _detach(self, name: str, stream: ResultStream) -> None:
        if self._streams.get(name) is stream:
            del self._streams[name]
        self._report()

    def _report(self) -> None:
        """Have the engine tell of what is finished while somebody listens."""
        on = bool(self._streams)
        for plan in self._plans:
            plan.calls = (plan.calls or {}) if on else None
        assert self._member is not None
        self._member.door.post(lambda engine, _now: engine.report_results(on=on))

    def put(self, finished: list[fx.Finished]) -> None:
        """Inside the door: hand the results to who listens."""
        streams = list(self._streams.values())
        if streams:
            results = [self._result(one) for one in finished]
            for stream in streams:
                stream.put(results)

    def _result(self, one: fx.Finished) -> Result:
        work = one.work
        calls = self._plans[work.partition.handler.index].calls
        call = None if calls is None else calls.pop(work, None)
        now = time.time()
        return Result(
            work.record,
            one.outcome,
            work.attempts + (one.outcome == "done"),
            one.error,
            None if call is None else call.returned,
            tuple(one.outputs or ()),
            now if call is None else call.started_at,
            now if call is None else call.finished_at,
        )

    def end(self) -> None:
        """The run has ended: readers get what is left, and then the end."""
        with self._changing:
            self._ended = True
            for stream in list(self._streams.values()):
                stream.end()
            if self._reader is not None:
                self._reader.end()  # also where it was never attached
        if self._forwarding is not None:
            self._forwarding.join(LAST_CALLS_S)
