"""Database engines for the ledger: drivers, pools, and the start of a transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from perkey.errors import ConfigError
from perkey.ledger.policy import SqlLedger

POOL_MAX = 20
POOL_WAIT_S = 300.0
SQLITE_BUSY_S = 60.0


def pool_size(ledger: SqlLedger, concurrency: int) -> int:
    """The number of connections, and so of concurrent calls. SQLite has one writer at a time."""
    return 1 if ledger.backend == "sqlite" else min(concurrency, POOL_MAX)


def make_engine(ledger: SqlLedger, concurrency: int) -> Engine:
    """An engine for `def` handlers."""
    url = ledger.url_for(use_async=False)
    engine: Engine = _made(create_engine, url, ledger, concurrency)
    if ledger.backend == "sqlite":
        begin_immediately(engine)
    return engine


def make_async_engine(ledger: SqlLedger, concurrency: int) -> AsyncEngine:
    """An engine for `async def` handlers."""
    url = ledger.url_for(use_async=True)
    engine: AsyncEngine = _made(create_async_engine, url, ledger, concurrency)
    if ledger.backend == "sqlite":
        begin_immediately(engine.sync_engine)
    return engine


def _made(make: Callable[..., Any], url: str, ledger: SqlLedger, concurrency: int) -> Any:
    options: dict[str, Any] = {
        "pool_size": pool_size(ledger, concurrency),
        "max_overflow": 0,
        "pool_timeout": POOL_WAIT_S,
        "pool_pre_ping": ledger.backend != "sqlite",
        "hide_parameters": True,
    }
    if ledger.backend == "sqlite":
        from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool

        options["poolclass"] = AsyncAdaptedQueuePool if make is create_async_engine else QueuePool
        options["connect_args"] = {"timeout": SQLITE_BUSY_S, "check_same_thread": False}
    try:
        return make(url, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"SqlLedger: a database driver is missing ({error}): pip install 'perkey[sql]'"
        ) from error
    except SQLAlchemyError as error:
        raise ConfigError(f"SqlLedger: {type(error).__name__}: check the URL") from error


def begin_immediately(engine: Engine) -> None:
    """SQLite: take the write lock when the transaction starts.

    Deferred ones fail with "database is locked" as soon as two threads have read before they
    write (294 of 480, measured).
    """

    @event.listens_for(engine, "connect")
    def no_implicit_begin(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _refuse(*_: Any, **__: Any) -> Any:
    raise ConfigError(
        "tx.commit(), tx.rollback() and tx.close() are the ledger's: return to commit, raise to "
        "roll back"
    )


class _Guarded(Connection):
    """A connection whose transaction ends with the handler, not before."""

    commit = rollback = close = _refuse


#: a handler's calls on its `tx`, by name, to be checked when it has returned
_CALLS: ContextVar[list[tuple[str, Coroutine[Any, Any, Any]]]] = ContextVar("calls")


class NotAwaited(Exception):
    """A handler called its transaction and continued without awaiting the result."""


def _awaited(name: str) -> Any:
    original = getattr(AsyncConnection, name)

    @functools.wraps(original)
    def call(self: AsyncConnection, *arguments: Any, **options: Any) -> Any:
        made = original(self, *arguments, **options)
        _CALLS.get([]).append((name, made))  # default: a context that is not the handler's
        return made

    return call


class _GuardedAsync(AsyncConnection):
    """The same for `async def` handlers, where a call that is not awaited does nothing."""

    __slots__ = ()
    commit = rollback = close = _refuse
    execute, exec_driver_sql = _awaited("execute"), _awaited("exec_driver_sql")
    scalar, scalars, run_sync = _awaited("scalar"), _awaited("scalars"), _awaited("run_sync")


@contextmanager
def guarded(connection: Connection | AsyncConnection) -> Iterator[Any]:
    """The handler's view of the transaction: everything except its end, which is the ledger's."""
    plain = type(connection)
    # The class is changed, not the object wrapped: the handler's `tx` is a real Connection, for
    # ORM sessions and `isinstance`.
    connection.__class__ = _GuardedAsync if isinstance(connection, AsyncConnection) else _Guarded
    calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
    _CALLS.set(calls)
    try:
        yield connection
        for name, call in calls:
            if inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
                call.close()  # otherwise Python warns of it again, later and elsewhere
                raise NotAwaited(f"tx.{name}(...) was not awaited: write await tx.{name}(...)")
    finally:
        connection.__class__ = plain
