"""Load data for many records in one call, before their handlers are called.

Wraps an executor: ready records are gathered for at most 5 ms, the user's function is called with
them on a separate thread, and each record continues with its value.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any

from perkey import guard
from perkey.core.events import Ended, Unhandled
from perkey.core.partition import Partition
from perkey.core.states import RUNNING
from perkey.core.work import Work
from perkey.decoding import is_async
from perkey.runtime.calls import stacks
from perkey.runtime.calls.deadlines import AttemptTimeout
from perkey.runtime.calls.invoke import failed
from perkey.runtime.door import Door
from perkey.runtime.handling import Executor, HandlerPlan
from perkey.types import Record

GATHER_S = 0.005
LOADERS = 4  # a quarter of the slots each, so that four fill them all
LOAD_MIN = 10
LOOK_S = 0.02  # interval of checks for finished records, if something is to be released
CLOSE_S = 1.0


class BadPrefetch(Exception):
    """The prefetch function did not return one value for each record."""


class _Group:
    """Records that were loaded together by a generator, which is resumed to release the data."""

    __slots__ = ("context", "records", "source", "works")

    def __init__(self, works: Sequence[Work], source: Any, context: Context) -> None:
        self.works = list(works)
        #: as they were passed on: a later attempt is another object
        self.records = [work.record for work in works]
        self.source = source
        #: the generator's private context (contextvars)
        self.context = context

    def finished(self) -> bool:
        """Whether no call has any of them any more, however it ended, or if it never started."""
        return not any(
            work.state == RUNNING and work.record is record
            for work, record in zip(self.works, self.records, strict=True)
        )


class Prefetcher(Executor):
    """An executor that loads first and then calls the real one."""

    def __init__(
        self, plan: HandlerPlan, door: Door, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        """`loop`: where async functions are called. Set `inner` before the first start."""
        assert plan.prefetch is not None
        self.inner: Executor
        self._plan = plan
        self._door = door
        self._loop = loop
        self._function: Callable[..., Any] = plan.prefetch
        self._batched = plan.spec.batch is not None
        self._limit = max(LOAD_MIN, plan.spec.concurrency // 4)
        self._queue: SimpleQueue[list[Work] | None] = SimpleQueue()
        self._gathering = threading.Lock()
        #: data of generators that is loaded and not released yet
        self._groups: list[_Group] = []
        #: received and not passed on
        self._loading: set[Work] = set()
        self._handing_on = threading.Lock()
        self._looking = threading.Lock()
        self._looked_at = 0.0
        #: thread -> the coroutine or async generator that it waits for
        self._awaited: dict[int | None, Any] = {}
        self._threads = [
            guard.thread(f"perkey-prefetch-{plan.spec.name}-{number}", self._load, door.died)
            for number in range(LOADERS)
        ]
        for thread in self._threads:
            thread.start()

    # -- as an executor ----------------------------------------------------------------------------

    def start(self, works: Sequence[Work]) -> None:
        """Load for these and call the handler; never blocks."""
        self._loading.update(works)
        for work in works:
            self._queue.put([work])

    def start_batch(self, works: list[Work]) -> None:
        """Load for a whole batch and call the handler once."""
        self._loading.update(works)
        self._queue.put(works)

    def cancel(self, work: Work) -> None:
        """End the attempt if it was passed on: loading ends by itself."""
        with self._handing_on:
            loading = work in self._loading
        if not loading:
            self.inner.cancel(work)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Notify running batches; return records that are not being loaded yet."""
        for _ in range(self._queue.qsize()):
            try:
                works = self._queue.get_nowait()
            except Empty:
                break
            kept = partitions is not None and not any(
                w.partition in partitions for w in works or ()
            )
            if not works or kept:
                self._queue.put(works)
            else:
                self._end(works, [Unhandled(work) for work in works], whole=False)
        self.inner.warn(partitions)

    def flush(self) -> None:
        """Report what running batches have acknowledged."""
        self.inner.flush()

    def stack(self, where: stacks.Where) -> list[str]:
        """Where its call is now, or the function that loads for it."""
        loads = Prefetcher._load_for.__code__
        if lines := self.inner.stack(where):
            return lines
        for thread in self._threads:
            if lines := stacks.of_call([thread.ident], loads, where):
                # An async function runs on the loop: its thread only waits for that
                return stacks.of_coroutine(self._awaited.get(thread.ident)) or lines
        return []

    def blocking(self) -> Work | None:
        """The record whose call runs on the loop right now, if one does."""
        return self.inner.blocking()

    def close(self) -> None:
        """End the loaders after they have released data that no call uses any more."""
        for _ in range(LOADERS):
            self._queue.put(None)
        self.inner.close()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- on a loader's thread ----------------------------------------------------------------------

    def _load(self) -> None:
        while True:
            with self._gathering:
                works = self._next()
            self._release_finished(now=works is None)
            if works is None:
                return
            if works:
                self._load_for(works)

    def _next(self) -> list[Work] | None:
        """Records to load; an empty list when it is only time to check for releases."""
        try:
            works = self._queue.get(timeout=LOOK_S if self._groups else None)
        except Empty:
            return []
        if self._batched or works is None:
            return works
        deadline = time.monotonic() + GATHER_S
        while len(works) < self._limit:
            try:
                more = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            if more is None:
                self._queue.put(None)  # for the next round
                break
            works = works + more
        return works

    def _load_for(self, works: list[Work]) -> None:
        self._door.waiting(works)
        records = [work.record for work in works]
        context = Context()
        try:
            values, source = self._call(records, context)
            if len(values) != len(records):
                raise BadPrefetch(
                    f"prefetch returned {len(values)} values for {len(records)} records: return "
                    "one for each, in the same order"
                )
        except BaseException as error:
            self._end(works, [failed(work, error) for work in works], whole=True)
            return
        for work, value in zip(works, values, strict=True):
            work.record = work.record._replace(prefetched=value)
        if source is not None:
            self._groups.append(_Group(works, source, context))
        with self._handing_on:
            self._loading.difference_update(works)
        self._door.begun(works)
        if self._batched:
            self.inner.start_batch(works)
        else:
            self.inner.start(works)
        if source is not None:
            self._queue.put([])  # wakes the thread that waits for records without a limit

    def _call(self, records: list[Record], context: Context) -> tuple[Sequence[Any], Any]:
        """The values, and the generator that waits to release them."""
        function = self._function
        if inspect.isasyncgenfunction(function):
            waiting = function(records)
            return self._on_loop(anext(waiting), context, waiting), waiting
        if inspect.isgeneratorfunction(function):
            source = function(records)
            return context.run(next, source), source
        if is_async(function):
            awaitable = function(records)
            return self._on_loop(awaitable, context, awaitable), None
        return context.run(function, records), None

    def _on_loop(self, awaitable: Any, context: Context, runs: Any = None) -> Any:
        """The result; `runs` is what a query for the stack looks at meanwhile."""
        limit_s = self._plan.spec.timeout_s

        async def waited() -> Any:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    return await awaitable
            except TimeoutError:
                if not limit.expired():
                    raise  # the function's own exception
                raise AttemptTimeout(f"prefetch: no answer within timeout_s={limit_s}") from None

        async def within() -> Any:
            assert self._loop is not None
            return await self._loop.create_task(waited(), context=context)

        assert self._loop is not None
        self._awaited[threading.get_ident()] = runs
        try:
            return asyncio.run_coroutine_threadsafe(within(), self._loop).result()
        finally:
            del self._awaited[threading.get_ident()]

    def _end(self, works: list[Work], ends: Sequence[Ended], *, whole: bool) -> None:
        """End these calls, which are not passed on."""
        with self._handing_on:
            self._loading.difference_update(works)
        if self._batched:
            self._door.batch_ended(works, [], ends, whole=whole)
        else:
            self._door.ended.extend(ends)
            self._door.turn()

    # -- releasing ---------------------------------------------------------------------------------

    def _release_finished(self, *, now: bool) -> None:
        """Resume the generators whose records are finished."""
        if not self._groups or not (now or time.monotonic() - self._looked_at >= LOOK_S):
            return
        with self._looking:
            self._looked_at = time.monotonic()
            done = [group for group in self._groups if group.finished()]
            for group in done:
                self._groups.remove(group)
        for group in done:
            self._release(group)

    def _release(self, group: _Group) -> None:
        """Resume the generator: it releases what it loaded and ends."""
        source: Generator[Any, Any, Any] | AsyncGenerator[Any, Any] = group.source
        try:
            if isinstance(source, Generator):
                group.context.run(next, source, None)
            else:
                self._on_loop(anext(source, None), group.context)
        except BaseException as error:  # also sys.exit(): the loader is needed
            text = f"{type(error).__name__}: {error}"
            self._door.post(
                lambda engine, _: engine.note("warning", "prefetch failed to release", error=text)
            )
