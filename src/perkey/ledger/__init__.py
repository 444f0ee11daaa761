"""Once per id: handled ids are stored in the same database transaction as the handler's writes."""

from perkey.ledger.policy import SqlLedger

__all__ = ["SqlLedger"]
