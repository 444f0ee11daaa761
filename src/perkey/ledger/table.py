"""The ledger's table, created and migrated by Perkey; documented in docs/ledger.md."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    insert,
    inspect,
    select,
    update,
)

from perkey.errors import ConfigError

VERSION = 1
SCOPE_CHARS = 400
ID_CHARS = 200

_metadata = MetaData()

LEDGER = Table(
    "perkey_ledger",
    _metadata,
    #: group, or group/topic id/partition if the id is an offset
    Column("scope", String(SCOPE_CHARS), primary_key=True),
    Column("id", String(ID_CHARS), primary_key=True),
    #: the offset, if the id is one: removed only after the frontier has passed it
    Column("position", BigInteger, nullable=True),
    #: UNIX seconds
    Column("done_at", Float, nullable=False, index=True),
)
META = Table("perkey_ledger_meta", _metadata, Column("version", Integer, primary_key=True))


def migrate(connection: Connection) -> None:
    """Create the tables, or migrate them to this version; refuses those of a newer Perkey."""
    if not inspect(connection).has_table(META.name):
        _metadata.create_all(connection)
        if connection.execute(select(META.c.version)).first() is None:
            connection.execute(insert(META).values(version=VERSION))
        return
    version = connection.execute(select(META.c.version)).scalar()
    if version is not None and version > VERSION:
        raise ConfigError(
            f"the ledger's table is of version {version}, made by a newer Perkey; this one knows "
            f"{VERSION}: upgrade Perkey"
        )
    _metadata.create_all(connection)
    if version is None or version < VERSION:
        connection.execute(update(META).values(version=VERSION))


def known(ids: list[tuple[str, str]]) -> Any:
    """The statement that finds which of these (scope, id) are in the ledger."""
    from sqlalchemy import tuple_

    return select(LEDGER.c.scope, LEDGER.c.id).where(tuple_(LEDGER.c.scope, LEDGER.c.id).in_(ids))


def remember(rows: list[tuple[str, str, int | None]]) -> tuple[Any, list[dict[str, Any]]]:
    """The statement, with its rows, that inserts these ids."""
    now = time.time()
    return insert(LEDGER), [
        {"scope": scope, "id": record_id, "position": position, "done_at": now}
        for scope, record_id, position in rows
    ]


def prune_passed(scope: str, frontier: int, before: float) -> Any:
    """Old offsets behind the frontier, which are not delivered again."""
    return delete(LEDGER).where(
        LEDGER.c.scope == scope, LEDGER.c.position < frontier, LEDGER.c.done_at < before
    )


def prune_old(scope: str, before: float) -> Any:
    """Old ids from the user's own function."""
    return delete(LEDGER).where(
        LEDGER.c.scope == scope, LEDGER.c.position.is_(None), LEDGER.c.done_at < before
    )
