"""The event loop of the handlers, and the app's lifespan around it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from perkey import guard
from perkey.errors import ConfigError, FatalError
from perkey.runtime.calls.invoke import error_info
from perkey.runtime.calls.stacks import of_coroutine
from perkey.runtime.logs import event
from perkey.signatures import takes_argument

_log = logging.getLogger("perkey")

OPEN_TIMEOUT_S = 60.0
OPEN_LOGGED_S = 10.0
TASKS_END_S = 0.5


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop, from uvloop if it is installed: 5 % more on handlers that wait 10 ms, measured."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _abandon(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Report tasks that have swallowed their cancellation, here and not when they are destroyed."""
    if not tasks:
        return
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # asyncio's own switch
    first = min(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
    event(
        "warning",
        "tasks have not ended when cancelled",
        tasks=len(tasks),
        first=getattr(first.get_coro(), "__qualname__", first.get_name()),
        next="let asyncio.CancelledError through: catch it only to clean up, and raise it again",
    )


class HandlerLoop:
    """An event loop on a separate thread, or the caller's own loop (`app.serve()`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        #: called when its thread dies; set by the run
        self.died: guard.Died = guard.log_death
        self.own = loop is None
        #: what ends a loop when a task raises it; on the caller's loop that is the caller's affair
        self._exits = (SystemExit, KeyboardInterrupt) if self.own else ()
        self.loop = loop or new_loop()
        self._thread: threading.Thread | None = None
        self._stack = AsyncExitStack()
        self._context: Any = None
        if self.own:
            self._thread = guard.thread("perkey-handlers", self._run, self._died)
            self._thread.start()
        #: the thread whose stack shows what blocks the loop
        self.thread_id = self._thread.ident if self._thread else threading.get_ident()

    def _died(self, thread: str, error: BaseException) -> None:
        self.died(thread, error)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            # Cancel remaining tasks in the order of their creation ("Task-9", then "Task-10"): the
            # order of a set follows addresses, which no seed replays. Abandon those that do not
            # end.
            tasks = asyncio.all_tasks(self.loop)
            left = sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name()))
            for task in left:
                task.cancel()
            if left:
                waiting = asyncio.wait(left, timeout=TASKS_END_S)
                _, swallowed = self.loop.run_until_complete(waiting)
                _abandon(swallowed)
        finally:
            self.loop.close()

    async def enter(self, lifespan: Callable[..., Any] | None, app: Any) -> Any:
        """Open the lifespan and return its value. Runs on the loop. FatalError if it fails."""
        if lifespan is None:
            return None
        arguments = (app,) if takes_argument(lifespan) else ()
        try:
            context = self._context = lifespan(*arguments)
            if isinstance(context, AbstractAsyncContextManager):
                return await self._stack.enter_async_context(context)
            if isinstance(context, AbstractContextManager):
                return self._stack.enter_context(context)
        except (Exception, *self._exits) as error:
            _log.error("the lifespan failed to open", exc_info=True)
            raise FatalError(f"the lifespan failed to open: {error_info(error).line}") from error
        raise ConfigError(
            f"App(lifespan=...) returned {type(context).__name__}, not a context manager: decorate "
            "it with @contextlib.asynccontextmanager"
        )

    def opening(self) -> list[str]:
        """Where the lifespan is, outermost line first; empty if that is not a generator."""
        return of_coroutine(getattr(self._context, "gen", None))

    def enter_and_wait(self, lifespan: Callable[..., Any] | None, app: Any) -> Any:
        """The same from another thread."""
        if lifespan is None:
            return None
        opening = asyncio.run_coroutine_threadsafe(self.enter(lifespan, app), self.loop)
        try:
            with contextlib.suppress(TimeoutError):
                return opening.result(min(OPEN_LOGGED_S, OPEN_TIMEOUT_S))
            at = "".join(self.opening()[:1])
            event("warning", "the lifespan has not opened yet", seconds=OPEN_LOGGED_S, at=at)
            return opening.result(max(0.0, OPEN_TIMEOUT_S - OPEN_LOGGED_S))
        except BaseException as error:
            opening.cancel()
            if not isinstance(error, TimeoutError):
                raise
            at = "".join(f": it is at {line}" for line in self.opening()[:1])
            late = f"the lifespan did not open within {OPEN_TIMEOUT_S:.0f} s{at}"
            raise FatalError(late) from error

    def at_exit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await this on the loop when it closes, before the lifespan's own end."""
        self._stack.push_async_callback(callback)

    async def exit(self) -> None:
        """Close the lifespan. Runs on the loop."""
        try:
            await self._stack.aclose()
        except self._exits as error:
            raise FatalError(f"the lifespan raised {error_info(error).line}") from error

    def close(self, timeout_s: float) -> bool:
        """Close the lifespan and end the thread; False if the loop did not answer in time."""
        if not self.own:
            return True
        closing: Future[None] = asyncio.run_coroutine_threadsafe(self.exit(), self.loop)
        try:
            closing.result(timeout_s)
        except TimeoutError:
            _log.warning("the handlers' loop does not answer: its lifespan is left open")
            return False
        except Exception:
            _log.exception("the lifespan failed to close")
        self.loop.call_soon_threadsafe(self.loop.stop)
        assert self._thread is not None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
