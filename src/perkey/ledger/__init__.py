"""Once per id: handled ids are stored in the same database transaction as the handler's writes.

`policy` is the user's `SqlLedger`, `table` its table, and `engines` the databases' drivers.
`ledger_run` calls a handler inside the transaction.
"""

from perkey.ledger.policy import SqlLedger

__all__ = ["SqlLedger"]
