"""The polling thread and its work: commits, rebalances, outputs. Independent of calls.

`member` is the polling thread and carries out the engine's effects. `committing`, `rebalance`,
`refetching` and `outputs` do a part of its work each; `transactor` for exactly once.
"""
