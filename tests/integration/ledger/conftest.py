"""Real databases: SQLite in a file, PostgreSQL from a wheel that needs no root."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL of this session."""
    # Not in pytest's folders: as root the server runs as another user, who may not enter them.
    folder = Path(tempfile.mkdtemp(prefix="perkey-pg-"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs has an opinion on XDG_RUNTIME_DIR
        pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL wheel for this Python")
        server = pgserver.get_server(folder / "data")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    found: str = request.getfixturevalue("postgresql")
    yield found
    with database(found).begin() as connection:
        for table in ("writes", "perkey_ledger", "perkey_ledger_meta"):
            connection.execute(text(f"drop table if exists {table}"))


def database(url: str) -> Engine:
    """The same database from outside; keeps no connection."""
    return create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)


@pytest.fixture
def writes(url: str) -> Callable[[], list[Any]]:
    """A table for the handlers, and what is in it."""
    with database(url).begin() as connection:
        connection.execute(text("create table writes (v varchar(100))"))

    def read() -> list[Any]:
        with database(url).begin() as connection:
            return sorted(row[0] for row in connection.execute(text("select v from writes")))

    return read
