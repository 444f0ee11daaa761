"""Choose the executor of each handler."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perkey.decoding import decoding_of, is_async
from perkey.options import HandlerOptions
from perkey.runtime.calls.aio import AsyncExecutor
from perkey.runtime.calls.batch_calls import BatchTasks, BatchThreads
from perkey.runtime.calls.prefetch import Prefetcher
from perkey.runtime.calls.processes.executor import ProcessExecutor
from perkey.runtime.calls.processes.protocol import WorkerSpec, check_spawnable, found_by_name
from perkey.runtime.calls.threads import ThreadExecutor
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan


def needs_loop(handlers: Sequence[HandlerOptions]) -> bool:
    """Whether any handler, prefetch or decoder runs on an event loop."""
    return any(
        handler.kind == "async"
        or is_async(handler.prefetch)
        or inspect.isasyncgenfunction(handler.prefetch)
        or (
            handler.kind != "processes"
            and (decoding := decoding_of(handler.key, handler.value)) is not None
            and decoding.is_async
        )
        for handler in handlers
    )


@dataclass(slots=True)
class Executors:
    """Creates the executors of one member."""

    door: Door
    #: ends the run with a reason
    fail: Callable[[str], None]
    #: the loop of async handlers, prefetches and decoders; None if there are none
    loop: asyncio.AbstractEventLoop | None
    group: str
    #: the lifespan, opened again in each worker process
    lifespan: Callable[..., Any] | None

    def of(self, handler: HandlerOptions, plan: HandlerPlan) -> Executor:
        """The executor of this handler."""
        if plan.prefetch is None:
            return self._plain(handler, plan)
        prefetcher = Prefetcher(plan, self.door, self.loop)
        prefetcher.inner = self._plain(handler, plan)
        return prefetcher

    def _plain(self, handler: HandlerOptions, plan: HandlerPlan) -> Executor:
        batch = plan.spec.batch
        if handler.kind == "threads":
            made = ThreadExecutor if batch is None else BatchThreads
            return made(plan, self.door, self.loop)
        if handler.kind == "async":
            assert self.loop is not None, "an async handler needs the loop that was opened for it"
            tasks = AsyncExecutor if batch is None else BatchTasks
            return tasks(plan, self.door, self.loop)
        if found_by_name():
            check_spawnable(handler.function, self.lifespan, handler.name)
        spec = WorkerSpec(
            function=handler.function,
            lifespan=self.lifespan,
            key=handler.key,
            value=handler.value,
            output=handler.output,
            retry=handler.retry,
            ordering=handler.ordering,
            explicit=batch is not None and batch.ack == "explicit",
            group=self.group,
            ledger=handler.ledger,
            log_level=logging.getLogger().getEffectiveLevel(),
            away=() if handler.hold is None else handler.hold.on,
            budget=handler.budget is not None,
        )
        return ProcessExecutor(plan, self.door, spec, self.fail)
