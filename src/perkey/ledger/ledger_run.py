"""A handler inside the ledger's transaction: select, handle, insert, commit.

Two members may handle one record concurrently, while a partition moves. Both find no id, both
write, and the second insert violates the primary key: its transaction is rolled back and the record
counts as done, because it is.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from perkey.errors import ConfigError
from perkey.ledger import table
from perkey.ledger.engines import guarded, make_async_engine, make_engine, pool_size
from perkey.ledger.policy import SqlLedger
from perkey.policies import is_c_text
from perkey.types import Committed, Record

_log = logging.getLogger("perkey")

PRUNE_EVERY_S = 60.0
#: scope, id, and the offset if the id is one
_Row = tuple[str, str, int | None]


class OutputsRefused(Exception):
    """A handler with a ledger returned outputs."""


class LedgerRun:
    """The ledger of one handler while the app runs."""

    def __init__(
        self,
        ledger: SqlLedger,
        group: str,
        *,
        use_async: bool,
        concurrency: int,
        topic_id: Callable[[str], str] = str,
    ) -> None:
        """`topic_id`: topic -> its id; called once per topic, may wait for the network."""
        self.ledger = ledger
        #: ids by topic; cleared when a topic was recreated
        self.topic_ids: dict[str, str] = {}
        self._topic_id = topic_id
        #: recognised records, which were not handled again
        self.repeats = 0
        self._group = group
        self._async = use_async
        self._concurrency = concurrency
        self._prune_at = time.monotonic() + PRUNE_EVERY_S
        self._lock = threading.Lock()
        self._engine = None if use_async else make_engine(ledger, concurrency)
        self._async_engine = make_async_engine(ledger, concurrency) if use_async else None

    @property
    def concurrency(self) -> int:
        """Concurrent calls: the number of connections in the pool."""
        return pool_size(self.ledger, self._concurrency)

    def prepare(self) -> None:
        """Create or migrate the table; raises ConfigError if the database cannot be used."""
        engine = make_engine(self.ledger_for_admin(), 1)
        try:
            with engine.begin() as connection:
                table.migrate(connection)
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise ConfigError(
                f"SqlLedger: the {self.ledger.backend} database cannot be used ({cause}): is it up "
                "and the URL right?"
            ) from error
        finally:
            engine.dispose()

    def ledger_for_admin(self) -> SqlLedger:
        """The same database through the plain driver."""
        scheme, address = self.ledger.url.split(":", 1)
        return SqlLedger(f"{scheme.split('+')[0]}:{address}", None, self.ledger.keep_s)

    # -- ids ---------------------------------------------------------------------------------------

    def _scope(self, topic: str, partition: int) -> str:
        return f"{self._group}/{self.topic_id_of(topic)}/{partition}"

    def topic_id_of(self, topic: str) -> str:
        """The topic's id, looked up once."""
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            topic_id = self.topic_ids[topic] = self._topic_id(topic)
        return topic_id

    def _rows(self, records: Sequence[Record]) -> list[_Row]:
        if self.ledger.id is not None:
            return [(self._group, _text(self.ledger.id(record)), None) for record in records]
        return [
            (self._scope(record.topic, record.partition), str(record.offset), record.offset)
            for record in records
        ]

    # -- handling ----------------------------------------------------------------------------------

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The handler as the executors call it, without `tx`."""
        return self._around_async(function) if self._async else self._around_plain(function)

    def _around_plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        engine = self._engine
        assert engine is not None

        @functools.wraps(function)
        def handle(argument: Any) -> None:
            records = _records(argument)
            rows = self._rows(records)
            try:
                with engine.begin() as connection:
                    left = self._left(rows, connection.execute(table.known(_keys(rows))))
                    if not left:
                        return
                    with guarded(connection) as tx:
                        _no_outputs(function(_only(argument, left), tx))
                    connection.execute(*table.remember([rows[place] for place in left]))
            except IntegrityError:
                if not _may_clash(records):
                    raise
                with engine.begin() as connection:
                    if connection.execute(table.known(_keys(rows))).first() is None:
                        raise
                self._count(1)

        return handle

    def _around_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        engine = self._async_engine
        assert engine is not None

        @functools.wraps(function)
        async def handle(argument: Any) -> None:
            records = _records(argument)
            rows = self._rows(records)
            try:
                async with engine.begin() as connection:
                    left = self._left(rows, await connection.execute(table.known(_keys(rows))))
                    if not left:
                        return
                    with guarded(connection) as tx:
                        _no_outputs(await function(_only(argument, left), tx))
                    await connection.execute(*table.remember([rows[place] for place in left]))
            except IntegrityError:
                if not _may_clash(records):
                    raise
                async with engine.begin() as connection:
                    if (await connection.execute(table.known(_keys(rows)))).first() is None:
                        raise
                self._count(1)

        return handle

    def _left(self, rows: Sequence[_Row], stored: Any) -> list[int]:
        """Which of the records are not in the ledger; a batch's own duplicates count once."""
        seen, left = {tuple(row) for row in stored}, []
        for index, (scope, record_id, _) in enumerate(rows):
            if (scope, record_id) in seen:
                self._count(1)
            else:
                seen.add((scope, record_id))
                left.append(index)
        return left

    def _count(self, repeats: int) -> None:
        with self._lock:
            self.repeats += repeats

    # -- pruning -----------------------------------------------------------------------------------

    def prune(self, committed: Sequence[Committed]) -> None:
        """Drop old ids: behind the frontier for offsets, by age alone for other ids."""
        now = time.monotonic()
        if now < self._prune_at:
            return
        self._prune_at = now + PRUNE_EVERY_S
        self.prune_now(committed)

    def prune_now(self, committed: Sequence[Committed]) -> None:
        """The same without waiting for a minute to pass."""
        before = time.time() - self.ledger.keep_s
        engine = make_engine(self.ledger_for_admin(), 1)
        try:
            with engine.begin() as connection:
                if self.ledger.id is not None:
                    connection.execute(table.prune_old(self._group, before))
                for entry in committed if self.ledger.id is None else ():
                    scope = self._scope(entry.topic, entry.partition)
                    connection.execute(table.prune_passed(scope, entry.frontier, before))
        except SQLAlchemyError as error:
            _log.warning("pruning the ledger failed, tried again later: %s", type(error).__name__)
        finally:
            engine.dispose()

    def close(self) -> None:
        """Close the connections of `def` handlers."""
        if self._engine is not None:
            self._engine.dispose()

    async def close_async(self) -> None:
        """Close those of `async def` handlers, on the loop that opened them."""
        if self._async_engine is not None:
            await self._async_engine.dispose()


def _records(argument: Any) -> Sequence[Record]:
    return [argument] if isinstance(argument, Record) else argument


def _may_clash(records: Sequence[Record]) -> bool:
    """Whether the reason may be that another member has stored the id, and its writes, meanwhile.

    Its writes may break a constraint of the handler's tables first. A batch is retried and then
    finds the stored ids.
    """
    return len(records) == 1


def _only(argument: Any, left: list[int]) -> Any:
    """The record, or the batch without the known records."""
    if isinstance(argument, Record) or len(left) == len(argument):
        return argument
    return argument.only(left)


def _keys(rows: Sequence[_Row]) -> list[tuple[str, str]]:
    return [(scope, record_id) for scope, record_id, _ in rows]


def _no_outputs(returned: Any) -> None:
    if returned is not None:
        raise OutputsRefused(
            "a handler with a ledger returns None: its outputs could be lost between the commit "
            "of the database and Kafka's"
        )


def _text(record_id: Any) -> str:
    """A user's id as text; hashed if no database takes it or it is long. Types do not collide."""
    if isinstance(record_id, bool) or not isinstance(record_id, str | int | bytes):
        raise TypeError(
            f"SqlLedger(id=...) returned {type(record_id).__name__}: return str, int or bytes"
        )
    kind = type(record_id).__name__[0]
    text = record_id.hex() if isinstance(record_id, bytes) else str(record_id)
    if len(text) > table.ID_CHARS - 2 or not is_c_text(text):
        hashed = hashlib.sha256(text.encode(errors="surrogatepass"))
        text, kind = hashed.hexdigest(), kind.upper()
    return f"{kind}:{text}"
