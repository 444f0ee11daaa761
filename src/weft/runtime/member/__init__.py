"""The polling thread and what it owns: commits, rebalances, outputs. Knows nothing of calls."""
