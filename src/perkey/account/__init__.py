"""The account: a read-only copy of the engine's state, for reports. Pure like the core.

`account` copies while the caller has the door; the other modules compute from the copy, outside it.
Only `finding` walks the engine itself, for one record.
"""
