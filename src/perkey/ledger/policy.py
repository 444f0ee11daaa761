"""`perkey.SqlLedger`: the user's options, checked at creation. Imports no SQLAlchemy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perkey.errors import ConfigError
from perkey.numeric import is_positive
from perkey.types import Record

BACKENDS = {
    # backend -> (driver for `def` handlers, driver for `async def` handlers)
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
}


@dataclass(frozen=True, slots=True, repr=False)
class SqlLedger:
    """Recognise a repeated record by an id stored with the handler's own writes.

    `url`: "sqlite:///file.db" or "postgresql://user:password@host/database".
    `id`: record -> str, int or bytes; default: the record's place, (group, topic id, partition,
    offset). With a function it also recognises duplicates of the producer.
    `keep_s`: how long an id is kept, in seconds.
    """

    url: str
    id: Callable[[Record], Any] | None = None
    keep_s: float = 7 * 86400.0

    def __post_init__(self) -> None:
        if type(self.url) is not str or ":" not in self.url or self.backend not in BACKENDS:
            raise ConfigError(
                'SqlLedger(url=...): give "sqlite:///FILE" or "postgresql://USER:PASSWORD@HOST/DB"'
            )
        if self.id is not None and not callable(self.id):
            raise ConfigError(f"SqlLedger(id={self.id!r}): give a function record -> id, or None")
        keep = self.keep_s
        if not is_positive(keep):
            raise ConfigError(f"SqlLedger(keep_s={keep!r}): give a number of seconds above 0")

    @property
    def backend(self) -> str:
        """The database's kind: "sqlite" or "postgresql"."""
        return re.split(r"[+:]", self.url, maxsplit=1)[0]

    def url_for(self, *, use_async: bool) -> str:
        """The URL with a driver that fits the handler; raises ConfigError if it cannot."""
        scheme, address = self.url.split(":", 1)
        if "+" not in scheme:
            return f"{BACKENDS[self.backend][use_async]}:{address}"
        is_async = scheme in ("sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg_async")
        fits_both = scheme == "postgresql+psycopg"
        if is_async != use_async and not fits_both:
            kind = "async def" if use_async else "def"
            raise ConfigError(
                f"SqlLedger: the driver {scheme} does not fit a `{kind}` handler: write "
                f"{self.backend}:… and Perkey chooses one"
            )
        return self.url

    def __repr__(self) -> str:
        return f"SqlLedger({self.backend}, keep_s={self.keep_s})"  # the URL holds a password
