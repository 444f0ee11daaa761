"""An HTTP server beside a run: the listening address, and uvicorn on a separate thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from perkey import guard
from perkey.errors import ConfigError

START_S = 10.0
STOP_S = 5.0
TICK_S = 1.0
#: most connections: past it the one that has waited longest for its request is closed, so clients
#: that send half requests do not block others, such as the probes of Kubernetes
CONNECTIONS_MAX = 100
#: seconds for a request's head, from the connection or the last response on
HEAD_S = 10.0
HEAD_BYTES_MAX = 64 * 2**10
BACKLOG = 64


def need_http(option: str) -> None:
    """Raise ConfigError if the libraries of the extra are missing."""
    try:
        import anyio  # noqa: F401  # only whether it is there
        import prometheus_client.core  # noqa: F401  # see above
        import starlette  # noqa: F401  # see above
        import uvicorn  # noqa: F401  # see above
    except ImportError as error:
        raise ConfigError(f"{option} needs {error.name}: pip install 'perkey[http]'") from None


def listening(option: str, host: str, port: int) -> socket.socket:
    """A socket that listens there; raises ConfigError if it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"{option}: cannot listen on {host}:{port}: {reason}") from None
    return server


def server_of(app: Any) -> Any:
    """A uvicorn server of an ASGI app: quiet, bounded, without start-up hooks."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    # Own limits: uvicorn's answer 503 to all, the probes too.
    class Bounded(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes
        since = 0.0
        head_bytes = 0
        timer: asyncio.TimerHandle | None = None

        @property
        def busy(self) -> bool:
            """Whether a request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def connection_made(self, transport: Any) -> None:
            waiting = [one for one in self.connections if not one.busy]
            if len(self.connections) >= CONNECTIONS_MAX:
                if not waiting:
                    transport.abort()
                    return
                oldest = min(waiting, key=lambda one: one.since)
                self.connections.discard(oldest)
                oldest.transport.abort()
            super().connection_made(transport)
            self.since = self.loop.time()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.timer is None:  # refused
                return
            self.head_bytes = 0 if self.busy else self.head_bytes + len(data)
            super().data_received(data)
            if not self.busy and self.head_bytes > HEAD_BYTES_MAX:
                self.transport.abort()

        def on_response_complete(self) -> None:
            self.since, self.head_bytes = self.loop.time(), 0
            super().on_response_complete()

        def _look(self) -> None:
            due_s = HEAD_S if self.busy else self.since + HEAD_S - self.loop.time()
            if due_s <= 0:
                self.transport.abort()
            else:
                self.timer = self.loop.call_later(due_s, self._look)

    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            http=Bounded,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            loop="asyncio",
        )
    )


class Serving:
    """Serves an ASGI app until it is closed."""

    def __init__(
        self, app: Any, listener: socket.socket, closing: Callable[[], None] = lambda: None
    ) -> None:
        self._listener, self._closing = listener, closing
        host, self.port = listener.getsockname()[:2]
        self.address = f"{host}:{self.port}"
        self._server = server_of(app)
        self._server.main_loop = self._main_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = guard.thread("perkey-http", self._run)
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)

    def _run(self) -> None:
        import anyio

        anyio.run(anyio.sleep, 0)  # imports lazily: do it now, not while records flow
        self._server.run(sockets=[self._listener])

    async def _main_loop(self) -> None:
        """Replaces uvicorn's loop, which checks ten times per second whether to end."""
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        while not await self._server.on_tick(0):  # 0: with the time of the Date header
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_S)

    def close(self) -> None:
        """Stop serving; requests in progress have one second."""
        self._closing()  # ends the event streams
        self._server.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(STOP_S)
        self._listener.close()
