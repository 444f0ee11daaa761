"""The account: what the engine holds, read for people. As pure as the core, and changes nothing.

`account` copies, inside the door; all others compute from the copy, outside. `finding` alone walks
the engine itself, for one record.
"""
