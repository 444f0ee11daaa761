"""The polling thread and its work: commits, rebalances, outputs. Independent of calls."""
