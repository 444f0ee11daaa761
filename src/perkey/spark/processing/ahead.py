"""Calls of an async handler ahead of the core, as long as they neither wait nor fail.

A call that does not wait has ended before the next record is looked at: there is no order, slot or
retry to decide, so the core, which costs most of a record's time, need not see it. The first call
that waits or fails becomes the core's: the task feeds its record, and the executor, instead of
calling the handler again, continues with this call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Iterator
from contextvars import Context
from typing import Any

from perkey.runtime.calls.aio import LOOK_EVERY, LOOK_S, SLICE_S, fresh_context, in_contexts
from perkey.runtime.calls.invoke import messages_of
from perkey.runtime.handling import HandlerPlan
from perkey.runtime.logs import traced
from perkey.spark.processing.rows import OUTPUT_BYTES_MAX, Outputs, message_bytes
from perkey.types import Record

_log = logging.getLogger("perkey.spark")

#: A call that has blocked the loop for so long is logged, and again at this interval.
SLOW_S = 60.0


class AheadRun:
    """Some calls in a row."""

    def __init__(self) -> None:
        #: records that are done
        self.count = 0
        #: what they returned, by their number in this run
        self.outputs: dict[int, Outputs] = {}
        self.output_bytes = 0
        #: the call after them waits or has failed, so it is the core's
        self.begun = False
        #: the core must be given the record after them
        self.over = False
        #: no more calls start
        self.stopped = threading.Event()
        #: of the call that runs, or ran last; its record, and its result if it has begun
        self.record: Record | None = None
        self.returned: Any = None
        self.error: BaseException | None = None
        self.ending: Awaitable[None] | None = None
        #: for `in_contexts`
        self.context = Context()
        self.waited = False


class Ahead:
    """Calls one handler on its loop, before the core is given the records."""

    def __init__(self, plan: HandlerPlan, loop: asyncio.AbstractEventLoop) -> None:
        """Replaces the plan's function, so that the core's executor continues begun calls."""
        self._plan, self._loop = plan, loop
        self._function = plan.function
        self._begun: AheadRun | None = None
        plan.function = self._called

    def run(self, records: Iterator[Record]) -> AheadRun:
        """Call the handler for these until one waits or fails, or for some milliseconds.

        On the task's thread, and only if the core has no records: the handler could be in a call
        with an earlier one of the same lane.
        """
        run = AheadRun()
        self._loop.call_soon_threadsafe(self._start, run, records)
        while not run.stopped.wait(SLOW_S):
            fields = {
                "handler": self._plan.spec.name, "record": repr(run.record),
                "running_s": f"over {SLOW_S:g}", "next": "the handler blocks its event loop",
            }  # fmt: skip
            traced(_log, "warning", "slow call", fields)
        return run

    # -- on the loop -------------------------------------------------------------------------------

    def _start(self, run: AheadRun, records: Iterator[Record]) -> None:
        run.ending = self._loop.create_task(self._driven(run, records))

    async def _driven(self, run: AheadRun, records: Iterator[Record]) -> None:
        await in_contexts(run, self._calls(run, records), lambda: self._pass_on(run))
        run.stopped.set()

    def _pass_on(self, run: AheadRun) -> None:
        """The current call is the core's from here on."""
        if not run.begun:
            run.begun = run.over = True
            self._begun = run
            run.stopped.set()

    async def _calls(self, run: AheadRun, records: Iterator[Record]) -> None:
        plan, function, clock = self._plan, self._function, time.perf_counter
        decode = None if plan.decoding is None else plan.decoding.here
        began = slice_ends = clock()
        slice_ends += SLICE_S
        since_look, look_at = 0, 1
        for record in records:
            run.record = given = record
            if decode is not None:
                try:
                    given = decode(record)
                except BaseException:  # again in the core, whose attempt it is
                    run.over = True
                    return
            try:
                returned = await function(given)
                if run.begun:
                    run.returned = returned
                    return
                if returned is not None and (
                    messages := messages_of(record, returned, plan.output)
                ):
                    run.outputs[run.count] = messages
                    run.output_bytes += message_bytes(messages)
                    if run.output_bytes >= OUTPUT_BYTES_MAX:
                        look_at = 0
            except BaseException as error:
                run.error = error
                self._pass_on(run)
                return
            run.count += 1
            if run.context:  # the call has set something, which stays private
                await fresh_context()
            since_look += 1
            if since_look < look_at:
                continue
            now = clock()
            each_s = (now - began) / since_look
            if not plan.latency.enough:
                plan.latency.add(each_s)
            began, since_look = now, 0
            look_at = min(LOOK_EVERY, int(LOOK_S / (each_s or LOOK_S)))
            if now > slice_ends or run.output_bytes >= OUTPUT_BYTES_MAX:
                return

    def _called(self, record: Record) -> Awaitable[Any]:
        """What the core's executor calls."""
        run = self._begun
        if run is None or run.record is None or run.record[:3] != record[:3]:
            return self._function(record)  # type: ignore[no-any-return]  # an async function
        self._begun = None
        return _result(run)


async def _result(run: AheadRun) -> Any:
    """The end of a call that has begun; a cancellation reaches the call."""
    assert run.ending is not None, "set before the first call"
    await run.ending
    error, run.error = run.error, None
    if error is not None:
        raise error
    return run.returned
