"""The handler with a ledger: only its workers import SQLAlchemy, a quarter of a second each."""

from __future__ import annotations

from sqlalchemy import Connection, text
from tests.integration.workers.killing import note

import perkey


def booked(record: perkey.Record, tx: Connection) -> None:
    """A row for each, with a ledger."""
    tx.execute(text("insert into rows (n) values (:n)"), {"n": record.offset})
    note(record)
