"""The account: a copy of the engine's state for people. Pure like the core, and read-only.

`account` copies, inside the door; all others compute from the copy, outside. `finding` alone walks
the engine itself, for one record.
"""
