"""Loads what handlers need for many records at once, before they are called.

Stands before an executor: records that may start are gathered for at most 5 ms, the user's
function is called with them off every other thread, and each record goes on with its value.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from weft.core.partition import Partition
from weft.core.work import Work
from weft.options import is_async
from weft.runtime.door import Door
from weft.runtime.invoke import failed
from weft.runtime.plan import HandlerPlan
from weft.types import Record

if TYPE_CHECKING:
    from weft.runtime.member import Executor

GATHER_S = 0.005
LOADERS = 4  # a quarter of the slots each, so that four fill them all
LOAD_MIN = 10
_Where = tuple[str, int, int]


class BadPrefetch(Exception):
    """The prefetch function did not return one value for each record."""


class _Group:
    """Records that were loaded together, and how to release what was loaded."""

    __slots__ = ("left", "source")

    def __init__(self, count: int, source: Any) -> None:
        self.left = count
        #: the generator to resume; None for a function that returned
        self.source = source


class Prefetcher:
    """An executor that loads first and hands on to the real one."""

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
        self._limit = max(LOAD_MIN, plan.spec.concurrency // 4)
        self._queue: SimpleQueue[list[Work] | _Group | None] = SimpleQueue()
        self._gathering = threading.Lock()
        self._groups: dict[_Where, _Group] = {}
        self._counting = threading.Lock()
        if inspect.isgeneratorfunction(self._function) or inspect.isasyncgenfunction(
            self._function
        ):
            plan.function = self._watched(plan.function)
        for number in range(LOADERS):
            name = f"weft-prefetch-{plan.spec.name}-{number}"
            threading.Thread(target=self._load, name=name, daemon=True).start()

    # -- as an executor ----------------------------------------------------------------------------

    def start(self, works: Sequence[Work]) -> None:
        """Load for these and call the handler; never blocks."""
        for work in works:
            self._queue.put([work])

    def start_batch(self, works: list[Work]) -> None:
        """Load for a whole batch and call the handler once."""
        self._queue.put(works)

    def cancel(self, work: Work, *, expired: bool) -> None:
        """End the attempt if it has begun."""
        self.inner.cancel(work, expired=expired)

    def warn(self, partitions: Sequence[Partition] | None) -> None:
        """Tell running batches."""
        self.inner.warn(partitions)

    def close(self) -> None:
        """End the loaders."""
        for _ in range(LOADERS):
            self._queue.put(None)
        self.inner.close()

    # -- on a loader's thread ------------------------------------------------------------------------

    def _load(self) -> None:
        batched = self._plan.spec.batch is not None
        while True:
            with self._gathering:
                item = self._queue.get()
                works = item if batched or not isinstance(item, list) else self._gather(item)
            if works is None:
                return
            if isinstance(works, _Group):
                self._release(works)
            else:
                self._load_for(works, batched=batched)

    def _gather(self, works: list[Work]) -> list[Work] | None:
        deadline = time.monotonic() + GATHER_S
        while len(works) < self._limit:
            try:
                item = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                break
            if not isinstance(item, list):
                self._queue.put(item)  # not a record: for the next round
                break
            works = works + item
        return works

    def _load_for(self, works: list[Work], *, batched: bool) -> None:
        records = [work.record for work in works]
        try:
            values, source = self._call(records)
            if len(values) != len(records):
                raise BadPrefetch(
                    f"prefetch returned {len(values)} values for {len(records)} records: return one "
                    "for each, in the same order"
                )
        except BaseException as error:
            self._fail(works, error, batched=batched)
            return
        if source is not None:
            group = _Group(len(works), source)
            self._groups.update({(r.topic, r.partition, r.offset): group for r in records})
        for work, value in zip(works, values, strict=True):
            work.record = work.record._replace(prefetched=value)
        if batched:
            self.inner.start_batch(works)
        else:
            self.inner.start(works)

    def _call(self, records: list[Record]) -> tuple[Sequence[Any], Any]:
        """The values, and the generator that waits to release them."""
        function = self._function
        if inspect.isasyncgenfunction(function):
            waiting = function(records)
            return self._on_loop(anext(waiting)), waiting
        if inspect.isgeneratorfunction(function):
            source = function(records)
            return next(source), source
        if is_async(function):
            return self._on_loop(function(records)), None
        return function(records), None

    def _on_loop(self, awaitable: Any) -> Any:
        async def waited() -> Any:
            return await awaitable

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result()

    def _fail(self, works: list[Work], error: BaseException, *, batched: bool) -> None:
        ends = [failed(work, error, self._plan.retry) for work in works]
        if batched:
            handler = works[0].partition.handler.index
            self._door.post(
                lambda engine, now: engine.batch_ended(now, handler, [], ends, whole=True)
            )
        else:
            self._door.ended.extend(ends)
            self._door.turn()

    # -- releasing -----------------------------------------------------------------------------------

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, telling when it is finished with its record or batch."""
        if is_async(function):

            @functools.wraps(function)
            async def watched_async(argument: Any, *more: Any) -> Any:
                try:
                    return await function(argument, *more)
                finally:
                    self._finished(argument)

            return watched_async

        @functools.wraps(function)
        def watched(argument: Any, *more: Any) -> Any:
            try:
                return function(argument, *more)
            finally:
                self._finished(argument)

        return watched

    def _finished(self, argument: Any) -> None:
        for record in [argument] if isinstance(argument, Record) else argument:
            group = self._groups.pop((record.topic, record.partition, record.offset), None)
            if group is None:
                continue
            with self._counting:
                group.left -= 1
                released = group.left == 0
            if released:
                self._queue.put(group)

    def _release(self, group: _Group) -> None:
        """Resume the generator: it releases what it loaded and ends."""
        source: Generator[Any, Any, Any] | AsyncGenerator[Any, Any] = group.source
        try:
            if isinstance(source, Generator):
                next(source, None)
            else:
                self._on_loop(anext(source, None))
        except Exception as error:
            self._door.post(
                lambda engine, _: engine.state.note(
                    "warning",
                    "prefetch failed to release",
                    error=f"{type(error).__name__}: {error}",
                )
            )
