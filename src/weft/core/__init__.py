"""The pure core: events in, effects out. No I/O, no clock, no thread, no randomness.

Read in this order: `states` (the states of a record, a partition and a commit), `events` and
`effects` (all input, all output), `work` (one record on its way through the core), `partition` (one
epoch: its `offsets`, `lanes` and commit), `scheduling` (slots and rotation), `retries` (what waits
for its next attempt), `engine_state` (all data), `engine` (the only entry), `delivery` (the rules
of each delivery mode).
"""
