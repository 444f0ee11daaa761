"""The command line.

`main` is the entry; `commands` lists the commands. Each other module is a command or a group
of them (`lag`, `dlq`, `broker`); those with a suffix (`dlq_replay`, `top_screen`) are parts of one.
"""
